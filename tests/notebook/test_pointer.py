"""The values that a picture carries, which a page shows under the pointer."""

from __future__ import annotations

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from nbshare import LivePlot, grid, map_async
from nbshare._core.notebook.figure import LiveFigure, ResultFigure
from tests.support import tasks
from tests.support.played import played


def carried(frame):
    """Return the tables of a picture, as the page's script reads them."""
    png = frame.png
    assert png[37:41] == b"nbVL"
    (length,) = struct.unpack(">I", png[33:37])
    whole = zlib.decompress(png[41 : 41 + length])
    (n,) = struct.unpack(">I", whole[:4])
    tables, start = json.loads(whole[4 : 4 + n]), 4 + n
    for table in tables:
        size = int(np.prod(table["shape"]))
        planes = np.frombuffer(whole, np.uint8, 4 * size, start).reshape(4, -1)
        table["bytes"] = planes
        halves = np.ascontiguousarray(planes.T).view(">u4").ravel().astype(np.uint64)
        table["values"] = (halves << np.uint64(32)).view(np.float64).reshape(table["shape"])
        start += 4 * size
    return tables


def table_of(results, plot, part=1):
    (table,) = carried(LiveFigure(played(results, part), plot).frame(final=True))
    return table


def numbers(texts):
    return [float(text.split(" = ")[1].split()[0]) for text in texts]


@pytest.mark.parametrize("seed", range(5))
def test_every_pixel_has_the_arrays_value_and_its_coordinates(seed):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(2, 300, 2).tolist()
    results = rng.standard_normal((height, width)) * 10.0 ** rng.integers(-200, 200)
    x, y = np.linspace(-3, 7, width), np.linspace(1, 2, height)
    plot = LivePlot("image", x=x, y=y, xlabel="time", xunit="s", label="height", unit="m")
    table = table_of(results, plot)
    np.testing.assert_allclose(table["values"][..., 0], results, rtol=5e-5)
    np.testing.assert_allclose(numbers(table["x"]["texts"]), x, atol=10 / width / 50)
    np.testing.assert_allclose(numbers(table["y"]["texts"]), y, atol=1 / height / 50)
    assert table["x"]["texts"][-1] == "time = 7 s"
    assert table["names"] == [["height", "m"]]
    assert table["note"] == ""


def test_the_places_are_those_of_the_pixels_in_the_picture():
    """The upper left quarter of the axes is the only dark one."""
    results = np.array([[0.0, 1.0], [1.0, 1.0]])
    figure = LiveFigure(played(results, 1), LivePlot("image", label="x"))
    frame = figure.frame(final=True)
    (table,) = carried(frame)
    picture = np.asarray(Image.open(io.BytesIO(frame.png)).convert("RGB")).astype(int)
    across, down = (np.array(table[axis]["at"]) / 1e4 for axis in "xy")
    for row, y in enumerate((down[1:] + down[:-1]) / 2):
        for column, x in enumerate((across[1:] + across[:-1]) / 2):
            red = picture[int(y * picture.shape[0]), int(x * picture.shape[1]), 0]
            assert (red > 200) == bool(results[row, column])


def test_a_large_image_has_means_of_blocks_and_says_so():
    results = np.random.default_rng(0).random((500, 700))
    table = table_of(results, LivePlot("image"))
    rows, columns, _ = table["shape"]
    down, right = -(-500 // rows), -(-700 // columns)
    assert table["note"] == f"mean of {down} × {right} pixels"
    last = results[(rows - 1) * down :, :right].mean(), results[:down, :right].mean()
    np.testing.assert_allclose(table["values"][[-1, 0], 0, 0], last, rtol=5e-5)
    assert table["x"]["texts"][:1] == [f"element = 0 to {right - 1}"]
    assert table["y"]["texts"][-1].endswith(" to 499")


def test_the_greatest_of_a_block_stays_with_that_reduction():
    results = np.zeros((2000, 300))
    results[1234, 56] = 100.0
    table = table_of(results[None], LivePlot("image", reduction="max"))
    assert table["values"].max() == 100


def test_nan_infinities_and_missing_results_are_told_apart():
    results = np.array([[1.5, np.nan], [np.inf, -np.inf], [0.0, 0.0]])
    table = table_of(results, LivePlot("image"), 2 / 3)
    values, first_bytes = table["values"][..., 0], table["bytes"][0].reshape(3, 2)
    np.testing.assert_array_equal(values[:2], results[:2])
    assert (np.isnan(values) & (first_bytes == 255)).tolist() == [[False] * 2] * 2 + [[True] * 2]


def test_numbers_without_coordinates_are_named_by_their_item():
    table = table_of(np.arange(10.0), LivePlot("image"))
    assert table["items"] == [1, 10]
    assert table["values"].ravel()[:10].tolist() == [*range(10)]


def test_points_of_a_line_have_the_names_of_its_axes():
    dates = np.arange("2026-01-01", "2026-01-04", dtype="M8[D]")
    results = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 123456.0]])
    table = table_of(results, LivePlot("line", x=dates, xlabel="day", unit="m"))
    assert table["x"]["texts"] == [f"day = 2026-01-0{day}" for day in (1, 2, 3)]
    assert table["names"] == [["result[0]", "m"], ["result[1]", "m"]]
    assert table["values"][..., 0].tolist() == results.T.tolist()


def test_lines_of_a_grid_tell_the_value_of_its_second_axis():
    job = map_async(tasks.add, grid(x=[1, 2, 3], y=[10, 20]), backend="threads")
    job.wait()
    (table,) = carried(LiveFigure(job, "line").frame(final=True))
    assert table["rows"] == ["y = 10", "y = 20"]
    assert table["values"][..., 0].tolist() == [[11, 12, 13], [21, 22, 23]]


def test_a_long_line_has_the_lowest_and_the_highest_of_some_points():
    results = np.random.default_rng(0).random(10_000)
    table = table_of(results, LivePlot("line"))
    ends = [(part.min(), part.max()) for part in np.split(results, 2000)]
    np.testing.assert_allclose(table["values"][0], ends, rtol=5e-5)
    assert table["x"]["texts"][:2] == ["item = 0 to 4", "item = 5 to 9"]


def test_pixels_at_uneven_coordinates_are_where_the_axis_has_them():
    """Edges are halfway between the coordinates, on the scale of each axis."""
    results = np.arange(12.0).reshape(3, 4)
    x, y = np.array([0.0, 1.0, 2.0, 10.0]), np.array([1.0, 10.0, 1000.0])
    plot = LivePlot("image", x=x, y=y, xlabel="time", ylabel="pressure", yunit="Pa")
    figure = LiveFigure(played(results[None], 1), plot)
    (table,) = carried(figure.frame(final=True))
    (axes, *_) = figure.figure.axes
    assert axes.get_yscale() == "log"
    assert table["values"][..., 0].tolist() == results.tolist()
    assert table["x"]["texts"] == [f"time = {value:.0f}" for value in x]
    assert table["y"]["texts"] == [f"pressure = {value:.0f} Pa" for value in y]
    picture = figure.figure.bbox
    across = np.array(table["x"]["at"]) / 1e4 * picture.width
    down = (1 - np.array(table["y"]["at"]) / 1e4) * picture.height
    places = axes.transData.inverted().transform(np.stack([across[:4], down], axis=1))
    np.testing.assert_allclose(places[:, 0], [-0.5, 0.5, 1.5, 6], atol=0.01)
    np.testing.assert_allclose(places[:, 1], [10**-0.5, 10**0.5, 100, 10**4], rtol=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_uneven_coordinates_begin_and_end_with_those_of_their_values(seed):
    rng = np.random.default_rng(seed)
    n_rows, n_columns = rng.integers(100, 1500, 2).tolist()
    results = rng.random((n_rows, n_columns))
    x, y = np.cumsum(rng.integers(1, 9, n_columns)), np.geomspace(1, 1e6, n_rows)
    table = table_of(results, LivePlot("image", x=x, y=y, reduction="max"))
    first, last = (table["x"]["texts"][k].split(" = ")[1].split(" to ") for k in (0, -1))
    assert (float(first[0]), float(last[-1])) == (x[0], x[-1])
    some = x.searchsorted([float(first[-1])])[0] + 1
    down = -(-n_rows // table["shape"][0])
    assert results[:down, :some].max() == pytest.approx(table["values"][0, 0, 0], rel=5e-5)


def test_points_on_a_log_axis_have_their_values():
    x = np.geomspace(1e-3, 1e6, 10)
    table = table_of(np.arange(10.0), LivePlot("line", x=x, xlabel="rate", xunit="Hz"))
    np.testing.assert_allclose(numbers(table["x"]["texts"]), x, rtol=1e-6)
    assert table["x"]["texts"][0] == "rate = 1e-3 Hz"
    widths = np.diff(table["x"]["at"][1:-1])
    np.testing.assert_allclose(widths, widths[0], atol=2)


def test_categories_and_dates_are_shown_as_they_are():
    """As values of lines, bars and pixels, and as coordinates."""
    texts = ["converged", "diverged", "converged"]
    line = table_of(texts, LivePlot("line"))
    assert (line["categories"], line["values"].ravel().tolist()) == (texts[:2], [0, 1, 0])
    bars = table_of(texts, LivePlot("hist"))
    assert bars["x"]["texts"] == ["result = converged", "result = diverged"]
    flags = table_of([[True, False], [False, False]], LivePlot("image"))
    assert flags["categories"] == ["False", "True"]
    days = [np.datetime64("2026-01-05"), np.datetime64("2026-02-07"), np.datetime64("NaT", "D")]
    image = table_of(np.array([days, days]), LivePlot("image"))
    assert image["texts"] == ["2026-01-05", "2026-02-07", "NaT"] * 2
    names = ["a name that is so long that an axis has no room to write it as it is", "b"]
    job = played(np.array([1.0, 2.0]), 1)
    job._inputs = names
    named = carried(LiveFigure(job, "line").frame(final=True))
    assert named[0]["x"]["texts"] == [f"item = {name}" for name in names]


def test_bars_of_whole_numbers_have_one_each():
    table = table_of(np.array([3, 3, 5]), LivePlot("hist"))
    assert table["x"]["texts"] == ["result = 3", "result = 4", "result = 5"]
    table = table_of(np.arange(0, 256, 3).repeat(3), LivePlot("hist"))
    first, second = (text.split(" = ")[1].split(" to ") for text in table["x"]["texts"][:2])
    assert (int(first[0]), int(first[1]) + 1) == (0, int(second[0]))


def test_a_large_image_of_texts_has_one_of_each_block():
    """A mean of texts would be another text."""
    results = np.where(np.random.default_rng(0).random((500, 700)) < 0.5, "a", "b")
    table = table_of(results[None], LivePlot("image"))
    rows, columns, _ = table["shape"]
    down, right = -(-500 // rows), -(-700 // columns)
    assert table["note"] == f"one of {down} × {right} pixels"
    shown = np.array(table["categories"])[table["values"][..., 0].astype(int)]
    np.testing.assert_array_equal(shown, results[::down, ::right])


def test_panels_tell_the_names_of_axes_that_only_others_have():
    job = map_async(tasks.add, grid(x=[1, 2], y=[3, 4], z=[5, 6, 7]), backend="threads")
    job.wait()
    for table in carried(LiveFigure(job, "image").frame(final=True)):
        assert (table["x"]["texts"][0], table["y"]["texts"][0]) == ("y = 3", "x = 1")


def test_bars_have_their_ends_and_their_number():
    table = table_of(np.array([0.0, 0.1, 0.9, 1.0]), LivePlot("hist", bins=2, unit="m"))
    assert table["x"]["texts"] == ["result = 0 to 0.5 m", "result = 0.5 to 1 m"]
    assert table["values"].ravel().tolist() == [2, 2]


def test_panels_have_a_table_each():
    results = [{"a": np.eye(3) * k, "b": np.ones((3, 3)) * k} for k in range(4)]
    tables = carried(LiveFigure(played(results, 1), LivePlot("image")).frame(final=True))
    np.testing.assert_allclose(tables[1]["values"][..., 0], np.full((3, 3), 1.5), rtol=5e-5)
    assert len(tables) == 2


def test_explore_has_the_values_of_the_result_that_it_shows():
    results = np.random.default_rng(0).random((2, 4, 5))
    figure = ResultFigure(LivePlot("image", label="x", reduction="last"))
    for result in results:
        (table,) = carried(figure.show("name", result[None], None, sharp=False))
        np.testing.assert_allclose(table["values"][..., 0], result, rtol=5e-5)


def test_the_picture_is_a_png_for_all_others():
    figure = LiveFigure(played(np.arange(9.0), 1), LivePlot("line"))
    Image.open(io.BytesIO(figure.frame(final=True).png)).verify()


def test_a_document_that_is_rebuilt_has_pictures_without_values(monkeypatch):
    monkeypatch.setenv("NBSHARE_STATIC", "1")
    figure = LiveFigure(played(np.arange(9.0), 1), LivePlot("line"))
    assert b"nbVL" not in figure.frame(final=True).png
