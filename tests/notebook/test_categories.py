"""Bools and texts as results, dates as an image, and results whose parts are unlike."""

from __future__ import annotations

import datetime as dt
import enum

import numpy as np
import pandas as pd
import pytest

from nbshare import MISSING, LivePlot, grid
from nbshare._core.notebook.figure import LiveFigure
from tests.support.played import played

pytestmark = pytest.mark.usefixtures("few_pixels")


class Phase(enum.Enum):
    """A kind of results."""

    SOLID, LIQUID, GAS = range(3)


PHASES = ["solid", "liquid", "liquid", "gas", "solid", "liquid"]


def drawn(results, plot="line", items=None, *, first=None):
    """Return the figure of the last frame, after one of the first results."""
    job = played(results, 1)
    job._inputs = items
    figure = LiveFigure(job, plot)
    if first:
        job.flags[first:] = False
        figure.frame(final=False)
        job.flags[:] = True
    figure.frame(final=True)
    return figure.figure


def labels(axis):
    axis.axes.figure.canvas.draw()
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def swatches(axes):
    """Return the names at the colour bar, and the colour of each, from low to high."""
    (bar,) = axes.child_axes
    image = axes.images[0]
    return labels(bar.yaxis), [image.cmap(image.norm(k)) for k in range(image.cmap.N)]


@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize("make", [str, np.str_, lambda name: Phase[name.upper()]])
def test_texts_are_counted_placed_and_coloured_by_their_names(make, first):
    results = [make(phase) for phase in PHASES]
    names = ["SOLID", "LIQUID", "GAS"] if isinstance(results[0], Phase) else [*PHASES[:2], "gas"]
    axes = drawn(results, "hist", first=first).axes[0]
    assert labels(axes.xaxis) == names
    counts, edges, _ = next(p for p in axes.patches if hasattr(p, "get_data")).get_data()
    assert (counts.tolist(), edges.tolist()) == ([2, 3, 1], [-0.5, 0.5, 1.5, 2.5])
    axes = drawn(results, "line", first=first).axes[0]
    assert labels(axes.yaxis) == names
    assert axes.lines[0].get_ydata().tolist() == [0, 1, 1, 2, 0, 1]
    axes = drawn(results, "image", first=first).axes[0]
    shown, colours = swatches(axes)
    assert shown == names
    assert len(set(colours)) == 3


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_columns_of_a_table_that_are_unlike_have_a_panel_each(kind):
    tables = [
        pd.DataFrame({"n": [i, 2 * i], "site": ["u", "v"], "day": [pd.Timestamp(2026, 3, 1)] * 2})
        for i in range(4)
    ]
    titles = [axes.get_title("left") for axes in drawn(tables, kind).axes]
    assert [title for title in titles if title] == ["n", "site", "day"]


@pytest.mark.parametrize("make", [np.array, pd.Series, pd.Categorical, list])
def test_rows_of_texts_are_categories(make):
    rows = [make(["lo", "hi", "lo"]), make(["hi", "mid", "lo"])]
    axes = drawn(rows, "hist").axes[0]
    assert labels(axes.xaxis) == ["lo", "hi", "mid"]
    assert axes.patches[0].get_data()[0].tolist() == [3, 2, 1]


def test_texts_over_a_grid_are_an_image_and_none_is_a_gap():
    results = ["a", "b", None, "a", "a", "b"]
    axes = drawn(results, "image", grid(x=[1.0, 2.0], y=[1, 2, 3])).axes[0]
    shown = np.ma.filled(axes.images[0].get_array()[[0, 0, 1], [0, 1, 0]], np.nan)
    assert shown.tolist() == [0, 1, 0]
    assert axes.images[1].get_visible()


def test_texts_in_panels_have_the_same_colours():
    items = grid(x=[1.0, 2.0], y=[1, 2], z=[1, 2])
    figure = drawn(["a", "c", "a", "b", "a", "b", "c", "a"], "image", items)
    first, second, bar = figure.axes
    assert (second.images[0].get_array() == [[1, 2], [2, 0]]).all()
    assert first.images[0].get_clim() == second.images[0].get_clim() == (-0.5, 2.5)
    assert labels(bar.yaxis) == ["a", "c", "b"]


@pytest.mark.parametrize("kind", ["image", "line", "hist"])
@pytest.mark.parametrize("values", [[True, False, True, True], [True] * 4, [False] * 4])
def test_bools_are_false_or_true(values, kind):
    axes = drawn(np.array(values), kind).axes[0]
    if kind == "image":
        names, colours = swatches(axes)
        assert len(set(colours)) == 2
    else:
        names = labels(axes.yaxis if kind == "line" else axes.xaxis)
    assert names == ["False", "True"]


def test_bools_in_rows_and_strips_have_two_swatches():
    for shape in ((6, 20), (1, 1, 30), (1, 30, 40)):
        values = np.random.default_rng(0).random(shape) > 0.5
        assert swatches(drawn(values, "image").axes[0])[0] == ["False", "True"]


@pytest.mark.parametrize("shape", [(4, 30, 40), (1, 900, 900), (2000, 5)])
def test_means_of_bools_have_a_scale_of_numbers(shape):
    values = np.random.default_rng(0).random(shape) > 0.5
    axes = drawn(values, "image").axes[0]
    assert axes.images[0].cmap.N > 100
    assert axes.images[0].get_array().max() <= 1


def test_sums_of_bools_are_counts():
    values = np.ones((5, 40), bool)
    axes = drawn(values, LivePlot("line", reduction="sum")).axes[0]
    assert axes.get_ylim()[0] < 40 < axes.get_ylim()[1]


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_dates_are_an_image_whose_colour_bar_names_them(zone):
    days = pd.date_range("1969-11-01", periods=6, freq="30D", tz=zone)
    axes = drawn(list(days), "image", grid(a=[1, 2], b=[1, 2, 3])).axes[0]
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == ("result (Asia/Tokyo)" if zone else "result")
    assert {"Dec", "Feb", "Mar"} <= set(labels(bar.yaxis))
    assert axes.images[0].get_clim()[0] < 0  # no map that diverges from 1970
    assert axes.images[0].cmap(0.0) != axes.images[0].cmap(1.0)
    assert axes.images[0].get_clim()[1] != -axes.images[0].get_clim()[0]


# -- parts of results ------------------------------------------------------------------------------


def titles(figure):
    return [axes.get_title("left").split("\n")[0] for axes in figure.axes if axes.get_title("left")]


@pytest.mark.parametrize("kind", ["line", "hist", "image"])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda i: ("ab"[i % 2], float(i)), ["result[0]", "result[1]"]),
        (lambda i: (float(i), np.full(3, i)), ["result[0]", "result[1]"]),
        (lambda i: {"E": i / 2, "ok": i > 2, "by": "xy"[i % 2]}, ["E", "ok", "by"]),
        (lambda i: (dt.datetime(2026, 1, 1 + i), i), ["result[0]", "result[1]"]),
        (lambda i: {"image": np.full((4, 5), i), "loss": 1 / (1 + i)}, ["image", "loss"]),
    ],
)
def test_parts_of_several_kinds_have_a_panel_each(make, names, kind):
    figure = drawn([make(i) for i in range(6)], kind)
    assert titles(figure) == names


def test_a_part_that_cannot_be_drawn_is_left_out_and_named():
    job = played([{"E": float(i), "by": "x", "model": object()} for i in range(6)], 1)
    figure = LiveFigure(job, "line")
    assert figure.frame(final=True).title == "horizon: 6 of 6, without model"
    assert titles(figure.figure) == ["E", "by"]


def test_a_number_next_to_an_image_is_a_line():
    figure = drawn([{"image": np.full((4, 5), i), "loss": 1 / (1 + i)} for i in range(6)], "image")
    assert figure.axes[0].images
    assert figure.axes[1].lines[0].get_ydata().tolist() == [1 / (1 + i) for i in range(6)]


def test_tuples_of_rows_are_images_next_to_each_other():
    rows = [(np.arange(7.0), i + np.arange(7.0) ** 2) for i in range(4)]
    figure = drawn(rows, "image")
    for k, axes in enumerate(figure.axes):
        assert axes.images[0].get_array().tolist() == [row[k].tolist() for row in rows]


def test_more_than_eight_named_numbers_have_a_panel_each():
    figure = drawn([{f"k{k}": float(k) for k in range(9)} for _ in range(3)], "line")
    assert titles(figure) == [f"k{k}" for k in range(9)]


def test_a_users_function_gets_tuples_of_numbers_as_a_masked_array():
    seen = []
    job = played([(float(i), 2.0 * i) for i in range(4)], 1)
    job.flags[2] = False
    LiveFigure(job, lambda _, partial: seen.append(partial)).frame(final=False)
    assert seen[0].tolist() == [[0, 0], [1, 2], [None, None], [3, 6]]
    job.results = [{"a": 1}] * 4
    LiveFigure(job, lambda _, partial: seen.append(partial)).frame(final=False)
    assert seen[1] == [{"a": 1}, {"a": 1}, MISSING, {"a": 1}]


# -- panels of a grid ------------------------------------------------------------------------------


def test_images_of_a_grid_have_a_panel_for_each_value():
    images = np.random.default_rng(0).random((3, 6, 8))
    figure = drawn(images, "image", grid(current=[0.1, 0.2, 5.0]))
    panels = {axes.get_title("left"): axes for axes in figure.axes if axes.images}
    assert list(panels) == ["current = 0.1", "current = 0.2", "current = 5"]
    for axes, image in zip(panels.values(), images, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), image)
        assert axes.images[0].get_clim() == panels["current = 5"].images[0].get_clim()
    assert figure.axes[-1].get_ylabel() == "result"


def test_images_that_the_user_combines_have_one_plot():
    images = np.random.default_rng(0).random((3, 6, 8))
    figure = drawn(images, LivePlot("image", reduction="max"), grid(a=[0.1, 0.2, 5.0]))
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), images.max(axis=0))


def test_images_of_a_long_axis_are_told_to_be_some():
    job = played(np.zeros((20, 4, 5)), 1)
    job._inputs = grid(a=np.arange(20))
    assert LiveFigure(job, "image").frame(final=True).title.endswith("12 of 20 values of a")


@pytest.mark.parametrize("kind", ["image", "line"])
def test_rows_of_a_grid_of_two_axes_have_panels_of_the_second(kind):
    rows = np.random.default_rng(0).random((6, 3))
    figure = drawn(rows, kind, grid(a=[1.0, 2.0, 3.0], b=["x", "y"]))
    panels = [axes for axes in figure.axes if axes.get_title("left").startswith("b")]
    assert [axes.get_title("left") for axes in panels] == ["b = x", "b = y"]
    if kind == "image":
        np.testing.assert_array_equal(panels[1].images[0].get_array(), rows[1::2])
    else:
        assert panels[1].lines[2].get_ydata().tolist() == rows[1::2, 2].tolist()
        assert panels[1].lines[2].get_xdata().tolist() == [1, 2, 3]


# -- many and long names ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["line", "hist"])
@pytest.mark.parametrize("n", [13, 40])
def test_each_tick_of_many_names_has_one(n, kind):
    results = [f"name {k}" for k in range(n)]
    axis = getattr(drawn(results, kind).axes[0], "yaxis" if kind == "line" else "xaxis")
    shown = labels(axis)
    assert len(shown) == len(axis.get_ticklocs()) >= 5
    assert shown == [results[k] for k in axis.get_ticklocs()]


def test_long_names_of_many_items_are_turned_and_differ():
    names = [f"a name that is long, of the model number {k}" for k in range(14)]
    shown = labels(drawn(np.arange(14.0), items=names).axes[0].xaxis)
    assert len(shown) >= 7
    assert len({*shown}) == len(shown)
    assert all(text.endswith(f"number {2 * k}") for k, text in enumerate(shown))


def test_long_names_of_lines_leave_room_for_the_lines():
    key = "the name of a number that is long "
    figure = drawn([{key + "a": k, key + "b": -k} for k in range(9)])
    (axes,) = figure.axes
    assert axes.bbox.width > figure.bbox.width / 2
    texts = [text.get_text().replace("\n", " ") for text in axes.get_legend().texts]
    assert texts == [key + "a", key + "b"]
