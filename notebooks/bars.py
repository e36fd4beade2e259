"""Draw four rows of the README's table of times: ``python notebooks/bars.py``."""

from __future__ import annotations

import io
import re
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "notebooks" / "images" / "bars.png"
ROWS = (
    "8 results of 50 MB as one array, later call",
    "100,000 items of 0.1 µs",
    "20,000 items of 50 µs",
    "24 items that read an array of 400 MB, later call",
)
OTHERS = ("loop", "threads", "joblib", "Executor", "Dask")
SLOWER, FASTER = "#0072B2", "#D55E00"


def times(readme: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table of times, by row and library."""
    start = readme.rindex("\n", 0, readme.index("| nbshare | loop |"))
    table = readme[start:].strip().split("\n\n")[0]
    head, _, *lines = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()]
    return {title: dict(zip(head[1:], cells, strict=True)) for title, *cells in lines}


def draw(rows: dict[str, dict[str, str]], path: Path) -> None:
    """Draw one panel for each row: how many times as long as nbshare each library takes."""
    figure = Figure((8, 4.6), dpi=160, facecolor="white", layout="constrained")
    for ax, title in zip(figure.subplots(2, 2, sharex=True).flat, ROWS, strict=True):
        cells = rows[title]
        values = [float(cells[name].strip("*")) for name in OTHERS]
        colours = [FASTER if value < 0.9 else SLOWER for value in values]
        # Bars begin at 1, nbshare's own time: longer ones go to the right.
        ax.barh(OTHERS, [value - 1 for value in values], left=1, color=colours, height=0.7)
        for name, value in zip(OTHERS, values, strict=True):
            ax.annotate(
                f"{value:g}",
                (max(value, 1), name),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        ax.set_title(f"{title}\nnbshare: {cells['nbshare']}", loc="left", fontsize=9)
        ax.set(xscale="log", xlim=(0.5, 1000), xticks=[1, 10, 100])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g} ×")
        ax.axvline(1, color="black", linewidth=0.8)
        ax.invert_yaxis()
        ax.tick_params("y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("time ÷ nbshare's time", fontsize=9)
    file = io.BytesIO()
    figure.savefig(file)
    Image.open(file).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    draw(times((ROOT / "README.md").read_text("utf-8")), PICTURE)
