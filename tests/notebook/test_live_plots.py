"""The picture of a run's results, of all kinds of them, and refusals.

NumPy is the oracle where there is one, so the pixels, lines and bars are those of the results.
"""

from __future__ import annotations

import io
import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.dates import num2date
from PIL import Image

from nbshare import MISSING, LivePlot, grid, map_async, tiles
from nbshare._core.notebook import reading, values
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.image import ImagePainter
from nbshare._core.notebook.live_plot import REDUCTIONS, CannotDrawError
from nbshare._core.shapes.tables import groups_of
from tests.support.interrupts import InterruptAt
from tests.support.played import PlayedJob, images, pixels_in, played


def render(job, plot="image"):
    """Return the last frame, as a PNG."""
    return LiveFigure(job, plot).frame(final=True).png


def is_hatched(png, box):
    """Tell whether a box of the picture, in fractions, is empty but for thin grey lines."""
    image = Image.open(io.BytesIO(png)).convert("RGBA")
    left, top, right, bottom = (np.multiply(box, image.size * 2)).round().astype(int)
    region = np.asarray(image)[top:bottom, left:right].reshape(-1, 4).astype(int)
    is_empty = region[:, 3] == 0
    is_grey = (np.ptp(region[:, :3], axis=1) == 0) & (region[:, 3] < 128)
    return bool(0.5 < is_empty.mean() < 0.99 and is_grey[~is_empty].all())


@pytest.mark.parametrize(
    ("results", "title"),
    [
        (np.arange(1000.0), "500 of 1000"),
        (np.arange(300_000), "150000 of 300000"),
        (np.random.default_rng(0).random((120, 50)), "60 of 120"),
        (np.random.default_rng(0).random((3000, 2000), np.float32), "1500 of 3000"),
        (np.random.default_rng(0).random((10, 30, 40)) > 0.5, "mean of 5 of 10"),
        (np.random.default_rng(0).random((4, 1500, 1100), np.float32), "mean of 2 of 4"),
        (np.full((10, 30, 40, 3), 200, np.uint8), "mean of 5 of 10"),
        (np.full((10, 30, 40), np.nan), "mean of 5 of 10"),
        (np.zeros((1, 1)), "0 of 1"),
    ],
)
def test_every_shape_of_numbers_has_its_picture(results, title):
    job = played(results, 0.5)
    if not job.n_done:
        job.flags[:], title = True, "1 of 1"
    frame = LiveFigure(job, "image").frame(final=True)
    assert frame.title == f"horizon: {title}"
    assert Image.open(io.BytesIO(frame.png)).size == tuple(2 * side for side in frame.size)


@pytest.mark.parametrize(
    "results", [np.zeros((4, 60, 60)), np.zeros(400), np.zeros((3, 50, 30)), np.zeros((2, 20, 300))]
)
def test_an_image_with_one_scale_has_little_empty_paper_next_to_it(results):
    figure, _ = image_of(results)
    drawn, paper = figure.figure.get_tightbbox(), figure.figure.bbox_inches
    assert paper.width <= 7.6
    assert paper.width == 4.4 or paper.width - drawn.width < 0.8


def test_rows_that_are_missing_are_hatched():
    png = render(played(np.random.default_rng(0).random((100, 30)), 0.5))
    assert not is_hatched(png, (0.2, 0.15, 0.7, 0.4))
    assert is_hatched(png, (0.2, 0.55, 0.7, 0.75))


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (np.zeros((4, 2, 2, 3, 5)), "the shape"),
        (np.zeros((4, 0)), "the shape"),
        ([object()], "of type object"),
        ([(object(), object())], "of type tuple"),
        ([1.0, np.ones(3)], "several shapes"),
        ([np.ones(3), np.ones((3, 3))], "several shapes"),
        ([{"a": object()}], "of type dict"),
        (["a", 1.0], "texts and numbers"),
        ([str(i) for i in range(51)], "more than 50 different texts"),
    ],
)
def test_results_that_suit_no_image_are_refused_with_a_reason(results, reason):
    with pytest.raises(CannotDrawError, match=reason):
        render(played(results, 1))


def test_arrays_of_more_axes_that_come_later_are_refused_with_a_reason():
    job = played([np.ones(2), np.ones(2), np.ones((2, 2))], 2 / 3)
    figure = LiveFigure(job, "image")
    assert figure.paint(final=False) == ("horizon: 2 of 3", True)
    job.flags[:] = True
    with pytest.raises(CannotDrawError, match="several shapes"):
        figure.paint(final=True)


def test_of_a_job_without_results_there_is_no_frame():
    assert LiveFigure(PlayedJob(np.zeros(3)), "image").frame(final=True) is None


def pixels(figure):
    """Return what the image of a figure shows, with NaN where there is nothing yet."""
    return np.ma.filled(figure.figure.axes[0].images[0].get_array(), np.nan)


@pytest.mark.parametrize("shape", [(50,), (50, 7), (50, 6, 5), (3000, 2), (200_000,)])
def test_the_picture_is_the_mean_and_each_result_is_read_once(shape):
    rng = np.random.default_rng(1)
    results = rng.random(shape, np.float32)
    order = rng.permutation(shape[0])
    job = PlayedJob(np.full_like(results, np.nan))
    figure = LiveFigure(job, "image")
    for part in np.array_split(order, 4):
        job.results[:] = np.nan  # also after it was read, as reading it again would show
        job.results[part], job.flags[part] = results[part], True
        _, is_complete = figure.paint(final=True)
        assert is_complete
    n_cells = {(50, 6, 5): 1, (3000, 2): 1024, (200_000,): 2**16}.get(shape, shape[0])
    cells = np.arange(shape[0]) * n_cells // shape[0]
    sums = np.zeros((n_cells, *shape[1:]))
    np.add.at(sums, cells, results)
    expected = (sums.T / np.bincount(cells)).T.ravel()
    drawn = pixels(figure).ravel()
    np.testing.assert_allclose(drawn[: expected.size], expected)
    assert np.isnan(drawn[expected.size :]).all()


def test_a_refresh_takes_in_only_what_its_time_allows_and_the_last_frame_all(monkeypatch):
    monkeypatch.setattr(values, "BUDGET_S", 0)
    job = played(np.ones((40, 500, 500)), 1)  # in float64 one block of 8 MiB holds four of them
    figure = LiveFigure(job, "image")
    assert figure.paint(final=False) == ("horizon: mean of 4 of 40", False)
    assert figure.paint(final=True) == ("horizon: mean of 40 of 40", True)
    assert (pixels(figure) == 1).all()


def test_an_interrupt_while_results_are_taken_in_leaves_no_wrong_mean(monkeypatch):
    results = np.arange(12.0).reshape(4, 3, 1)
    figure = LiveFigure(played(results, 1), "image")
    add = ImagePainter._add

    def interrupted_add(*args):
        monkeypatch.setattr(ImagePainter, "_add", add)
        add(*args)
        signal.raise_signal(signal.SIGINT)  # the sums are added to, the items not noted yet

    monkeypatch.setattr(ImagePainter, "_add", interrupted_add)
    with pytest.raises(KeyboardInterrupt):
        figure.paint(final=True)
    figure.paint(final=True)
    np.testing.assert_array_equal(pixels(figure), results.mean(axis=0))


def test_an_interrupt_at_any_moment_of_a_frame_leaves_the_last_one_as_it_would_be():
    """Also of the first frame, which makes the figure."""
    job = played(np.arange(8.0), 0.5)
    expected = render(job, "line")
    for number in range(10, 1000, 15):  # of all moments, as a picture takes a while
        figure = LiveFigure(job, "line")
        with InterruptAt(number, {LiveFigure.frame.__code__.co_filename}) as interrupt:
            figure.frame(final=False)
        assert figure.frame(final=True).png == expected, number
        if not interrupt.came:
            break
    assert number > 50


def test_limits_stay_while_the_data_move_little_and_are_round():
    rng = np.random.default_rng(2)
    for high in (1, 1.01, 0.99):
        assert values.calm(*values.span(high * rng.random(2500), is_robust=True)) == (0, 1)
    assert values.calm(0, 3, margin=0.05) == pytest.approx((-0.2, 3.2))


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(float, st.integers(1, 9), elements=st.floats(-1e12, 1e12)))
def test_limits_hold_all_data(numbers):
    low, high = values.calm(*values.span(numbers), margin=0.03)
    assert low < high
    assert low <= numbers.min() <= numbers.max() <= high


# -- what is drawn is what is there --------------------------------------------------------------


def colours(figure, ax=0):
    """Return the colour of the middle of each pixel of an image, as rendered."""
    canvas, axes = figure._canvas, figure.figure.axes[ax]
    canvas.draw()
    rendered = np.asarray(canvas.buffer_rgba())
    n_rows, n_columns = axes.images[0].get_array().shape[:2]
    left, right, bottom, top = axes.images[0].get_extent()
    x = left + (right - left) * (np.arange(n_columns) + 0.5) / n_columns
    y = top + (bottom - top) * (np.arange(n_rows) + 0.5) / n_rows
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    places = axes.transData.transform(points).astype(int)
    return rendered[len(rendered) - 1 - places[:, 1], places[:, 0]].reshape(n_rows, n_columns, 4)


def of_map(values, low, high):
    """Return the colours that the map has for some values."""
    shares = (np.asarray(values) - low) / (high - low)
    return np.asarray(matplotlib.colormaps["viridis"](shares, bytes=True)).astype(int)


def image_of(results, share=1.0, plot="image"):
    """Return the figure of results as its last frame draws them, and its colour bar."""
    figure = LiveFigure(played(np.asarray(results), share), plot)
    figure.frame(final=True)
    return figure, figure._painters[0]._bar


def test_an_image_shows_the_full_range_of_its_results():
    """A peak is a peak, not a flat disc, because colours differ where the results differ."""
    y, x = np.mgrid[-1:1:21j, -1:1:21j]
    peak = 0.996 * np.exp(-10 * (x**2 + y**2))
    figure, bar = image_of(peak[None])
    low, high = figure.figure.axes[0].images[0].get_clim()
    assert low <= peak.min()
    assert high >= peak.max()
    assert bar.extend == "neither"
    assert (abs(colours(figure) - of_map(peak, low, high)) <= 4).all()  # one of 192 colours


@settings(max_examples=8, deadline=None)
@given(hnp.arrays(float, (6, 7), elements=st.floats(-1e15, 1e15)))
def test_no_finite_result_of_an_image_is_cut(results):
    figure, bar = image_of(results)
    low, high = figure.figure.axes[0].images[0].get_clim()
    assert low <= results.min() <= results.max() <= high
    assert bar.extend == "neither"


@pytest.mark.parametrize(
    ("limits", "extend"),
    [
        ((0, 10), "neither"),
        ((2, 10), "min"),
        ((0, 5), "max"),
        ((2, 5), "both"),
        ((-3, 30), "neither"),
    ],
)
def test_the_colour_bar_has_an_arrow_only_where_something_is_cut(limits, extend):
    results = np.linspace(0, 10, 12).reshape(4, 3)
    figure, bar = image_of(results, plot=LivePlot("image", limits=limits))
    assert figure.figure.axes[0].images[0].get_clim() == limits
    assert bar.extend == extend
    assert bar.ax in figure.figure.axes[0].child_axes


def test_an_arrow_comes_with_the_result_that_is_cut():
    job = PlayedJob(np.array([1.0, 2.0, 3.0, 99.0]))
    job.flags[:3] = True
    figure = LiveFigure(job, LivePlot("image", limits=(0, 10), label="height", unit="m"))
    figure.frame(final=False)
    assert figure._painters[0]._bar.extend == "neither"
    job.flags[3] = True
    figure.frame(final=True)
    (place,) = figure.figure.axes[0].child_axes
    assert figure._painters[0]._bar.extend == "max"
    assert place.get_ylabel() == "height (m)"


@pytest.mark.parametrize(("kind", "axis"), [("line", "y"), ("hist", "x")])
def test_the_results_axis_has_its_own_label_or_that_of_the_results(kind, axis):
    """An ``ylabel=`` of a plot of lines, or an ``xlabel=`` of a histogram, is not ignored."""
    own = {f"{axis}label": "error", f"{axis}unit": "m"}
    for options, expected in ((own, "error (m)"), (own | {"label": "height"}, "height (m)")):
        axes = axes_of(played(np.arange(5.0), 1.0), LivePlot(kind, **options))
        assert getattr(axes, f"get_{axis}label")() == expected


def test_robust_limits_leave_out_outliers_and_say_so():
    results = np.random.default_rng(8).normal(size=(40, 50))
    results[3, 4] = 1e6
    figure, bar = image_of(results, plot=LivePlot("image", limits="robust"))
    assert figure.figure.axes[0].images[0].get_clim()[1] < 5
    assert bar.extend == "both"


@pytest.mark.parametrize("shape", [(6, 4), (1, 6, 4), (24,)])
def test_missing_results_nan_and_infinities_are_told_apart(shape):
    """And from every colour of the map. A key names them."""
    results = np.linspace(0, 1, 24)
    results[[1, 5, 9, 13]] = np.nan, np.inf, -np.inf, np.nan
    job = PlayedJob(results.reshape(shape))
    job.flags[: 1 if shape[0] == 1 else round(0.75 * shape[0])] = True
    figure = LiveFigure(job, "image")
    figure.frame(final=True)
    drawn_colours = colours(figure).reshape(-1, 4)[:24].astype(int)
    odd = [tuple(drawn_colours[i]) for i in (1, 5, 9)]
    assert len({*odd}) == 3
    assert tuple(drawn_colours[13]) == odd[0]
    every = of_map(np.linspace(0, 1, 256), 0, 1)
    assert (abs(every[:, None, :3] - np.array(odd)[:, :3]).max(axis=2) > 40).all()
    key = figure.figure.axes[0].get_legend()
    assert [text.get_text() for text in key.get_texts()] == ["NaN", "inf", "−inf"]
    if not job.flags.all():
        assert (drawn_colours[job.flags.size * 24 // shape[0] - 6 :, 3] < 128).all()


def test_the_key_names_only_what_is_there():
    figure, _ = image_of(np.arange(12.0).reshape(4, 3))
    assert figure.figure.axes[0].get_legend() is None
    figure, _ = image_of([[0.0, np.nan], [1.0, 2.0]])
    assert [t.get_text() for t in figure.figure.axes[0].get_legend().get_texts()] == ["NaN"]


def test_the_place_after_the_last_result_is_not_hatched():
    """Ten numbers in rows of four leave a gap, as the last two places belong to no item."""
    job = played(np.arange(10.0), 0.9)
    figure = LiveFigure(job, "image")
    figure.frame(final=False)
    hatch = figure._painters[0]._hatch
    assert hatch.get_visible()
    last_row = [hatch.get_path().contains_point((x + 0.5, 10)) for x in range(4)]
    assert last_row == [True, True, False, False]
    job.flags[:] = True
    figure.frame(final=True)
    assert not hatch.get_visible()


def test_an_image_of_more_pixels_than_the_screen_has_shows_their_means():
    """Some of the pixels would show stripes that are wide, and are not there."""
    stripes = np.zeros((1000, 1000))
    stripes[::2] = 1
    frame = LiveFigure(played(stripes[None], 1), "image").frame(final=False)
    picture = np.asarray(Image.open(io.BytesIO(frame.png)).convert("RGB")).astype(int)
    middle = picture[100:300, 100:300]
    assert np.ptp(middle, axis=(0, 1)).max() < 60  # of 255


@pytest.mark.parametrize("n", [30, 61, 256, 1000, 12345])
@pytest.mark.parametrize("dtype", ["i8", "M8[D]"])
def test_bars_of_whole_numbers_or_days_have_as_many_each(n, dtype):
    """Otherwise some would be higher, though no number is more frequent."""
    figure = LiveFigure(played(np.arange(n).astype(dtype), 1), "hist")
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    counts, edges, _ = axes.patches[0].get_data()
    assert len(set(counts[:-1].tolist())) == 1
    assert counts.sum() == n
    assert edges[0] == -0.5


@pytest.mark.parametrize("kind", ["line", "hist", "image"])
def test_numbers_that_differ_by_rounding_are_drawn_as_equal_ones(kind):
    results = np.abs(np.exp(1j * np.linspace(0, 4, 40)))
    figure = LiveFigure(played(results, 1), kind)
    figure.frame(final=True)
    axes = figure.figure.axes[0]
    ends = {"line": axes.get_ylim, "hist": axes.get_xlim}.get(kind)
    low, high = ends() if ends else axes.images[0].get_clim()
    assert low <= 0.9
    assert high >= 1.1


def test_what_an_image_leaves_out_or_combines_is_said():
    rng = np.random.default_rng(9)
    _, bar = image_of(rng.random((2, 1500, 1100), np.float32))
    assert bar.ax.get_ylabel() == "mean of result, blocks of 2 × 2"
    _, bar = image_of(rng.random(70_000))
    assert bar.ax.get_ylabel() == "mean of result"


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint16])
def test_colour_images_of_integers_are_from_0_to_255(dtype):
    results = np.random.default_rng(10).integers(0, 256, (1, 5, 6, 3)).astype(dtype)
    figure = LiveFigure(played(results, 1), "image")
    figure.frame(final=True)
    assert (abs(colours(figure)[..., :3] - results[0].astype(int)) <= 1).all()


def test_a_colour_image_shows_nan_and_counts_what_is_outside():
    results = np.full((1, 4, 5, 3), 0.5)
    results[0, 1, 2, 0], results[0, 2, 2, 0] = np.nan, 7.0
    figure = LiveFigure(played(results, 1), "image")
    assert figure.frame(final=True).title == "horizon: mean of 1 of 1, as colours, 1 outside"
    drawn_colours = colours(figure)[..., :3].astype(int)
    assert (abs(drawn_colours[0, 0] - 127) <= 1).all()
    assert (abs(drawn_colours[1, 2] - 127) > 40).all()


@pytest.mark.parametrize(
    ("kind", "remark"), [("line", "2 outside"), ("hist", "2 outside"), ("image", "")]
)
def test_limits_are_those_of_the_axes_and_what_is_outside_is_counted(kind, remark):
    figure = LiveFigure(played(np.arange(10.0), 1), LivePlot(kind, limits=(0.5, 8.5)))
    title = figure.frame(final=True).title
    assert title == ", ".join(filter(None, ["horizon: 10 of 10", remark]))
    axes = figure.figure.axes[0]
    ends = {
        "line": axes.get_ylim,
        "hist": axes.get_xlim,
        "image": axes.images and axes.images[0].get_clim,
    }
    assert ends[kind]() == (0.5, 8.5)


def test_a_line_marks_what_is_not_finite_where_it_is():
    results = np.arange(8.0)
    results[[2, 3, 5]] = np.nan, np.inf, -np.inf
    job = played(results, 1)
    job.flags[7] = False  # missing, with a gap and no mark
    figure = LiveFigure(job, "line")
    assert figure.frame(final=True).title == "horizon: 7 of 8, 3 not finite"
    places = [marks.get_offsets().tolist() for marks in figure.figure.axes[0].collections]
    assert places == [[[2, 0]], [[3, 1]], [[5, 0]]]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.integers(5000, 30_000))
def test_every_point_of_a_long_line_is_a_result_at_its_place(seed, n):
    rng = np.random.default_rng(seed)
    x, y = np.sort(rng.lognormal(size=n)), rng.normal(size=n)
    drawn_x, drawn_y = line_of(played(y, 1), LivePlot("line", x=x))
    points = set(zip(x.tolist(), y.tolist(), strict=True))
    assert set(zip(drawn_x.tolist(), drawn_y.tolist(), strict=True)) <= points
    assert (drawn_y.min(), drawn_y.max()) == (y.min(), y.max())


@pytest.mark.parametrize("kind", ["line", "hist", "image"])
@pytest.mark.parametrize(
    "results",
    [
        np.array([1e308, -1e308, 0.0]),
        np.full(5, np.nan),
        np.array([np.inf, 1.0, -np.inf]),
        np.full(5, 3.0),
        np.full(5, -(2**62)),
        np.array([5e-324, 0.0, 1e-300]),
        np.array([True, True]),
        np.array([2**63, 1], np.uint64),
        np.array(["NaT", 5], "m8[s]"),
    ],
)
def test_extreme_results_have_a_plot_without_a_warning(kind, results):
    assert LiveFigure(played(results, 1), kind).frame(final=True) is not None


def test_results_of_another_type_are_drawn_from_the_beginning():
    """A run's array may become complex, and then its label and all its values are new."""
    job = played(np.array([1.0, 2.0, 3.0]), 0.7)
    figure = LiveFigure(job, "line")
    figure.frame(final=False)
    job.results, job.flags[:] = np.array([1.0, 2.0, 3 + 4j]), True
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    assert axes.get_ylabel() == "|result|"
    assert axes.lines[0].get_ydata().tolist() == [1, 2, 5]


def masked_below_2(result):
    return np.ma.masked_less(result, 2)


def test_what_a_mask_hides_is_not_drawn():
    """Of later results, of those of `value=`, of tiles, and of the one of ``reduce=``."""
    wanted = np.array([[np.nan, np.nan, 2.0, 3.0]])
    plain = np.arange(4.0)
    later = played([plain, masked_below_2(plain)], 1)
    by_value = LivePlot("image", value=masked_below_2)
    tiled = map_async(np.copy, tiles(plain[np.newaxis], (1, 2), 0), backend="threads")
    reduced = map_async(masked_below_2, [plain], reduce=np.ma.add, backend="threads")
    for job, plot in (
        (later, "image"),
        (played(plain[np.newaxis], 1), by_value),
        (tiled, by_value),
        (reduced, LivePlot("image")),
    ):
        if job in (tiled, reduced):
            job.result()
        figure = LiveFigure(job, plot)
        figure.frame(final=True)
        np.testing.assert_array_equal(pixels_in(figure)[-1:], wanted)


def test_masked_elements_keep_their_type():
    """Complex ones keep their imaginary part, and dates are gaps."""
    masked = [np.ma.MaskedArray([3 + 4j, 1], [False, True])] * 2
    np.testing.assert_array_equal(line_of(played(masked, 1))[1], [5, 5])
    dates = np.ma.MaskedArray(np.array([1, 2], "M8[D]"), [False, True])
    assert np.isnat(reading.unmasked(dates)).tolist() == [False, True]


def test_each_of_several_plots_says_what_it_does_not_show():
    plots = ["image", LivePlot("hist", limits=(0, 5)), "line"]
    figure = LiveFigure(played(np.append(np.arange(9.0), np.nan), 1), plots)
    figure.frame(final=True)
    said = [axes.get_title(loc="left") for axes in figure.figure.axes]
    assert said == ["", "1 not finite, 3 outside", "1 not finite"]


@pytest.mark.parametrize(
    "limits", ["rubust", (1,), (2, 1), (1, 1), (0, np.inf), (0, "a"), 3, (None, 1), [[1], [2, 3]]]
)
def test_limits_that_are_no_range_are_refused(limits):
    with pytest.raises(ValueError, match="pass \\(low, high\\)"):
        LivePlot("image", limits=limits)


@pytest.mark.parametrize("plot", ["image", "line", "hist", lambda ax, p: ax.plot(p.mean((1, 2)))])
def test_the_last_frame_has_the_axes_of_the_frame_before(plot):
    job = played(images(40), 0.9)
    job.state = "done"
    figure, places = LiveFigure(job, plot), []
    for final in (False, False, False, True):
        job.flags[:38] = True
        figure.frame(final=final)
        (axes,) = figure.figure.axes
        places.append((*axes.get_position().bounds, *axes.get_xlim(), *axes.get_ylim()))
    assert places[2] == places[3]


@pytest.mark.parametrize("shape", [(1, 350, 400), (1, 800, 800), (600, 900)])
def test_a_noisy_picture_has_the_colours_of_its_map_and_a_moderate_size(shape):
    noise = np.random.default_rng(0).normal(size=shape)
    figure = LiveFigure(played(noise, 1), "image")
    png = figure.frame(final=True).png
    assert len(png) <= 600_000  # with its values
    sent = Image.open(io.BytesIO(png))
    exact, sent = (
        np.asarray(figure._pixels(sent.height * 100 // 440)),
        np.asarray(sent.convert("RGBA")),
    )
    height, width = sent.shape[:2]
    box = slice(height // 5, height * 4 // 5), slice(width // 4, width // 2)
    np.testing.assert_array_equal(sent[box], exact[box])
    assert (abs(sent.astype(int)[..., 3] - exact[..., 3]) <= 24).all()


@pytest.mark.parametrize("plot", ["image", lambda ax, p: ax.imshow(p[0])])
def test_a_picture_of_many_colours_is_near_to_them(plot):
    colours = np.random.default_rng(0).random((1, 500, 500, 3))
    png = render(played(colours, 1), plot)
    assert Image.open(io.BytesIO(png)).height >= 660  # 150 dpi
    assert len(png) <= 600_000  # with its values


def test_a_function_gets_cleared_axes_and_its_colour_bar_does_not_pile_up():
    seen = []

    def draw(ax, partial):
        seen.append((len(ax.images), int(partial.count())))
        ax.figure.colorbar(ax.imshow(partial), ax=ax)

    job = played(np.random.default_rng(0).random((10, 5)), 0.2)
    figure = LiveFigure(job, draw)
    widths = []
    for n in (4, 6, 8, 10):
        job.flags[:n] = True
        figure.frame(final=False)
        widths.append(figure.figure.axes[0].get_position().width)
    assert seen == [(0, 20), (0, 30), (0, 40), (0, 50)]
    assert len(figure.figure.axes) == 2
    assert widths == pytest.approx([widths[0]] * 4, rel=0.02)


# -- lines -------------------------------------------------------------------------------------


def drawn(job, plot):
    """Return the axes of the last frame."""
    figure = LiveFigure(job, plot)
    figure.paint(final=True)
    return figure.figure.axes


def line_of(job, plot="line", k=0):
    """Return where a line's points are. Those with NaN are gaps."""
    (axes,) = drawn(job, plot)
    return axes.lines[k].get_data()


@settings(max_examples=12, deadline=None)
@given(
    results=hnp.arrays(float, 20, elements=st.floats(-1e9, 1e9)),
    there=hnp.arrays(bool, 20).filter(np.any),
    order=st.permutations(range(20)),
)
def test_a_line_goes_through_the_results_in_the_order_of_the_inputs(results, there, order):
    job = PlayedJob(results)
    job.flags[:], job._inputs = there, np.array(order) / 4
    x, y = line_of(job)
    np.testing.assert_array_equal(x, np.arange(20) / 4)
    expected = np.where(there, results, np.nan)
    np.testing.assert_array_equal(y[order], expected)


@pytest.mark.parametrize(
    ("inputs", "x"),
    [
        (None, [0, 1, 2, 3]),
        ([2.5, 3.5, 4.5, 5.5], [2.5, 3.5, 4.5, 5.5]),
        (range(10, 50, 10), [10, 20, 30, 40]),
        ([7, 7, 7, 7], [0, 1, 2, 3]),  # a point of each on one spot would show nothing
        (["a", "b", "c", "d"], [0, 1, 2, 3]),
        (np.zeros((4, 2)), [0, 1, 2, 3]),
        ([1.0, float("nan"), 2.0, 3.0], [0, 1, 2, 3]),
        ([1, 2, "c", 3], [0, 1, 2, 3]),
        ([1, [2, 3], 4, 5], [0, 1, 2, 3]),
    ],
)
def test_a_line_is_drawn_against_the_inputs_where_they_are_numbers(inputs, x):
    job = played(np.arange(4.0), 1)
    job._inputs = inputs
    assert line_of(job)[0].tolist() == x


def test_a_line_is_drawn_against_dates():
    job = played(np.arange(4.0), 1)
    job._inputs = np.datetime64("2026-02-27") + np.arange(4)
    x, _ = line_of(job)
    assert [date.day for date in num2date(x)] == [27, 28, 1, 2]


def test_missing_results_leave_a_line_open_and_single_ones_are_points():
    job = PlayedJob(np.arange(1000.0))
    job.flags[[10, 11, 12, 500]] = True
    (axes,) = drawn(job, "line")
    (line,) = axes.lines
    assert np.isfinite(line.get_ydata()).sum() == 4
    assert line.get_markevery() == [500]


def test_a_line_of_very_many_results_keeps_its_highest_and_lowest():
    results = np.random.default_rng(3).normal(size=200_000)
    results[77_777], results[123_456] = 99, -99
    _, y = line_of(played(results, 1))
    assert len(y) < 5000
    assert (y.min(), y.max()) == (-99, 99)


def test_short_results_make_a_line_each_with_a_legend():
    results = np.random.default_rng(4).random((30, 3))
    job = played(results, 1)
    np.testing.assert_array_equal(line_of(job, k=2)[1], results[:, 2])
    texts = drawn(job, "line")[0].get_legend().get_texts()
    assert [text.get_text() for text in texts] == ["result[0]", "result[1]", "result[2]"]


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max"])
def test_a_line_of_large_results_shows_each_reduced(how):
    results = np.random.default_rng(5).random((12, 6, 7))
    (axes,) = drawn(played(results, 1), LivePlot("line", reduction=how))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), getattr(results, how)(axis=(1, 2)))
    assert axes.get_ylabel() == f"{how} of each result"


@pytest.mark.parametrize(
    ("results", "y", "label"),
    [
        (np.array([3 + 4j, 5j]), [5, 5], "|result|"),
        (np.array([1500, 2500], "m8[ms]"), [1.5, 2.5], "result (s)"),
        (np.array([True, False]), [1, 0], "result"),
        ([10**30, 2], [1e30, 2], "result"),
        (np.array([1, 2], np.float16), [1, 2], "result"),
        (np.array([1, np.inf]), [1, np.nan], "result"),
        ([np.ma.MaskedArray([1], [False]), np.ma.MaskedArray([2], [True])], [1, np.nan], "result"),
    ],
)
def test_a_line_says_what_it_shows_of_results_that_are_no_real_numbers(results, y, label):
    (axes,) = drawn(played(results, 1), "line")
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), y)
    assert axes.get_ylabel() == label


def test_a_part_of_each_result_is_drawn_once():
    asked = []

    def energy(result):
        asked.append(result["id"])
        return result["energy"]

    job = played([{"id": i, "energy": 2.0 * i} for i in range(20)], 0.5)
    figure = LiveFigure(job, LivePlot("line", value=energy))
    figure.paint(final=False)
    job.flags[:] = True
    figure.paint(final=True)
    assert figure.figure.axes[0].lines[0].get_ydata().tolist() == [2.0 * i for i in range(20)]
    assert sorted(set(asked)) == list(range(20))
    assert len(asked) <= 22  # and the first at each frame, to see what they are


def test_flagged_results_that_have_not_arrived_are_gaps():
    job = played([1.0, 2.0, 3.0], 1)
    job.results[:] = [MISSING] * 3
    figure = LiveFigure(job, "line")
    assert figure.frame(final=False) is None
    job.results[:] = [1.0, MISSING, 3.0]
    frame = figure.frame(final=False)
    assert not frame.is_complete
    y = figure.figure.axes[0].lines[0].get_ydata()
    assert np.isnan(y).tolist() == [False, True, False]


def test_the_axes_of_a_line_do_not_move_with_every_result():
    results = 100 + np.random.default_rng(6).random(50)
    job = PlayedJob(results)
    figure, limits = LiveFigure(job, "line"), []
    for i in range(50):
        job.flags[i] = True
        figure.paint(final=False)
        limits.append((*figure.figure.axes[0].get_xlim(), *figure.figure.axes[0].get_ylim()))
        low, high = limits[-1][2:]
        assert low < results[: i + 1].min() <= results[: i + 1].max() < high
    assert len(set(limits)) < 15
    assert len({limit[:2] for limit in limits}) == 1


# -- histograms --------------------------------------------------------------------------------


def bars(job, plot="hist"):
    """Return heights and edges."""
    (axes,) = drawn(job, plot)
    return axes.patches[0].get_data()[:2]


@settings(max_examples=12, deadline=None)
@given(hnp.arrays(float, 30, elements=st.floats(-1e6, 1e6, width=32)))
def test_a_histogram_counts_every_result_once(results):
    counts, edges = bars(played(results, 1))
    assert counts.sum() == 30
    np.testing.assert_array_equal(counts, np.histogram(results, edges)[0])


def test_a_histogram_tells_of_what_it_cannot_count():
    job = played(np.array([1.0, 2.0, np.nan, np.inf]), 1)
    figure = LiveFigure(job, "hist")
    assert figure.frame(final=True).title == "horizon: 4 of 4, 2 not finite"
    assert figure.figure.axes[0].patches[0].get_data()[0].sum() == 2


def test_bins_are_as_many_as_numpys_and_no_outlier_makes_billions():
    normal = np.random.default_rng(0).normal(size=1000)
    assert len(bars(played(normal, 1))[0]) == len(np.histogram(normal, "auto")[0])
    assert len(bars(played(np.append(normal, 1e12), 1))[0]) == 100


def test_whole_numbers_have_a_bar_each():
    counts, edges = bars(played(np.array([3, 5, 5, 3, 3]), 1))
    assert counts.tolist() == [3, 0, 2]
    assert edges.tolist() == [2.5, 3.5, 4.5, 5.5]


def test_a_histogram_of_arrays_counts_their_elements():
    counts, _ = bars(played(np.ones((6, 4, 5)), 0.5), LivePlot("hist", bins=7))
    assert len(counts) == 7
    assert counts.sum() == 60


@pytest.mark.parametrize("period", [2, 3, 4, 1024])
def test_a_histogram_of_very_large_results_counts_a_sample_and_says_so(period):
    """The share of each value is right, and so are the ends, whatever the period of the data."""
    results = np.zeros((5, 1024, 1024), np.float32)
    results[..., ::period] = 1
    results[2, 77, 78] = -3
    (axes,) = drawn(played(results, 1), "hist")
    assert axes.get_ylabel() == "number of values, 1 in 5 at random"
    counts, edges, _ = axes.patches[0].get_data()
    assert counts.sum() == pytest.approx(2**20, abs=5)
    assert counts[-1] / counts.sum() == pytest.approx(1 / period, abs=0.01)
    assert (edges[0], edges[-1]) == (-3, 1)


# -- LivePlot ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_stack_of_images_is_reduced_as_asked(how):
    results = images(10).astype(np.float32)
    job = PlayedJob(results)
    order = np.random.default_rng(7).permutation(10)
    figure = LiveFigure(job, LivePlot("image", reduction=how))
    for i in order[:6]:
        job.flags[i] = True
        figure.paint(final=False)
    there = results[job.flags].astype(float)
    expected = there[-1] if how == "last" else getattr(there, how)(axis=0)
    np.testing.assert_allclose(figure.figure.axes[0].images[0].get_array(), expected)


@pytest.mark.parametrize("how", REDUCTIONS)
def test_every_reduction_tells_of_what_is_not_finite(how):
    """NaN is left out where other results have a number. The last one is shown as it is."""
    results = np.ones((3, 2, 3))
    results[1, 0] = results[2, 0] = [np.nan, np.inf, -np.inf]
    results[:, 1, 0] = np.nan
    figure = LiveFigure(played(results, 1), LivePlot("image", reduction=how))
    title = figure.frame(final=True).title
    assert ("2 NaN left out" in title) == (how != "last")
    expected = results[-1] if how == "last" else getattr(np, f"nan{how}")(results[:, 0], axis=0)
    texts = figure.figure.axes[0].get_legend().get_texts()
    is_odd = {"inf": np.isposinf, "−inf": np.isneginf}
    names = ["NaN", *(name for name, test in is_odd.items() if test(expected).any())]
    assert [text.get_text() for text in texts] == names


def test_labels_and_units_are_where_they_belong():
    named = LivePlot(
        "image", label="height", unit="m", xlabel="east", xunit="km", ylabel="north", yunit="km"
    )
    (axes,) = drawn(played(images(4), 1), named)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("east (km)", "north (km)")
    assert axes.child_axes[0].get_ylabel() == "height (m)"
    (axes,) = drawn(played(np.arange(5.0), 1), LivePlot("hist", label="height", unit="m"))
    assert axes.get_xlabel() == "height (m)"
    (axes,) = drawn(played(np.arange(5.0), 1), LivePlot(unit="m", xlabel="time", xunit="s"))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (s)", "result (m)")
    (axes,) = drawn(played(np.arange(5.0), 1), LivePlot(lambda ax, p: None, xlabel="t", label="h"))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("t", "h")


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_the_last_frame_has_no_background(kind):
    """The page shines through around the axes."""
    picture = Image.open(io.BytesIO(render(played(np.arange(100.0), 1), kind))).convert("RGBA")
    assert picture.getpixel((1, 1))[3] == 0


def test_the_image_of_a_users_function_is_in_the_middle():
    """With its colour bar, where matplotlib alone would leave a third of the picture white."""

    def show(ax, partial):
        ax.figure.colorbar(ax.imshow(partial[0]))

    figure = LiveFigure(played(np.random.default_rng(0).random((2, 40, 40)), 1), show)
    figure.frame(final=True)
    image, bar = figure.figure.axes
    left, right = image.get_position().x0, 1 - bar.get_position().x1
    assert left == pytest.approx(right, abs=0.1)


def test_numbers_fill_a_grid_of_the_users_coordinates():
    x, y = np.linspace(-1, 1, 5), np.linspace(0, 3, 4)
    job = played(np.arange(20.0), 0.5)
    (axes,) = drawn(job, LivePlot("image", x=x, y=y))
    grid = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_array_equal(grid[:2], np.arange(10.0).reshape(2, 5))
    assert np.isnan(grid[2:]).all()
    assert axes.images[0].get_extent() == [-1.25, 1.25, 3.5, -0.5]
    assert axes.get_ylim() == (-0.5, 3.5)  # coordinates grow upwards


@pytest.mark.parametrize(
    ("width", "units", "aspect"), [(20, "km", 1), (20, "", 4.5), (2000, "km", "auto")]
)
@pytest.mark.parametrize("results", [np.zeros((2, 10, 5)), np.zeros((10, 5)), np.zeros(50)])
def test_axes_in_the_same_unit_have_one_scale(results, width, units, aspect):
    """A map in km is not stretched, nor are pixels without units, but no image is a thin strip."""
    plot = {"x": np.linspace(0, width, 5), "y": np.linspace(0, 10, 10)}
    (axes,) = drawn(played(results, 1), LivePlot("image", **plot, xunit=units, yunit=units))
    assert axes.get_aspect() == (aspect if aspect == "auto" else pytest.approx(aspect))


@pytest.mark.parametrize("plot", ["image", LivePlot("image", x=[*range(60)], xunit="s")])
@pytest.mark.parametrize(("n", "is_square"), [(60, True), (10, False), (300, False)])
def test_as_many_rows_as_columns_make_a_square(plot, n, is_square):
    figure = LiveFigure(played(np.random.default_rng(0).random((n, 60)), 1), plot)
    figure.frame(final=True)
    box = figure.figure.axes[0].get_window_extent()
    assert (box.width == pytest.approx(box.height, rel=0.02)) == is_square
    assert is_square or box.width > 1.3 * box.height  # it fills the plot


@pytest.mark.parametrize(
    ("plot", "results", "message"),
    [
        (LivePlot(x=[1, 2, 3]), np.zeros(4), "3 values, but there are 4 items"),
        (LivePlot("image", x=[1, 2], y=[1]), np.zeros(4), "2 columns and 1 rows"),
        (LivePlot("image", x=[1, 4, 2]), np.zeros((2, 5, 3)), "3 ascending or descending"),
        (LivePlot("image", x=[1, 2]), np.zeros((2, 5, 3)), "must have 3 ascending"),
        (LivePlot("image", y=[]), np.zeros((2, 5, 3)), "empty"),
        (LivePlot("line"), np.zeros((4, 0)), "nothing to draw"),
        (LivePlot("hist"), np.zeros((4, 0)), "nothing to draw"),
        (LivePlot("hist"), [object()], r"of type object.*LivePlot\(value=...\)"),
        (LivePlot("line"), [np.array([*"abcdefghi"])], "arrays of more than 8 texts"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(plot, results, message):
    with pytest.raises(CannotDrawError, match=message):
        render(played(results, 1), plot)


class TwoAxes(LivePlot):
    """Mean and spread, each in axes of its own."""

    def make_axes(self, figure):
        """Side by side."""
        return dict(zip(("mean", "spread"), figure.subplots(1, 2), strict=True))

    def draw(self, axes, partial):
        """Draw both."""
        axes["mean"].plot(partial.mean(axis=(1, 2)))
        axes["spread"].plot(partial.std(axis=(1, 2)))


def test_a_subclass_draws_into_axes_of_its_own_cleared_before_each_frame():
    job = played(images(10), 0.5)
    figure = LiveFigure(job, TwoAxes())
    for _ in range(3):
        figure.frame(final=False)
    assert [len(axes.lines) for axes in figure.figure.axes] == [1, 1]
    assert figure.figure.get_suptitle() == "horizon"


def test_several_plots_stand_in_two_columns():
    job = played(images(10), 0.5)
    frame = LiveFigure(job, ["image", TwoAxes(), "hist"]).frame(final=False)
    assert Image.open(io.BytesIO(frame.png)).size == frame.size == (760, 600)


def test_a_title_of_the_users_stays():
    def draw(ax, partial):
        ax.set_title("mine")

    job = played(images(10), 0.5)
    figure = LiveFigure(job, draw)
    for _ in range(2):
        figure.frame(final=False)
    (axes,) = figure.figure.axes
    assert (axes.get_title("left"), axes.get_title()) == ("mine", "")


def test_a_function_draws_in_the_users_style_and_nbshare_in_its_own():
    colours = []
    with matplotlib.style.context("dark_background"):
        for plot in (lambda ax, partial: None, "line"):
            frame = LiveFigure(played(images(4), 1), plot).frame(final=False)
            image = Image.open(io.BytesIO(frame.png)).convert("RGBA")
            colours.append(image.getpixel((0, 0)))
    assert colours == [(0, 0, 0, 255), (255, 255, 255, 0)]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_function_draws_in_nbshares_style_if_the_user_has_none(in_background):
    looks = []
    for plot in (lambda ax, partial: ax.set_xlabel("item"), "line"):
        figure = LiveFigure(played(images(4), 1), plot, in_users_style=in_background)
        figure.frame(final=False)
        (axes,) = figure.figure.axes
        ticks = axes.xaxis.get_tick_params()
        looks.append(
            (axes.spines["left"].get_edgecolor(), ticks["labelsize"], axes.get_title("left"))
        )
        looks[-1] += (axes.xaxis.label.get_color(), axes.get_facecolor())
    assert looks[0] == looks[1]


def test_plots_of_other_threads_leave_the_style_as_it_is():
    """It is one for all threads. Two plots that overlap would leave nbshare's as the user's."""
    before = dict(matplotlib.rcParams)
    began, both = threading.Barrier(2), []

    def look(axes, partial):
        began.wait(60)
        both.append(dict(matplotlib.rcParams))
        began.wait(60)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            threads.submit(LiveFigure(played(images(4), 1), look).frame, final=False)
    assert both == [before] * 2
    assert dict(matplotlib.rcParams) == before


def test_the_title_counts_only_what_a_last_frame_lacks():
    job = played(np.arange(8.0), 0.5, "my_wave")
    titles = []
    for plot, share, final in (
        ("line", 4, False),
        ("line", 4, True),
        ("line", 8, True),
        (LivePlot(title="mine_too"), 4, False),
    ):
        job.flags[:] = np.arange(8) < share
        figure = LiveFigure(job, plot)
        figure.frame(final=final)
        titles.append(figure.figure.axes[0].get_title("left"))
    assert titles == ["my wave", "my wave: 4 of 8", "my wave", "mine_too"]


def test_make_axes_has_to_return_axes():
    class Forgetful(LivePlot):
        def make_axes(self, figure):
            figure.add_subplot()

        def draw(self, axes, partial):
            pass

    with pytest.raises(TypeError, match="must return Axes"):
        render(played(images(4), 1), Forgetful())


def test_one_live_plot_serves_several_maps_at_once():
    plot, first, second = LivePlot("line"), played(np.zeros(5), 1), played(np.ones(9), 1)
    figures = [LiveFigure(job, plot) for job in (first, second)]
    for figure in figures * 2:
        figure.frame(final=False)
    lengths = [len(figure.figure.axes[0].lines[0].get_ydata()) for figure in figures]
    assert lengths == [5, 9]


@pytest.mark.parametrize("plot", ["line", "hist", "image"])
def test_a_map_of_unknown_length_is_laid_out_anew_as_it_grows(plot):
    """Items of a generator come by and by, and so do the rows of the results."""
    job = PlayedJob(np.arange(5.0))
    job.n_items, job.flags[:3] = None, True
    figure = LiveFigure(job, plot)
    assert figure.frame(final=False).title == "horizon: 3"
    job.results, job.flags = np.arange(9.0), np.ones(9, bool)
    assert figure.frame(final=False).title == "horizon: 9"
    job.n_items = 9
    assert figure.frame(final=True).title == "horizon: 9 of 9"


def axes_of(job, plot="line"):
    """Return the axes of its last frame."""
    figure = LiveFigure(job, plot)
    figure.frame(final=True)
    return figure.figure.axes[0]


@pytest.mark.parametrize("kind", [tuple, list, pd.Series])
def test_tuples_of_numbers_are_drawn_as_a_line_each(kind):
    """As `out="stack"` takes them. A place says which number of the result it is."""
    results = [kind([float(i), i**2]) for i in range(9)]
    axes = axes_of(played(results, 1.0))
    assert [line.get_ydata().tolist() for line in axes.lines[:2]] == np.array(results).T.tolist()
    assert [text.get_text() for text in axes.get_legend().texts] == ["result[0]", "result[1]"]
    assert axes_of(played(results, 1.0), "hist").patches
    image = axes_of(played(results, 1.0), "image").images[0].get_array()
    assert image.tolist() == [list(map(float, row)) for row in results]


@pytest.mark.parametrize("n", [3, 8, 18])
def test_whole_items_and_results_have_whole_ticks(n):
    job = played(np.arange(n) % 4, 1.0)
    job._inputs = range(n)
    axes = axes_of(job)
    for ticks in (axes.get_xticks(), axes.get_yticks()):
        assert ticks.tolist() == ticks.round().tolist()
    job = played(np.arange(n) / 7, 1.0)
    job._inputs = np.linspace(0, 1, n)
    axes = axes_of(job)
    assert axes.get_xticks().tolist() != axes.get_xticks().round().tolist()


@pytest.mark.parametrize("most", [2, 4, 300])
def test_the_colour_bar_of_whole_numbers_has_whole_ticks(most):
    """Also after its range has grown."""
    for fraction in (0.2, 1.0):
        results = np.arange(48).reshape(8, 6) % (most + 1)
        figure = axes_of(played(results, fraction), "image").figure
        figure.draw_without_rendering()
        (bar,) = figure.axes[0].child_axes
        ticks = bar.get_yticks()
        assert ticks.tolist() == ticks.round().tolist()


@pytest.mark.parametrize(("state", "end"), [("done", 1999), ("stopped", 99), ("interrupted", 99)])
def test_after_stop_a_line_fills_the_axes(state, end):
    """No more results will come. Those of a run that is done may have failed."""
    job = played(np.sin(np.arange(2000.0)), 0.05)
    job.state = state
    low, high = axes_of(job).get_xlim()
    assert low < 0
    assert end < high < 1.1 * end


# ------------------------------------------------------------------------------------- grids


def grid_axes(items, results, kind="image"):
    """Draw the results of a grid. Return the axes."""
    job = played(np.asarray(results, float), 1)
    job._inputs = items
    figure = LiveFigure(job, kind)
    figure.frame(final=True)
    return figure.figure.axes[0]


def test_an_image_of_a_grid_has_its_parameters_at_the_axes():
    """The first one upwards, the last one to the right. A pixel is in the middle of its values."""
    axes = grid_axes(grid(current=[1.0, 2.0], radius=[10, 20, 30]), range(6))
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("current", "radius")
    assert axes.get_xlim() == (5, 35)
    assert sorted(axes.get_ylim()) == [0.5, 2.5]
    assert axes.images[0].get_array().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_values_that_are_no_coordinates_are_written_at_the_axes():
    axes = grid_axes(grid(method=["euler", "verlet"], step=[0.01, 21.544, 2154.4]), range(6))
    axes.figure.canvas.draw()
    labels = [
        [tick.get_text() for tick in axis.get_ticklabels()] for axis in (axes.xaxis, axes.yaxis)
    ]
    assert [[label for label in each if label] for each in labels] == [
        ["0.01", "21.544", "2154.4"],
        ["euler", "verlet"],
    ]


@pytest.mark.parametrize(("n", "most"), [(3, 3), (9, 9), (40, 13)])
def test_long_names_do_not_overlap_and_a_dozen_are_all_written(n, most):
    axes = grid_axes(grid(method=[f"method number {i}" for i in range(n)]), range(n), "line")
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert min(n, 3) <= len(boxes) <= most
    assert len(boxes) == n or n > 12
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_names_that_are_too_long_for_a_line_are_turned():
    names = [f"configuration_{i}_of_the_model" for i in range(6)]
    axes = grid_axes(grid(name=names), range(6), "line")
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {30}


def test_a_grid_of_two_axes_has_a_line_for_each_value_of_the_second():
    items = grid(radius=[1.0, 5, 25], current=[2, 4])
    axes = grid_axes(items, range(6), "line")
    assert axes.get_xlabel() == "radius"
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 5, 25]] * 2
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0, 2, 4], [1, 3, 5]]
    key = axes.get_legend()
    assert key.get_title().get_text() == "current"
    assert [text.get_text() for text in key.get_texts()] == ["2", "4"]


def test_more_than_ten_lines_of_a_grid_have_a_colour_bar():
    items = grid(radius=[1.0, 5, 25], current=np.arange(12))
    axes = grid_axes(items, range(36), "line")
    assert axes.get_legend() is None
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == "current"


@pytest.mark.parametrize("kind", ["image", "line"])
def test_a_part_of_each_result_keeps_the_grid(kind):
    items = grid(a=[1.0, 2.0], b=[10, 20, 30])
    plots = []
    for results, value in (
        (np.arange(6.0), None),
        ([{"E": float(i)} for i in range(6)], lambda result: result["E"]),
        (np.arange(24.0).reshape(6, 4) / 4, lambda result: result[0]),
    ):
        job = played(results, 1)
        job._inputs = items
        plots.append(axes_of(job, LivePlot(kind, value=value)))
    for axes in plots:
        assert axes.get_xlabel() == plots[0].get_xlabel() == ("b" if kind == "image" else "a")
        assert axes.get_xlim() == plots[0].get_xlim()
        if kind == "image":
            assert axes.images[0].get_array().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_rows_of_an_image_are_labelled_by_their_items():
    rows = np.random.default_rng(0).random((4, 7))
    axes = grid_axes(grid(current=[1.0, 2.0, 3.0, 4.0]), rows)
    assert (axes.get_ylabel(), axes.get_ylim()) == ("current", (0.5, 4.5))
    axes = grid_axes([0.1, 0.2, 0.3, 0.4], rows)
    assert axes.get_ylabel() == "input"
    assert axes.get_ylim() == pytest.approx((0.05, 0.45))
    axes = grid_axes(["a", "b", "c", "d"], rows)
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c", "d"]
    axes = grid_axes([4, 1, 8, 2], rows)
    assert axes.get_ylabel() == "item"


def test_an_image_of_a_grid_with_one_axis_has_its_values_below():
    axes = grid_axes(grid(radius=[1.0, 2, 3, 4]), range(4))
    assert axes.images[0].get_array().tolist() == [[0, 1, 2, 3]]
    assert (axes.get_xlabel(), axes.get_xlim()) == ("radius", (0.5, 4.5))


def test_dates_of_a_grid_are_on_a_date_axis():
    days = np.datetime64("2026-01-01") + np.arange(60)
    axes = grid_axes(grid(day=days, b=[0.0, 1.0]), range(120))
    assert [num2date(x).day for x in axes.get_ylim()] == [31, 1]
    axes.figure.canvas.draw()
    assert "Feb" in [label.get_text() for label in axes.get_yticklabels()]


def test_a_line_of_groups_has_their_keys_as_x():
    table = pd.DataFrame({"airport": ["VIE", "AMS", "ZRH"], "year": [2001, 2010, 2005], "x": 1})
    axes = grid_axes(groups_of(table.groupby("airport")), [3, 4, 5], "line")
    axes.figure.canvas.draw()
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert (axes.get_xlabel(), [x for x in labels if x]) == ("airport", ["AMS", "VIE", "ZRH"])
    axes = grid_axes(groups_of(table.groupby("year")), [3, 4, 5], "line")
    assert axes.get_xlabel() == "year"
    assert axes.lines[0].get_xdata().tolist() == [2001, 2005, 2010]
    axes = grid_axes(groups_of(table.groupby(["airport", "year"])), [3, 4, 5], "line")
    assert axes.get_xlabel() == "airport, year"


def test_a_line_of_a_grid_has_its_values_as_x():
    axes = grid_axes(grid(radius=[1, 5, 25]), [3, 4, 5], "line")
    assert axes.get_xlabel() == "radius"
    assert axes.lines[0].get_xdata().tolist() == [1, 5, 25]


def test_the_users_own_axes_come_first():
    plot = LivePlot("image", x=[0, 1, 2], y=[0, 1], xlabel="mine")
    axes = grid_axes(grid(current=[1.0, 2.0], radius=[10, 20, 30]), range(6), plot)
    assert axes.get_xlabel() == "mine"
    assert axes.get_xlim() == (-0.5, 2.5)
