"""Plots in the user's style: letters of any size have room."""

from __future__ import annotations

import logging

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pytest

from nbshare import LivePlot, grid
from nbshare._core.notebook.figure import LiveFigure
from tests.support.grids import combined
from tests.support.played import played
from tests.support.texts import faults

SIZES = {"small": 7, "large": 14, "huge": 18, "poster": 24}
STYLES = {name: {"font.size": size} for name, size in SIZES.items()}
STYLES |= {
    name: name
    for name in (
        *(f"seaborn-v0_8-{style}" for style in ("darkgrid", "whitegrid", "dark", "white", "ticks")),
        *(f"seaborn-v0_8-{context}" for context in ("paper", "notebook", "talk", "poster")),
        *("ggplot", "dark_background", "fivethirtyeight"),
    )
}
XS = np.linspace(0.4, 1.6, 40)
WAVES = np.array([np.sin(x * np.linspace(-5, 5, 80)) for x in XS])
MODELS = ["ridge regression", "lasso", "forest", "boosting", "nearest"]
MODELS_OVER_CURRENT = grid(current=np.linspace(0, 3, 9), model=MODELS)
PARTS = [{"image": np.outer(row[:30], row[:40]), "E": 1e6 * row[3]} for row in WAVES]
SEVERAL = ["image", "line", "hist", LivePlot("hist", value=np.max, label="max")]
LONG = LivePlot(title="the whole story of this run " * 3, label="long name of the results " * 2)
PLOTS = {
    "line": ([(np.sin(x), np.cos(x)) for x in XS], XS, "line"),
    "several": (WAVES, XS, SEVERAL),
    "image": (WAVES, XS, "image"),
    "names": (np.linspace(0, 1, 45), MODELS_OVER_CURRENT, "image"),
    "legend": (np.linspace(0, 1, 45), MODELS_OVER_CURRENT, "line"),
    "long": (XS * 1e-9, XS, LONG),
    "panels": (np.arange(120.0), grid(a=range(5), b=range(4), c=XS[:6]), "image"),
    "parts": (PARTS, XS, "image"),
}


@pytest.mark.usefixtures("few_pixels")
@pytest.mark.parametrize("in_users_style", [False, True])
@pytest.mark.parametrize(("style", "plot"), combined(STYLES, PLOTS, soak=True))
def test_no_text_overlaps_or_is_cut_in_any_style(style, plot, in_users_style):
    results, items, kind = PLOTS[plot]
    job = played(results, 1)
    job._inputs = items
    with mpl.style.context(["default", STYLES[style]]):
        figure = LiveFigure(job, kind, in_users_style=in_users_style)
        figure.frame(final=True)
        assert faults(figure.figure) == []


def test_a_font_that_is_missing_is_told_once(caplog):
    """Not for each text of each frame, as Matplotlib does. Plots of the user's are left alone."""
    job = played(XS, 1)
    with mpl.style.context({"font.family": "No Such Font"}):
        figure = LiveFigure(job, "line")
        for final in (False, False, True):
            figure.frame(final=final)
    told = [each for each in caplog.records if "No Such Font" in each.getMessage()]
    assert len(told) == 1
    assert logging.getLogger("matplotlib.font_manager").filters == []
