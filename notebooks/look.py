"""How the figures of the tutorials look: like nbshare's own plots, sharp on fine screens."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib_inline.backend_inline import set_matplotlib_formats

BLUE, RED, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"  # by Okabe and Ito
GREY, TICKS, FRAME = "#777777", "#999999", "#BBBBBB"  # what is around the data

STYLE = {
    "figure.figsize": (6.4, 3.0),  # inches; 640 pixels on the page, as nbshare's plots
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),  # for dark themes, too
    "savefig.bbox": "standard",
    "font.size": 10,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": FRAME,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.axisbelow": True,
    "grid.color": TICKS,
    "grid.alpha": 0.2,
    "xtick.color": TICKS,
    "ytick.color": TICKS,
    "xtick.labelcolor": GREY,
    "ytick.labelcolor": GREY,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
}


def use_look() -> None:
    """Set matplotlib's style for a notebook, and twice its resolution."""
    plt.style.use(STYLE)
    set_matplotlib_formats("retina")
