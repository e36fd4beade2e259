"""Write the tables of times from the benchmark's measurements, and draw four rows.

On a machine that does nothing else, for a quarter of an hour::

    python tests/benchmarks --rounds 3 --json race.json --picture notebooks/images/race.png
    python notebooks/making/bars.py race.json

The benchmark's page has all rows, the README some of them. Without a file it draws the table as it
is. The sentence below it, which names the machine, is to be written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from picture import GREY, ON_ANY_PAGE  # noqa: E402 - in that folder
from report import Report, seconds  # noqa: E402

README = ROOT / "README.md"
WHOLE = ROOT / "tests" / "benchmarks" / "README.md"
PICTURE = ROOT / "notebooks" / "images" / "bars.png"
TITLES = {  # of the benchmark's workloads
    "large results": "8 results of 50 MB as one array",
    "tiny items": "100,000 items of 0.1 µs",
    "small dicts": "20,000 small dicts as results",
    "items of 50 µs": "20,000 items of 50 µs",
    "uneven items": "200 items of very different length",
    "large input": "24 items that read an array of 400 MB",
    "calls that do nothing": "8 items that do nothing",
}
COLUMNS = {
    "loop": "loop",
    "threads": "ThreadPoolExecutor",
    "joblib": "joblib",
    "Executor": "ProcessPoolExecutor",
    "Pool (fork)": "Pool (fork)",
    "mpire": "mpire",
    "Dask": "Dask",
    "Ray": "Ray",
}
ROWS = (
    "8 results of 50 MB as one array, later call",
    "100,000 items of 0.1 µs",
    "20,000 items of 50 µs",
    "24 items that read an array of 400 MB, later call",
)
OTHERS = ("loop", "threads", "joblib", "Executor", "Dask")
SLOWER, FASTER = "#0072B2", "#D55E00"
CLEARLY_FASTER = 0.9  # times nbshare's time


def measured(file: Path) -> str:
    """Return the lines of the table, without its head."""
    rows = sorted(Report.load(file).rows(), key=lambda row: list(TITLES).index(row.title))
    titles = [row.title for row in rows]
    lines = []
    for row in rows:
        phase = f", {row.phase} call" if titles.count(row.title) > 1 else ""
        cells = [TITLES[row.title] + phase, seconds(row.typical("nbshare"))]
        cells += [cell(row, name) for name in COLUMNS.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Any, name: str) -> str:
    """Return how many times as long as nbshare a library takes, in two digits."""
    ratio = row.ratio(name, "nbshare")
    if ratio is None:
        return "–"
    value = ratio.median
    if value < 0.005:
        text = "0"
    else:
        text = f"{value:.0f}" if value > 9.95 else f"{value:.{1 if value > 0.995 else 2}f}"
    return f"**{text}**" if value < CLEARLY_FASTER else text


def table(readme: str) -> str:
    """Return the table of times of a page, with its head."""
    start = readme.rindex("\n", 0, readme.index("| nbshare | loop |")) + 1
    return readme[start : readme.index("\n\n", start)]


def times(readme: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table of times, by row and library."""
    head, _, *lines = [re.split(r" *\| *", line.strip("| ")) for line in table(readme).splitlines()]
    return {title: dict(zip(head[1:], cells, strict=True)) for title, *cells in lines}


def draw(rows: dict[str, dict[str, str]], path: Path) -> None:
    """Draw one panel for each row: how many times as long as nbshare each library takes."""
    mpl.rcParams.update(ON_ANY_PAGE)
    figure = Figure((8, 4.6), dpi=160, layout="constrained")
    for ax, title in zip(figure.subplots(2, 2, sharex=True).flat, ROWS, strict=True):
        cells = rows[title]
        values = [float(cells[name].strip("*")) for name in OTHERS]
        colours = [FASTER if value < CLEARLY_FASTER else SLOWER for value in values]
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
        ax.axvline(1, color=GREY, linewidth=0.8)
        ax.invert_yaxis()
        ax.tick_params("y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("time ÷ nbshare's time", fontsize=9)
    figure.savefig(path)


def chosen(readme: str, whole: str) -> str:
    """Return the README with the rows that it has as they are in the whole table."""
    lines = {line.split("|")[1]: line for line in table(whole).splitlines()}
    old = table(readme)
    new = "\n".join(lines.get(line.split("|")[1], line) for line in old.splitlines())
    return readme.replace(old, new)


if __name__ == "__main__":
    text = WHOLE.read_text("utf-8")
    if sys.argv[1:]:
        head = "\n".join(table(text).split("\n")[:2])
        text = text.replace(table(text), f"{head}\n{measured(Path(sys.argv[1]))}")
        WHOLE.write_text(text, "utf-8")
        README.write_text(chosen(README.read_text("utf-8"), text), "utf-8")
    draw(times(text), PICTURE)
