"""One picture of the race, and of how cost grows, light, and legible on white and on dark pages."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image
from report import NO_PEERS, Report

from nbshare._core.notebook.png import in_palette

# Okabe and Ito's colours, which everybody can tell apart, but black, which dark pages hide. Shapes
# tell apart those that share a colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1")
GREY = "#757575"  # legible on white and on dark pages
SHAPES = ("o", "s", "^", "D", "v", "P", "X")
AXES = {
    "items": ("number of tiny items", "time of a call (s)"),
    "bytes": ("bytes of the array that all items read", "start and first call (s)"),
    "workers": ("workers", "start and first call (s)"),
}
ON_ANY_PAGE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **{f"{part}.color": GREY for part in ("text", "xtick", "ytick")},
    **{f"axes.{part}color": GREY for part in ("label", "edge", "title")},
}
STYLE = {
    **ON_ANY_PAGE,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def styles(report: Report) -> dict[str, dict]:
    """Return a colour and a shape for each contestant. Nbshare has the first."""
    names = [each["contestant"] for each in [*report.race, *report.scaling]]
    names = ["nbshare", *dict.fromkeys(name for name in names if name not in NO_PEERS)]
    found = {
        name: {"color": COLOURS[i % len(COLOURS)], "marker": SHAPES[(i + i // 7) % len(SHAPES)]}
        for i, name in enumerate(names)
    }
    return found | {
        "loop": {"color": GREY, "marker": "o", "markerfacecolor": "none"},
        "limit": {"color": GREY, "marker": "|"},
    }


def draw(report: Report, path: Path):
    """Draw the race above, and how cost grows below if it was measured."""
    rows, look = report.rows(), styles(report)
    axes = [axis for axis in AXES if report.curves(axis)]
    heights = [0.5 + 0.5 * len(rows)] * bool(rows) + [2.4] * bool(axes)
    with mpl.rc_context(STYLE):
        figure = Figure((8, sum(heights)), dpi=160, layout="constrained")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
        if rows:
            draw_race(parts[0].subplots(), rows, look)
        if axes:
            panels = parts[len(heights) - 1].subplots(1, len(axes), squeeze=False).flat
            for axis, panel in zip(axes, panels, strict=True):
                draw_scaling(panel, axis, report.curves(axis), look)
            if not rows:  # whose legend would say it
                panels[0].legend(frameon=False)
        raw = io.BytesIO()
        figure.savefig(raw, format="png")
    in_palette(Image.open(raw)).save(path, optimize=True)


def draw_race(ax, rows, look):
    """Draw the time of every contestant on every workload, nbshare's being 1."""
    names = list(look)
    for y, row in enumerate(reversed(rows)):
        if y % 2:
            ax.axhspan(y - 0.5, y + 0.5, color=GREY, alpha=0.12, linewidth=0, zorder=0)
        for name in set(row.times) & set(look):
            ratio = row.ratio(name, row.unit)
            if ratio:
                low, middle, high = (max(r, 0.01) for r in (ratio.low, ratio.median, ratio.high))
                place = y + 0.4 - 0.8 * names.index(name) / (len(names) - 1)  # none hides another
                style = {"linestyle": "", "markersize": 4.5, "elinewidth": 1} | look[name]
                spread = [[middle - low], [high - middle]]
                ax.errorbar(middle, place, xerr=spread, **style)
    labels = [f"{row.title}, {row.phase} call" for row in reversed(rows)]
    ax.set(xscale="log", yticks=range(len(rows)), yticklabels=labels, ylim=(-0.5, len(rows) - 0.5))
    ax.set_xlabel(
        "time ÷ nbshare's (left of 1: faster than nbshare; 0.01: or even less; bars: all rounds)"
    )
    ax.xaxis.set_major_formatter("{x:g}")
    ax.axvline(1, color=look["nbshare"]["color"], linewidth=0.8, zorder=0)
    for name, style in look.items():
        ax.plot([], [], linestyle="", label=name, **style)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def draw_scaling(ax, axis, curves, look):
    """Draw how the seconds of a call grow. A band shows all rounds."""
    for name, curve in curves.items():
        sizes = sorted(curve)
        style = look[name]
        ax.plot(
            sizes,
            [median(curve[size]) for size in sizes],
            markersize=4,
            linewidth=1,
            label=name,
            **style,
        )
        low, high = ([end(curve[size]) for size in sizes] for end in (min, max))
        ax.fill_between(sizes, low, high, color=style["color"], alpha=0.2, linewidth=0)
    xlabel, ylabel = AXES[axis]
    ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    if axis == "workers":
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
