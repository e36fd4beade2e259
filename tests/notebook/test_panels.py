"""Small panels, for the further axes of a grid and for parts of results with names."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.dates import date2num

from nbshare import LivePlot, grid, map_async
from nbshare._core.notebook.figure import LiveFigure
from tests.support.grids import combined
from tests.support.played import played

pytestmark = pytest.mark.usefixtures("few_pixels")

A, B = [0.0, 1.0, 2.0], [10, 20]


def panels(results, items, plot="image", share=1.0):
    """Return the axes of each panel, by its title, and the text of the frame."""
    job = played(results, share)
    job._inputs = items
    figure = LiveFigure(job, plot)
    figure.frame(final=False)
    job.flags[:] = True
    frame = figure.frame(final=True)
    titles = [axes.get_title("left").replace("\n", " ") for axes in figure.figure.axes]
    return dict(zip(titles, figure.figure.axes, strict=True)), frame


def test_a_third_axis_of_a_grid_has_a_panel_for_each_value():
    values = np.random.default_rng(0).random((3, 2, 4))
    axes, frame = panels(values.ravel(), grid(a=A, b=B, c=[1, 2, 3, 4]), share=0.4)
    assert frame.title == "horizon: 24 of 24"
    shown = [name for name in axes if name]
    assert shown == ["c = 1", "c = 2", "c = 3", "c = 4"]
    for k, name in enumerate(shown):
        np.testing.assert_array_equal(axes[name].images[0].get_array(), values[..., k])
        assert axes[name].images[0].get_clim() == axes["c = 1"].images[0].get_clim()
    assert axes["c = 3"].get_xlabel() == "b"
    assert axes["c = 3"].get_ylabel() == "a"


def test_two_further_axes_make_columns_and_rows():
    values = np.random.default_rng(0).random((3, 2, 3, 2))
    axes, _ = panels(values.ravel(), grid(a=A, b=B, c=["x", "y", "z"], d=[0.5, 1.5]))
    np.testing.assert_array_equal(axes["c = y, d = 1.5"].images[0].get_array(), values[:, :, 1, 1])
    places = {name: each.get_position() for name, each in axes.items() if name}
    assert places["c = x, d = 0.5"].y0 == places["c = y, d = 0.5"].y0
    assert places["c = x, d = 0.5"].x0 == places["c = x, d = 1.5"].x0


def test_panels_of_lines_have_a_line_for_each_value_of_the_second_axis():
    values = np.random.default_rng(0).random((3, 2, 2))
    axes, _ = panels(values.ravel(), grid(a=A, b=B, c=[1, 2]), "line")
    for k in (0, 1):
        lines = axes[f"c = {k + 1}"].lines
        assert [line.get_ydata().tolist() for line in lines] == values[..., k].T.tolist()
        assert lines[0].get_xdata().tolist() == A


def test_panels_that_do_not_fit_are_left_out_and_told():
    values = np.arange(3.0 * 2 * 30)
    axes, frame = panels(values, grid(a=A, b=B, c=range(30)))
    assert frame.title == "horizon: 180 of 180, 12 of 30 values of c"
    names = [name for name in axes if name]
    assert len(names) == 12
    assert {"c = 0", "c = 29"} <= set(names)


@pytest.mark.parametrize("kind", ["image", "line"])
@pytest.mark.parametrize("shape", [(30,), (3,), (5, 6)])
def test_arrays_over_four_axes_have_panels_for_the_further_axes(kind, shape):
    """As many as fit, the others are told, and none is drawn against the number of the item."""
    items = grid(a=A, b=B, c=range(5), d=["u", "v", "w"])
    values = np.arange(90.0).reshape(90, *[1] * len(shape)) + np.zeros(shape)
    axes, frame = panels(values, items, kind)
    titles = [title for title in axes if title]
    assert len(titles) == 12
    assert "values of" in frame.title
    assert "item" not in {axes[title].get_xlabel() for title in titles}
    for title in titles:
        point = dict(part.split(" = ") for part in title.split(", "))
        of = [k for k, item in enumerate(items) if point.items() <= _texts(item).items()]
        panel = axes[title]
        drawn = panel.images[0].get_array() if kind == "image" else panel.lines[0].get_ydata()
        assert {*np.ravel(drawn)} <= {*of}


def _texts(item):
    return {name: f"{value:g}" if name in "abc" else value for name, value in item.items()}


@pytest.mark.parametrize("kind", ["image", "line"])
@pytest.mark.parametrize("n_axes", [5, 6, 9])
def test_panels_of_a_grid_of_many_axes_say_which_values_are_left_out(n_axes, kind):
    coords = dict(zip("abcdefghi", [A, B, [1, 2, 3, 4], *[[0, 1]] * 6], strict=True))
    points = grid(**{name: coords[name] for name in "abcdefghi"[:n_axes]})
    values = np.random.default_rng(0).random((3, 2, 4, *[2] * (n_axes - 3)))
    axes, frame = panels(values.ravel(), points, kind)
    titles = [title for title in axes if title]
    assert len(titles) == 12
    for title in titles:
        at = [int(text.partition(" = ")[2]) for text in title.split(", ")]
        expected = values[(..., at[0] - 1, *at[1:])]
        image, lines = axes[title].images, axes[title].lines
        shown = image[0].get_array() if image else np.transpose([x.get_ydata() for x in lines])
        np.testing.assert_array_equal(shown, expected)
    shown = {part for title in titles for part in title.split(", ")}
    for name in "cdefghi"[: n_axes - 2]:
        n_shown = len({part for part in shown if part.startswith(name)})
        remark = f", {n_shown} of {len(coords[name])} values of {name}"
        assert (remark in frame.title) == (n_shown < len(coords[name]))


@pytest.mark.parametrize("value", [None, lambda result: result["fit"]])
def test_parts_of_results_on_a_grid_have_a_panel_each(value):
    results = [{"E": float(i), "n": -1.0 * i} for i in range(6)]
    results = results if value is None else [{"fit": result} for result in results]
    axes, _ = panels(results, grid(a=A, b=B), LivePlot("image", value=value))
    assert axes["E"].images[0].get_array().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert axes["n"].images[0].get_clim() == (-5, 0)


def test_images_of_parts_over_a_grid_fill_their_places():
    """As those of one number do, because pixels that are squares would be tiny."""
    results = [{"E": float(i), "n": -1.0 * i} for i in range(12)]
    axes, _ = panels(results, grid(a=range(6), b=B))
    assert axes["E"].get_aspect() == axes["n"].get_aspect() == "auto"


@pytest.mark.parametrize("kind", ["image", "line"])
def test_parts_over_a_grid_of_three_axes_have_a_panel_for_each_value_of_the_third(kind):
    """No panel shows values of several axes as the rows of one."""
    points = grid(a=A, b=B, c=["u", "v"])
    rows = [{"mean": a * b, "text": c} for a in A for b in B for c in "uv"]
    axes, _ = panels(rows, points, kind)
    titles = [f"{part}, c = {c}" for part in ("mean", "text") for c in "uv"]
    assert [title for title in axes if title] == titles
    expected = np.multiply.outer(A, B)
    for c in "uv":
        one = axes[f"mean, c = {c}"]
        if kind == "image":
            assert np.array_equal(one.images[0].get_array(), expected)
        else:
            assert np.array_equal([line.get_ydata() for line in one.lines], expected.T)


def test_rows_and_volumes_that_are_parts_have_panels_of_their_own():
    points = grid(a=A, b=B)
    rows = [{"row": np.arange(9.0) + a, "cube": np.ones((2, 5, 5))} for a in A for b in B]
    axes, _ = panels(rows, points)
    assert [title for title in axes if title] == [
        "row, b = 10",
        "row, b = 20",
        "cube[0]",
        "cube[1]",
    ]


def test_images_with_names_have_a_panel_each():
    results = [{"before": np.full((4, 5), i), "after": np.full((4, 5), -i)} for i in range(3)]
    axes, _ = panels(results, range(3), share=0.4)
    assert (axes["before"].images[0].get_array() == 1).all()
    assert (axes["after"].images[0].get_array() == -1).all()


def test_slices_of_volumes_have_a_panel_each_on_one_scale():
    results = np.random.default_rng(0).normal(size=(3, 20, 4, 5))
    axes, frame = panels(results, range(3))
    assert frame.title == "horizon: 3 of 3, 12 of 20 slices"
    np.testing.assert_allclose(axes["result[19]"].images[0].get_array(), results[:, 19].mean(0))
    ((low, high),) = {axes[f"result[{k}]"].images[0].get_clim() for k in (0, 2, 19)}
    largest = abs(results.mean(0)).max()
    assert -low == high < 1.3 * largest  # not that of single results


def test_panels_of_parts_name_them_at_the_axis():
    results = [{"a name of many letters": np.arange(9.0), "when": "later"} for _ in range(3)]
    axes, _ = panels(results, range(3), "line")
    label = axes["a name of many letters"].get_ylabel()
    assert label.replace("\n", " ") == "mean of each a name of many l…"
    assert axes["when"].get_ylabel() == "when"


def test_histograms_of_parts_with_names_are_apart():
    results = [{"mean": float(i), "std": 100.0 + i} for i in range(20)]
    axes, _ = panels(results, range(20), "hist")
    assert axes["mean"].get_xlim()[1] < 30 < 90 < axes["std"].get_xlim()[0]


# -- texts have room -------------------------------------------------------------------------------


def overlapping(figure):
    """Return the labels of ticks that reach into the next one, and titles beyond the figure."""
    figure._canvas.draw()
    found, (_, _, width, height) = [], figure.figure.bbox.bounds
    every = [each for axes in figure.figure.axes for each in (axes, *axes.child_axes)]
    for k, axis in [pair for axes in every for pair in enumerate((axes.xaxis, axes.yaxis))]:
        labels = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=False)
        low, high = sorted(axis.get_view_interval())
        shown = [(label, label.get_window_extent()) for at, label in labels if low <= at <= high]
        shown = [each for each in shown if each[0].get_text() and not each[0].get_rotation()]
        shown.sort(key=lambda each: each[1].get_points()[0][k])
        for (label, one), (_, other) in pairwise(shown):
            if one.get_points()[1][k] > other.get_points()[0][k] + 0.5:
                found.append(label.get_text())
    titles = [axes._left_title for axes in every if axes._left_title.get_text()]
    for title in titles:
        box = title.get_window_extent()
        if min(box.x0, box.y0, width - box.x1, height - box.y1) < -1:
            found.append(title.get_text())
    return found


LONG = [f"category {c}" for c in "abcdefgh"]
HOURS = pd.date_range("2026-01-01", periods=5, freq="h")
VALUES = {
    "numbers": float,
    "images": lambda i: np.full((30, 40), i),
    "names": lambda i: {"a name that is long": i, "b": 2 * i, "another name": 3},
    "parts": lambda i: {"image": np.full((20, 30), i), "n": i, "text": "ab"[i % 2]},
}


@pytest.mark.parametrize(
    ("make", "items", "plot"),
    combined(
        VALUES,
        [grid(alpha=np.linspace(0.1, 9.9, 7), beta=LONG), grid(a=HOURS, b=[1e-6, 1.0, 1e6])],
        ["line", "image", ["line", "image"]],
        soak=True,
    ),
)
def test_texts_at_the_axes_and_above_panels_have_room(make, items, plot):
    """Also under images that are narrower than their place, and next to other plots."""
    results = [VALUES[make](i) for i in range(len(items))]
    job = played(results, 1)
    job._inputs = items
    figure = LiveFigure(job, plot)
    figure.frame(final=True)
    assert overlapping(figure) == []


def test_lines_of_parts_in_panels_have_one_legend():
    points = grid(a=A, b=B)
    axes, _ = panels([{"mean": a, "error": b} for a in A for b in B], points, "line")
    figure = axes["b = 10"].figure
    assert [each.get_legend() for each in axes.values()] == [None, None]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["mean", "error"]


def test_panels_among_several_plots_have_a_row_of_their_own():
    points = grid(a=A, b=B, c=[1, 2, 3])
    results = np.arange(18.0)
    job = played(results, 1)
    job._inputs = points
    figure = LiveFigure(job, ["image", "hist"])
    frame = figure.frame(final=True)
    assert frame.size[0] == 760
    first, last = figure.figure.axes[0], figure.figure.axes[-1]
    assert first.get_window_extent().y0 > last.get_window_extent().y1
    assert last.get_window_extent().width > 500


def test_named_numbers_over_a_grid_of_four_axes_have_panels():
    """No line goes through the values of several axes as if they were one."""
    points = grid(a=A, b=B, c=[1, 2], d=["u", "v"])
    rows = [{"mean": a * b, "error": c} for a in A for b in B for c in (1, 2) for _ in "uv"]
    axes, _ = panels(rows, points, "line")
    assert len([title for title in axes if title]) == 8
    lines = axes["mean, c = 1, d = u"].lines
    assert np.array_equal([line.get_ydata() for line in lines], np.multiply.outer(B, A))


# -- the one result of reduce= -------------------------------------------------------------------


class ReducedJob:
    """A job whose one result is that of all items so far."""

    label, state, n_items, _inputs, _is_reduced, _is_enough = "sum", "running", 9, None, True, False
    n_done, value = 0, None

    def _folded(self):
        return self.n_done, self.value


@pytest.mark.parametrize(
    ("make", "names"), [(float, []), (lambda n: {"mean": n, "error": 1 / n}, ["mean", "error"])]
)
def test_a_reduced_number_is_drawn_against_the_number_of_items(make, names):
    job = ReducedJob()
    figure = LiveFigure(job, "line")
    for n in (2, 5, 9):
        job.n_done, job.value = n, make(n)
        figure.frame(final=n == 9)
    (axes,) = figure.figure.axes
    assert axes.lines[0].get_data()[0].tolist() == [2, 5, 9]
    assert axes.lines[0].get_data()[1].tolist() == [2, 5, 9]
    assert axes.get_xlabel() == "items"
    if names:
        assert [text.get_text() for text in axes.get_legend().texts] == names
        assert axes.lines[1].get_ydata().tolist() == [1 / 2, 1 / 5, 1 / 9]


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_a_reduced_tuple_of_unlike_parts_has_a_panel_each(kind):
    job = ReducedJob()
    figure = LiveFigure(job, kind)
    for n in (2, 9):
        job.n_done, job.value = n, (np.full(3, n), float(n))
        figure.frame(final=n == 9)
    titles = [axes.get_title("left") for axes in figure.figure.axes]
    assert [title for title in titles if title] == ["result[0]", "result[1]"]
    if kind != "hist":
        assert figure.figure.axes[1].lines[0].get_ydata().tolist() == [9]


def test_a_reduced_tuple_of_numbers_is_drawn_against_the_number_of_items():
    job = ReducedJob()
    figure = LiveFigure(job, "line")
    for n in (2, 9):
        job.n_done, job.value = n, (float(n), 1 / n)
        figure.frame(final=n == 9)
    (axes,) = figure.figure.axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[2, 9], [1 / 2, 1 / 9]]


def test_a_threshold_is_next_to_the_reduced_number():
    job = ReducedJob()
    figure = LiveFigure(job, LivePlot(threshold=0.1))
    for n in (2, 9):
        job.n_done, job.value = n, 1 / n
        figure.frame(final=n == 9)
    (axes,) = figure.figure.axes
    assert [line.get_ydata()[-1] for line in axes.lines] == [1 / 9, 0.1]
    assert axes.get_ylim()[0] < 0.1


def test_a_single_point_of_a_reduced_number_has_its_place():
    job = ReducedJob()
    job.n_done, job.value = 9, 0.5
    figure = LiveFigure(job, "line")
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    assert {0, 8} <= set(axes.get_xticks())


@pytest.mark.parametrize(("kind", "value"), [("image", 0.5), ("line", np.ones(20))])
def test_a_plot_of_one_reduced_value_keeps_no_other(kind, value):
    job = ReducedJob()
    figure = LiveFigure(job, kind)
    for n in (2, 9):
        job.n_done, job.value = n, value
        figure.frame(final=n == 9)
    assert figure._trend == []


def test_points_of_a_long_run_are_thinned():
    job = ReducedJob()
    figure = LiveFigure(job, "line")
    for n in range(1, 20_000):
        job.n_done, job.value = n, float(n)
        figure.note()
    numbers = [n for n, _ in figure._trend]
    assert numbers == [value for _, value in figure._trend]
    assert (numbers[0], numbers[-1]) == (1, 19_999)
    assert len(numbers) < 2000
    assert max(np.diff(numbers)) < 20_000 / 300  # two pixels


def test_each_point_of_a_reduced_number_is_at_the_number_of_items_in_it():
    job = map_async(float, [1.0] * 3000, reduce=np.add, backend="threads", progress=False)
    figure = LiveFigure(job, "line")
    while not job.done():
        figure.note()
    figure.frame(final=True)
    (line,) = figure.figure.axes[0].lines
    np.testing.assert_array_equal(*line.get_data())
    assert line.get_xdata()[-1] == 3000


def test_a_reduced_array_is_drawn_by_its_elements():
    job = ReducedJob()
    job.n_done, job.value = 9, np.arange(20.0)
    figure = LiveFigure(job, "line")
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    assert axes.get_xlabel() == "element"
    assert axes.lines[0].get_ydata().tolist() == job.value.tolist()


WAVES = np.linspace(400.0, 700.0, 31)
FLUX = xr.DataArray(
    np.sin(WAVES / 50),
    coords={"wave": ("wave", WAVES, {"units": "nm"})},
    name="flux",
    attrs={"units": "Jy"},
)
DAY = np.arange(5) * np.timedelta64(1, "s")
DAYS = pd.Series(np.arange(31.0), pd.date_range("2026-03-01", periods=31, name="day"), name="sum")


@pytest.mark.parametrize("kind", ["line", "image"])
@pytest.mark.parametrize(
    ("result", "x", "names"),
    [
        (FLUX, WAVES, ("wave (nm)", "flux (Jy)")),
        (DAYS, date2num(DAYS.index), ("day", "sum")),
        (np.ma.masked_less(WAVES, 500), np.arange(31), ("element", "result")),
    ],
)
def test_a_reduced_array_keeps_its_coordinates_name_and_unit(kind, result, x, names):
    """The axes are those of the result, as those of each result are without `reduce=`."""
    job = ReducedJob()
    job.n_done, job.value = 9, result
    figure = LiveFigure(job, kind)
    figure.frame(final=True)
    axes, *bar = figure.figure.axes + figure.figure.axes[0].child_axes
    at_x = figure._cells()[0].x.firsts
    assert at_x.tolist() == x.tolist()
    assert (axes.get_xlabel(), (bar or [axes])[0].get_ylabel()) == names


def test_a_reduced_image_keeps_its_coordinates_at_both_axes():
    lat, lon = np.arange(-20.0, 21, 10), np.arange(0.0, 70, 10)
    job = ReducedJob()
    job.n_done = 9
    job.value = xr.DataArray(np.ones((5, 7)), coords={"lat": lat, "lon": lon})
    figure = LiveFigure(job, "image")
    figure.frame(final=True)
    (cells,) = figure._cells()
    assert (cells.x.firsts.tolist(), cells.y.firsts.tolist()) == (lon.tolist(), lat.tolist())


def test_a_line_of_a_reduced_image_shows_the_mean_of_each_row():
    job = ReducedJob()
    job.n_done, job.value = 9, np.arange(60.0).reshape(4, 15)
    figure = LiveFigure(job, "line")
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    assert axes.lines[0].get_ydata().tolist() == job.value.mean(axis=1).tolist()
    assert axes.get_ylabel() == "mean of each row"


@pytest.mark.parametrize("shape", [(20, 600), (600, 20), (1, 50), (50, 1)])
def test_a_strip_fills_the_plot(shape):
    figure = LiveFigure(played(np.zeros((2, *shape)), 1), "image")
    figure.frame(final=True)
    box = figure.figure.axes[0].get_window_extent()
    assert box.width > 400
    assert box.height > 250
    sides = zip(shape, (figure.figure.axes[0].yaxis, figure.figure.axes[0].xaxis), strict=True)
    assert all(len(axis.get_ticklocs()) == 0 for n, axis in sides if n == 1)


def test_a_long_title_and_label_are_wrapped():
    plot = LivePlot("line", title="a long title of words " * 9, label="a long label of words " * 5)
    figure = LiveFigure(played(np.arange(5.0), 1), plot)
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    figure.figure.draw_without_rendering()
    for text in (axes._left_title, axes.yaxis.label):
        box = text.get_window_extent()
        assert figure.figure.bbox.x0 <= box.x0 <= box.x1 <= figure.figure.bbox.x1
        assert figure.figure.bbox.y0 <= box.y0 <= box.y1 <= figure.figure.bbox.y1


@pytest.mark.parametrize("make", [lambda k: np.timedelta64(10**k, "s"), lambda k: DAY * 10**k])
@pytest.mark.parametrize("kind", ["line", "image"])
def test_reduced_durations_that_grow_have_the_unit_of_the_last(make, kind):
    job = ReducedJob()
    figure = LiveFigure(job, kind)
    for n in range(1, 7):
        job.n_done, job.value = n, make(n)
        figure.frame(final=n == 6)
    (cells,) = figure._cells()
    days = np.ravel(make(6) / np.timedelta64(1, "D"))
    assert cells.values.ravel()[-days.size :] == pytest.approx(days)
    assert cells.names == ["result (d)"]


def test_a_line_of_a_reduced_table_names_its_columns():
    job = ReducedJob()
    job.n_done, job.value = 9, pd.DataFrame({"low": np.arange(9.0), "high": np.arange(9.0) + 1})
    figure = LiveFigure(job, "line")
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    assert [text.get_text() for text in axes.get_legend().texts] == ["low", "high"]
    assert axes.get_ylabel() == "result"


def test_reduced_durations_keep_the_unit_of_the_longest():
    job = ReducedJob()
    figure = LiveFigure(job, "line")
    for n, (count, unit) in enumerate([(90, "D"), (60, "s"), (60_000, "ms")], 1):
        job.n_done, job.value = n, np.timedelta64(count, unit)
        figure.frame(final=n == 3)
    (axes,) = figure.figure.axes
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([90, 1 / 1440, 1 / 1440])
    assert axes.get_ylabel() == "result (d)"
