"""Coordinates of items and pixels: uneven and logarithmic axes, dates, and names at the axes."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.dates import date2num, num2date

from nbshare import LivePlot, grid
from nbshare._core.notebook.coordinates import cells_of
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.reading import names_of
from tests.support.played import played

pytestmark = pytest.mark.usefixtures("few_pixels")

LOG = np.geomspace(1e-3, 1e4, 8)
UNEVEN = [0.0, 1.0, 3.0, 4.0, 9.0]


def drawn(results, items=None, plot="image"):
    """Return the axes of the last frame of a run, after the frame."""
    job = played(results, 1)
    job._inputs = items
    figure = LiveFigure(job, plot)
    figure.frame(final=True)
    return figure.figure.axes[0]


def colours_at(axes, places):
    """Return the colours that are drawn at some places in the units of the axes."""
    canvas = axes.figure.canvas
    canvas.draw()
    columns, rows = axes.transData.transform(places).astype(int).T
    pixels = np.asarray(canvas.buffer_rgba())
    return pixels[pixels.shape[0] - 1 - rows, columns, :3].astype(int)


def check_colours(axes, xs, ys, values):
    """Assert that the colour at each pair of coordinates is that of the value there."""
    image = axes.images[0]
    shown = colours_at(axes, [(x, y) for y in ys for x in xs])
    expected = image.cmap(image.norm(np.ravel(values)))[:, :3] * 255
    assert abs(shown - expected).max() <= 2


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


@pytest.mark.parametrize("ys", [UNEVEN, UNEVEN[::-1], [*LOG], [1.0, 2.0, 3.0], [5.0]])
@pytest.mark.parametrize("xs", [UNEVEN, [*LOG[::-1]], [1, 2, 5, 10, 20, 50], [0.0, 1.0]])
def test_each_pixel_of_a_grid_is_at_its_coordinates(xs, ys):
    values = np.random.default_rng(0).random((len(ys), len(xs)))
    axes = drawn(values.ravel(), grid(a=ys, b=xs))
    np.testing.assert_array_equal(axes.images[0].get_array(), values)
    check_colours(axes, xs, ys, values)


@pytest.mark.parametrize("kind", ["numbers", "rows", "images"])
def test_each_pixel_is_at_the_users_coordinates(kind):
    ys, xs = [-1.0, 0.0, 4.0], [1, 10, 100, 1000]
    values = np.random.default_rng(1).random((3, 4))
    results = {"numbers": values.ravel(), "rows": values, "images": values[np.newaxis]}[kind]
    axes = drawn(results, plot=LivePlot("image", x=xs, y=ys, xunit="Hz"))
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel().endswith("(Hz)") or axes.get_xlabel() == "Hz"
    check_colours(axes, xs, ys, values)


def test_edges_are_halfway_between_the_coordinates():
    axes = drawn(np.zeros(15), grid(a=[1.0, 2.0, 3.0], b=UNEVEN))
    assert axes.get_xlim() == (-0.5, 11.5)
    assert axes.get_ylim() == (0.5, 3.5)
    axes = drawn(np.zeros(12), grid(a=[1.0, 2.0, 3.0], b=[1, 10, 100, 1000]))
    assert axes.get_xlim() == pytest.approx((10**-0.5, 10**3.5))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.booleans())
def test_uneven_cells_are_at_their_places_and_only_narrow_ones_may_be_left_out(widths, is_falling):
    edges = np.cumsum([0.0, *widths])
    edges = -edges if is_falling else edges
    n = 500
    cells = cells_of(edges, n)
    middles = edges[0] + (np.arange(n) + 0.5) * (edges[-1] - edges[0]) / n
    for k, cell in enumerate(cells):
        low, high = np.sort(edges[cell : cell + 2])
        part = abs(edges[-1]) / n  # a narrow cell has the part that its middle is in
        assert low - part <= middles[k] <= high + part
    wide = np.flatnonzero(np.array(widths) > 2 * abs(edges[-1]) / n)
    assert set(wide) <= set(cells)


def test_values_of_an_uneven_axis_are_ticks_if_they_have_room():
    axes = drawn(np.zeros(20), grid(a=UNEVEN, b=[1, 20, 50, 90]))
    assert (labels(axes.xaxis), labels(axes.yaxis)) == (["1", "20", "50", "90"], list("01349"))
    axes = drawn(np.zeros(8), grid(a=[1.0, 2.0], b=[1, 2, 3, 1000]))
    assert {"1", "2", "3"} != set(labels(axes.xaxis)[:3])


def test_two_values_of_a_grid_are_the_ticks():
    axes = drawn(np.arange(4.0), grid(a=[10, 5], b=[0.25, 2]))
    assert (labels(axes.yaxis), labels(axes.xaxis)) == (["10", "5"], ["0.25", "2"])
    axes = drawn(np.arange(4.0), grid(a=[10, 5], b=[0.25, 2]), "line")
    assert sorted(labels(axes.xaxis)) == ["10", "5"]


def test_a_single_value_of_a_grid_is_the_only_tick():
    """And not numbers around it, at which there is nothing."""
    axes = drawn(np.arange(3.0), grid(a=[5.0], b=[1, 2, 3]))
    assert labels(axes.yaxis) == ["5"]


@pytest.mark.parametrize("kind", ["image", "line"])
@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (LOG, "log"),
        (LOG[::-1], "log"),
        ([1, 2, 5, 10, 20, 50, 100], "log"),
        ([2**k for k in range(9)], "log"),
        (np.linspace(1, 100, 9), "linear"),
        (np.arange(9) ** 2, "linear"),
        ([-1.0, 10, 100], "linear"),
        ([1.0, 100.0], "linear"),
    ],
)
def test_values_that_are_even_on_a_log_axis_have_one(values, scale, kind):
    axes = drawn(np.arange(2.0 * len(values)), grid(x=values, a=[1.0, 2.0]), kind)
    assert (axes.get_yscale() if kind == "image" else axes.get_xscale()) == scale
    axes = drawn(np.ones((len(values), 3)), list(values), kind)
    assert (axes.get_yscale() if kind == "image" else axes.get_xscale()) == scale


@pytest.mark.parametrize("n", [8, 60])
def test_ticks_of_a_log_grid_do_not_overlap(n):
    axes = drawn(np.zeros(2 * n), grid(a=[1.0, 2.0], b=np.geomspace(1e-8, 1e8, n)))
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    boxes = [box for box in boxes if axes.bbox.x0 - 1 <= box.x1 and box.x0 <= axes.bbox.x1 + 1]
    assert len(boxes) >= 3
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_uneven_dates_are_on_a_date_axis():
    days = pd.to_datetime(["2026-01-01", "2026-01-05", "2026-02-10", "2026-03-01"])
    values = np.random.default_rng(0).random((3, 4))
    axes = drawn(values.ravel(), grid(a=[1.0, 2, 3], day=days))
    assert [num2date(x).month for x in axes.get_xlim()] == [12, 3]
    check_colours(axes, date2num(days), [1, 2, 3], values)


@pytest.mark.parametrize("kind", ["image", "line"])
def test_dates_of_a_grid_keep_their_zone(kind):
    days = pd.date_range("2026-01-01", periods=6, freq="h", tz="Asia/Tokyo")
    axes = drawn(np.arange(6.0), grid(time=days), kind)
    assert axes.get_xlabel() == "time (Asia/Tokyo)"
    assert "05:00" in labels(axes.xaxis) or "03:00" in labels(axes.xaxis)
    low, high = axes.get_xlim()
    assert low < date2num(days[0]) < date2num(days[-1]) < high


def test_durations_of_a_grid_have_a_unit():
    hours = [dt.timedelta(hours=k) for k in (1, 2, 6, 24)]
    axes = drawn(np.arange(8.0), grid(a=[1.0, 2.0], t=hours))
    assert axes.get_xlabel() == "t (h)"
    assert labels(axes.xaxis) == ["1", "2", "6", "24"]


def test_values_in_no_order_are_names():
    axes = drawn(np.arange(6.0), grid(a=[3.0, 1.0, 2.0], b=["x", "y"]))
    axes.figure.canvas.draw()
    assert (labels(axes.yaxis), labels(axes.xaxis)) == (["3", "1", "2"], ["x", "y"])


def test_rows_of_an_image_are_at_their_uneven_items():
    rows = np.random.default_rng(0).random((4, 5))
    axes = drawn(rows, [0.1, 1.0, 10.0, 100.0])
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "input")
    check_colours(axes, range(5), [0.1, 1.0, 10.0, 100.0], rows)
    many = np.linspace(0, 10, 3000) ** 2
    axes = drawn(np.repeat(np.arange(3000.0)[:, np.newaxis], 4, axis=1), many)
    image = axes.images[0]
    ys = np.array([5.0, 30.0, 90.0])
    shown = colours_at(axes, [(1, y) for y in ys])
    expected = image.cmap(image.norm(np.searchsorted(many, ys)))[:, :3] * 255
    assert abs(shown - expected).max() < 12


@pytest.mark.parametrize("shape", [(5, 900), (900, 5)])
def test_few_wide_pixels_next_to_many_narrow_ones_keep_their_colours(shape):
    values = np.random.default_rng(0).random(5)
    whole = np.broadcast_to(values[:, None] if shape[0] == 5 else values, shape)
    axes = drawn(whole[np.newaxis])
    ks = np.repeat(range(5), 2)
    along, across = ks + np.tile([-0.3, 0.3], 5), np.full(10, 450)
    shown = colours_at(axes, np.transpose([across, along] if shape[0] == 5 else [along, across]))
    image = axes.images[0]
    expected = image.cmap(image.norm(values[ks]))[:, :3] * 255
    assert abs(shown - expected).max() <= 2


def test_minor_ticks_are_readable_in_dark_themes():
    axes = drawn(np.ones(40), grid(x=np.geomspace(1, 100, 40)), "line")
    (tick, *_) = axes.xaxis.get_minor_ticks()
    assert tick.tick1line.get_color() == "#999999"


def test_a_nan_in_an_uneven_image_is_at_its_place():
    values = np.random.default_rng(0).random((3, 5))
    values[1, 2] = np.nan
    axes = drawn(values, plot=LivePlot("image", x=UNEVEN))
    missing, present = colours_at(axes, [(3.0, 1), (4.0, 1)])
    assert (missing == 0xBB).all()
    assert not (present == 0xBB).all()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.linspace(0, 2.25, 7), ["0", "0.375", "0.75", "1.125", "1.5", "1.875", "2.25"]),
        ([0.1, 0.2, 0.1 + 0.2], ["0.1", "0.2", "0.3"]),
        (np.array([1, 4, 5]) / 7, ["0.143", "0.571", "0.714"]),
        ([1000.04, 1000.06], ["1000.04", "1000.06"]),
    ],
)
def test_names_of_numbers_are_exact_if_they_are_short(values, names):
    """Otherwise they have as few digits as tell them apart."""
    assert names_of(np.array(values)) == names


WAVELENGTHS = np.linspace(400.0, 700.0, 31)
DAYS = pd.date_range("2026-01-01", periods=30)


def spectrum(i):
    """Return an array of xarray, with a name, a unit and coordinates."""
    xr = pytest.importorskip("xarray")
    of = xr.Variable("w", WAVELENGTHS, {"long_name": "wavelength", "units": "nm"})
    return xr.DataArray(np.full(31, float(i)), {"w": of}, ("w",), "flux", {"units": "Jy"})


@pytest.mark.parametrize(
    ("make", "x", "names"),
    [
        (spectrum, WAVELENGTHS, ("wavelength (nm)", "flux (Jy)")),
        (lambda i: pd.Series(np.full(31, i), WAVELENGTHS), WAVELENGTHS, ("element", "result")),
        (lambda i: pd.Series(np.full(30, i), DAYS, name="n"), date2num(DAYS), ("element", "n")),
    ],
)
def test_rows_have_their_own_coordinates_below_and_their_name_at_the_colours(make, x, names):
    axes = drawn([make(i) for i in range(4)])
    half = (x[1] - x[0]) / 2
    assert axes.get_xlim() == pytest.approx((x[0] - half, x[-1] + half))
    assert (axes.get_xlabel(), axes.images[0].colorbar.ax.get_ylabel()) == names


def test_images_have_their_own_coordinates_at_both_axes():
    xr = pytest.importorskip("xarray")
    coords = {"t": [10, 20, 30], "w": WAVELENGTHS}
    image = xr.DataArray(np.random.default_rng(0).random((3, 31)), coords, ("t", "w"))
    axes = drawn([image] * 4)
    assert axes.get_ylim() == (5, 35)
    assert axes.get_xlim() == pytest.approx((395, 705))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("w", "t")


def test_columns_of_a_table_have_their_names_and_short_rows_a_line_for_each_value():
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    axes = drawn([table] * 4)
    axes.figure.draw_without_rendering()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b"]
    line = drawn([pd.Series([1.0, 2.0], pd.Index([0.5, 1.5], name="z"))] * 4, plot="line")
    assert line.get_legend().get_title().get_text() == "z"
    assert [text.get_text() for text in line.get_legend().texts] == ["0.5", "1.5"]


@pytest.mark.parametrize("name", ["fit", "n"])
def test_parts_of_a_part_are_drawn(name):
    results = [{"fit": {"mean": float(i), "std": 1.0}} for i in range(4)]
    results = [{**result, "n": {"mean": 0.0, "std": 0.0}} for result in results]
    results = [{"fit": result["fit"]} if name == "fit" else result for result in results]
    axes = drawn(results, plot="line")
    names = [text.get_text() for text in axes.get_legend().texts]
    assert names == (["fit.mean", "fit.std"] if name == "fit" else ["fit", "n"])
    middle = axes.lines[0].get_ydata().tolist()
    assert middle == ([0, 1, 2, 3] if name == "fit" else [0.5, 1, 1.5, 2])
