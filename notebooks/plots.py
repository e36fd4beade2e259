"""The twelve plots of tutorial 03, each of one line of code, and the pictures of them.

``python notebooks/plots.py`` draws images/plots, and prints the table of the tutorial.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rng = np.random.Generator

FOLDER = Path(__file__).resolve().parent / "images" / "plots"
WIDTH, HEIGHT = 400, 250  # pixels of a picture, half of what its file has

# What the results are, the data, and the line.
SHEET = [
    (
        "numbers",
        "A number for each item",
        "seconds = np.linspace(0, 3, 50)",
        'parallel_map(fall, seconds, plot="line")',
    ),
    (
        "decades",
        "Numbers of all sizes, with a name and a unit",
        "seconds = np.linspace(0, 3, 50)",
        'parallel_map(decay, seconds, plot=LivePlot("line", label="activity", unit="Bq", '
        'scale="log"))',
    ),
    (
        "dates",
        "Items that are dates",
        'days = np.arange("2026-03-01", "2026-05-01", dtype="M8[D]")',
        'parallel_map(tide, days, plot=LivePlot("line", label="tide", unit="m"))',
    ),
    (
        "names",
        "Several numbers with names: a dict, named tuple, dataclass or Series",
        "angles = np.linspace(0, 90, 46)",
        'parallel_map(throw, angles, plot=LivePlot("line", xlabel="angle", xunit="°", unit="m"))',
    ),
    (
        "lines",
        "Numbers over a grid, as lines",
        "points = grid(angle=np.linspace(0, 90, 31), speed=[10, 15, 20])",
        'parallel_map(reach, points, plot="line")',
    ),
    (
        "grid",
        "The same, as an image",
        "points = grid(speed=np.arange(2, 21), angle=np.arange(0, 91, 2))",
        'parallel_map(reach, points, plot="image")',
    ),
    (
        "panels",
        "Numbers over a grid of three axes",
        "points = grid(y=np.arange(40), x=np.arange(40), phase=[0, 1, 2, 3])",
        'parallel_map(ripple, points, plot="image")',
    ),
    (
        "rows",
        "Arrays of one axis",
        "pitches = np.geomspace(1, 30, 90)",
        'parallel_map(chirp, pitches, plot=LivePlot("image", xlabel="sample"))',
    ),
    (
        "images",
        "Images, of which you see the mean, or the greatest value of each pixel",
        "nights = range(60)",
        'parallel_map(sky, nights, seed=1, plot=LivePlot("image", reduction="max"))',
    ),
    (
        "histogram",
        "How often which value comes",
        "trials = range(2000)",
        'parallel_map(walk, trials, seed=1, plot=LivePlot("hist", label="distance"))',
    ),
    (
        "sums",
        "One value of all items, as it settles",
        "trials = range(1, 2000)",
        'parallel_map(term, trials, reduce=operator.add, plot="line")',
    ),
    (
        "several",
        "Two views of the same results",
        "trials = range(300)",
        'parallel_map(walk, trials, seed=1, plot=["line", "hist"])',
    ),
]


def fall(seconds: float) -> float:
    """Return the height of a ball that bounces, in m."""
    height, speed = 10.0, 0.0
    for _ in range(int(1000 * seconds)):
        speed -= 0.00981
        height += speed / 1000 * 10
        if height < 0:
            height, speed = -height, -0.8 * speed
    return height


def decay(seconds: float) -> float:
    """Return the activity of a source of two isotopes, in Bq."""
    return 1e6 * math.exp(-9 * seconds) + 300 * math.exp(-seconds)


def tide(day: np.datetime64) -> float:
    """Return the height of the tide at noon, in m."""
    n = (day - np.datetime64("2026-01-01")).astype(int)
    return 2 * math.cos(n * 0.42) * (1 + 0.4 * math.cos(n * 0.21))


def throw(angle: float) -> dict[str, float]:
    """Return how far and how high a ball flies, in m."""
    speed, gravity = 15.0, 9.81
    return {
        "distance": reach(angle, speed),
        "height": (speed * math.sin(math.radians(angle))) ** 2 / 2 / gravity,
    }


def reach(angle: float, speed: float) -> float:
    """Return how far a ball flies, in m."""
    return speed**2 * math.sin(2 * math.radians(angle)) / 9.81


def ripple(x: int, y: int, phase: float) -> float:
    """Return the height of a wave from two stones in a pond."""
    ways = math.hypot(x - 10, y - 20), math.hypot(x - 30, y - 20)
    return sum(math.cos(way - phase * math.pi / 2) for way in ways)


def chirp(pitch: float) -> Array:
    """Return a tone that becomes louder and fades."""
    t = np.linspace(0, 1, 300)
    return np.sin(2 * np.pi * pitch * t) * np.sin(np.pi * t) ** 2


def sky(_night: int, rng: Rng) -> Array:
    """Return a picture of the sky with one meteor."""
    picture = rng.gamma(2, 3, (90, 150))
    y, x, way = rng.integers(0, 90), rng.integers(0, 150), rng.uniform(0, 6.3)
    for step in range(25):
        row, column = round(y + step * math.sin(way)), round(x + step * math.cos(way))
        if 0 <= row < 90 and 0 <= column < 150:
            picture[row, column] = 100
    return picture


def walk(_trial: int, rng: Rng) -> float:
    """Return how far a random walk of a thousand steps leads."""
    return float(np.hypot(*rng.normal(size=(2, 1000)).sum(axis=1)))


def term(n: int) -> float:
    """Return a term of a sum that becomes π²/6."""
    return 1 / n**2


def table() -> str:
    """Return the table of the tutorial."""
    lines = ["| results | data and line of code | plot |", "|---|---|---|"]
    for name, what, data, line in SHEET:
        picture = f'<img src="images/plots/{name}.png" alt="{what}" width="{WIDTH}">'
        lines.append(f"| {what} | `{data}`<br>`{line}` | {picture} |")
    return "\n".join(lines)


def slowly(func: Any) -> Any:
    """Return a function that takes at least a millisecond."""

    @functools.wraps(func)
    def slow(*args: Any) -> Any:
        time.sleep(0.001)
        return func(*args)

    return slow


def draw() -> None:
    """Draw the pictures."""
    from nbshare import LivePlot, grid, map_async
    from nbshare._core.notebook import figure

    figure._BESIDE = HEIGHT
    figure._IMAGE, figure._LEAST_WIDTH = HEIGHT - 70, 300
    FOLDER.mkdir(exist_ok=True)
    for name, _, data, line in SHEET:
        drawn: list[bytes] = []

        def parallel_map(
            func: Any, items: Any, *, plot: Any, drawn: list[bytes] = drawn, **options: Any
        ) -> None:
            if "reduce" in options:  # its picture grows
                func = slowly(func)
            job = map_async(func, items, backend="threads", progress=False, **options)
            figure._ALONE = (600 if isinstance(plot, list) else WIDTH), HEIGHT
            live = figure.LiveFigure(job, plot)
            while not job.wait(0.02):
                live.frame(final=False)
            frame = live.frame(final=True)
            assert frame is not None
            drawn.append(frame.png)

        names = {"np": np, "operator": operator, "LivePlot": LivePlot, "grid": grid}
        exec(f"{data}\n{line}", {**globals(), **names, "parallel_map": parallel_map})  # noqa: S102
        (FOLDER / f"{name}.png").write_bytes(*drawn)


if __name__ == "__main__":
    os.environ["NBSHARE_STATIC"] = "1"  # as the tutorials are saved
    draw()
    print(table())  # noqa: T201  a command line prints
