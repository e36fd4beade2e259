"""Logarithmic scales, and colours that diverge from zero."""

from __future__ import annotations

import io
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import LogNorm, to_hex, to_rgb
from matplotlib.text import Text
from PIL import Image

from nbshare import LivePlot, grid, map_async, tiles
from nbshare._core.notebook.axes import GREY
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.live_plot import CannotDrawError
from nbshare._core.notebook.reading import names_of
from tests.support import tasks
from tests.support.played import played


def drawn(results, plot):
    """Return the axes and the text of the last frame."""
    figure = LiveFigure(played(results, 1), plot)
    frame = figure.frame(final=True)
    return figure.figure.axes[0], frame.title


VALUES = 10.0 ** np.arange(-3, 6)


def test_a_line_has_a_log_axis_with_all_values_in_it():
    axes, title = drawn(VALUES, LivePlot("line", scale="log"))
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] <= 1e-3 < 1e5 <= axes.get_ylim()[1]
    assert axes.lines[0].get_ydata().tolist() == VALUES.tolist()
    assert title == "horizon: 9 of 9"


@pytest.mark.parametrize("shape", [(9,), (3, 3), (1, 3, 3)])
def test_the_colours_of_an_image_have_a_log_scale(shape):
    axes, _ = drawn(VALUES.reshape(shape), LivePlot("image", scale="log"))
    (image, _) = axes.images
    assert isinstance(image.norm, LogNorm)
    assert image.get_clim() == pytest.approx((1e-3, 1e5))


def test_bars_of_a_histogram_are_equally_wide_on_a_log_axis():
    numbers = np.random.default_rng(0).lognormal(0, 2, 500)
    axes, _ = drawn(numbers, LivePlot("hist", scale="log"))
    counts, edges, _ = axes.patches[0].get_data()
    assert axes.get_xscale() == "log"
    np.testing.assert_array_equal(counts, np.histogram(numbers, edges)[0])
    np.testing.assert_allclose(np.diff(np.log(edges)), np.log(edges[1] / edges[0]))


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_values_that_are_not_positive_are_left_out_and_counted(kind):
    results = np.array([-1.0, 0.0, 1.0, 10.0, np.nan])
    axes, title = drawn(results, LivePlot(kind, scale="log"))
    odd = "" if kind == "image" else ", 1 not finite"
    assert title == f"horizon: 5 of 5{odd}, 2 not positive"
    if kind == "image":
        assert axes.images[0].get_clim() == pytest.approx((1, 10))


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_a_log_scale_without_a_positive_value_counts_them(kind):
    _, title = drawn(np.array([-1.0, 0.0, -3.0]), LivePlot(kind, scale="log"))
    assert title == "horizon: 3 of 3, 3 not positive"


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_a_log_scale_is_offered_for_values_of_many_decades(kind):
    assert drawn(VALUES, kind)[1].endswith(", values span 8 decades (see scale='log')")
    for others in (VALUES[:4], -VALUES):
        assert "decades" not in drawn(others, kind)[1]


@pytest.mark.parametrize(
    ("results", "ends", "is_diverging"),
    [
        ([[-2.0, 1.0]], (-2, 2), True),
        ([[-1.0, 4.0]], (-4, 4), True),
        ([[-0.7, 4.0]], (-1, 4), False),
        ([[0.0, 4.0]], (0, 4), False),
        ([[-4.0, -1.0]], (-4, -1), False),
    ],
)
def test_values_of_both_signs_have_white_at_zero(results, ends, is_diverging):
    axes, _ = drawn(np.array(results), "image")
    (image, _) = axes.images
    assert image.get_clim() == pytest.approx(ends)
    middle = image.get_cmap()(0.5)[:3]
    assert (min(middle) > 0.9) == is_diverging


def test_the_users_colours_and_limits_come_first():
    axes, _ = drawn(np.array([[-2.0, 1.0]]), LivePlot("image", cmap="magma"))
    assert axes.images[0].get_clim() == (-2, 1)
    assert axes.images[0].get_cmap()(0.0)[2] < 0.1
    axes, _ = drawn(np.array([[-0.1, 1.0]]), LivePlot("image", cmap="coolwarm"))
    assert axes.images[0].get_clim() == (-1, 1)
    axes, _ = drawn(np.array([[-2.0, 1.0]]), LivePlot("image", limits=(-2, 5)))
    assert axes.images[0].get_clim() == (-2, 5)


def test_colours_follow_a_sign_that_comes_later_and_never_change_back():
    job = played(np.array([[1.0, 2.0], [-3.0, 1.0], [40.0, 1.0]]), 0)
    figure, middles = LiveFigure(job, "image"), []
    for n in (1, 2, 3):
        job.flags[:n] = True
        figure.frame(final=False)
        middles.append(min(figure.figure.axes[0].images[0].get_cmap()(0.5)[:3]))
    assert middles[0] < 0.5 < 0.9 < min(middles[1:])
    assert figure.figure.axes[0].images[0].get_clim() == (-40, 40)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scale": "logg"}, ValueError),
        ({"scale": "log", "limits": (0, 1)}, ValueError),
        ({"cmap": 3}, TypeError),
    ],
)
def test_what_is_no_scale_or_map_is_refused(options, error):
    with pytest.raises(error, match="not allowed"):
        LivePlot("image", **options)


def marked(axes):
    """Return the value of the dashed line, and the text at it."""
    (line,) = (each for each in axes.lines if each.get_linestyle() == "--")
    (text,) = axes.texts
    low, high = axes.get_ylim()
    assert low < line.get_ydata()[0] == text.xy[1] < high
    return line.get_ydata()[0], text.get_text()


@pytest.mark.parametrize("limits", [None, "robust"])
@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("threshold", [1e-9, 0.25, 1e9])
def test_a_threshold_is_a_line_with_its_value_within_the_limits(threshold, scale, limits):
    axes, _ = drawn(VALUES, LivePlot(threshold=threshold, scale=scale, limits=limits))
    assert marked(axes) == (threshold, f"{threshold:g}")


def test_each_panel_shows_the_threshold():
    job = played(np.arange(24.0), 1)
    job._inputs = grid(a=range(3), b=range(2), c=range(4))
    figure = LiveFigure(job, LivePlot(threshold=-7))
    figure.frame(final=True)
    assert [marked(axes)[0] for axes in figure.figure.axes] == [-7] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "image"},
        {"kind": "hist"},
        {"kind": lambda ax, partial: ax.plot(partial)},
        {"threshold": np.inf},
        {"threshold": "1"},
        {"threshold": np.timedelta64(1, "h")},
        {"threshold": -1, "scale": "log"},
        {"limits": (0, 0.5)},
    ],
)
def test_a_threshold_that_no_plot_could_show_is_refused(options):
    with pytest.raises(ValueError, match=r"threshold=.* is not allowed"):
        LivePlot(**{"threshold": 1, **options})


@pytest.mark.parametrize("results", [["a", "b"], [True, False], np.arange(2).astype("M8[D]")])
def test_a_threshold_needs_results_that_are_numbers(results):
    with pytest.raises(CannotDrawError, match="not numbers, as threshold=1"):
        drawn(results, LivePlot(threshold=1))


def test_a_map_that_matplotlib_does_not_know_is_named():
    with pytest.raises(CannotDrawError, match="viridiss"):
        drawn(VALUES, LivePlot("image", cmap="viridiss"))


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_line_of_tiles_has_one_number_of_each(how):
    whole = np.random.default_rng(0).random((7, 9))
    whole[0, 0] = np.nan
    job = map_async(np.copy, tiles(whole, (4, 5), 0), backend="threads", progress=False)
    job.result()
    figure = LiveFigure(job, LivePlot("line", reduction=how))
    figure.frame(final=True)
    (axes,) = figure.figure.axes
    parts = [whole[:4, :5], whole[:4, 5:], whole[4:, :5], whole[4:, 5:]]
    expected = [getattr(np, f"nan{how}")(part) for part in parts]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tile", f"{how} of each tile")


def test_a_line_of_tiles_does_not_depend_on_the_order_in_which_they_arrive():
    whole = np.arange(63.0).reshape(7, 9)
    job = map_async(np.copy, tiles(whole, (4, 5), 0), backend="threads", progress=False)
    job.result()
    played = SimpleNamespace(
        _partial=job._partial, _inputs=job._inputs, _is_reduced=False, _is_enough=False
    )
    played.label, played.n_items, played.state = "tiles", 4, "done"
    figure = LiveFigure(played, "line")
    for there in ([2], [1, 2], [1, 2, 3], [0, 1, 2, 3]):
        played._present = np.isin(np.arange(4), there)
        figure.frame(final=len(there) == 4)
    parts = [whole[:4, :5], whole[:4, 5:], whole[4:, :5], whole[4:, 5:]]
    (axes,) = figure.figure.axes
    assert axes.lines[0].get_ydata().tolist() == [part.mean() for part in parts]


def test_all_line_colours_are_readable_on_white_and_on_black():
    """With a contrast of 3, as WCAG asks of graphics."""

    def luminance(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    axes, _ = drawn(np.random.default_rng(0).random((20, 8)), "line")
    job = map_async(tasks.add, grid(x=[1, 2], y=range(12)), backend="threads", progress=False)
    job.result()
    of_grid = LiveFigure(job, "line")
    of_grid.frame(final=True)
    for line in [*axes.lines[:8], *of_grid.figure.axes[0].lines[:12]]:
        light = luminance(line.get_color())
        assert 1.05 / (light + 0.05) >= 3
        assert (light + 0.05) / (luminance("#111111") + 0.05) >= 3


def test_the_users_fonts_stay():
    with mpl.rc_context({"font.family": ["serif"], "font.size": 14}):
        axes, _ = drawn(np.arange(5.0), "line")
    assert axes.xaxis.label.get_family() == ["serif"]
    assert axes.xaxis.label.get_size() == 14
    assert axes.xaxis.get_tick_params()["labelsize"] == pytest.approx(12.6)


def test_a_style_of_the_users_draws_no_grid_above_an_image():
    with mpl.rc_context({"axes.grid": True, "axes.grid.axis": "both"}):
        figure = LiveFigure(played(np.ones((4, 5)), 1), "image", in_users_style=True)
        figure.frame(final=True)
    lines = figure.figure.axes[0].get_xgridlines() + figure.figure.axes[0].get_ygridlines()
    assert not any(line.get_visible() for line in lines)


@pytest.mark.parametrize("size", [10, 18])
def test_a_title_ends_before_the_legend_next_to_it(size):
    plot = LivePlot("line", title="words of a long title " * 4)
    with mpl.rc_context({"font.size": size}):
        figure = LiveFigure(played(np.ones((9, 2)), 1), plot)
        figure.frame(final=True)
    (axes,) = figure.figure.axes
    figure.figure.draw_without_rendering()
    title, key = axes._left_title.get_window_extent(), axes.get_legend().get_window_extent()
    assert title.x1 < key.x0 or title.y0 > key.y1


def test_rows_fill_their_place_among_several_plots():
    figure = LiveFigure(played(np.ones((40, 80)), 1), ["image", "line"])
    figure.frame(final=True)
    rows, line = figure.figure.axes[:2]
    assert rows.get_window_extent().height > 0.8 * line.get_window_extent().height


def test_names_of_values_are_in_one_notation():
    assert names_of(np.logspace(-5, 0, 6)) == ["1e-5", "1e-4", "1e-3", "1e-2", "1e-1", "1e0"]
    assert names_of(np.logspace(-1, 2, 4)) == ["0.1", "1", "10", "100"]
    assert names_of(np.array([0.0, 2.5e-7])) == ["0", "2.5e-7"]


@pytest.mark.parametrize(
    ("style", "alpha"),
    [
        ({}, 0),
        ({"axes.edgecolor": "red"}, 255),
        ({"axes.edgecolor": "red", "figure.facecolor": "none"}, 0),
    ],
)
def test_a_users_plot_is_transparent_unless_the_style_is_the_users(style, alpha):
    """It fits a dark page, in greys. Another style may be made for white, or for any page."""
    with mpl.rc_context(style):
        figure = LiveFigure(played(np.arange(5.0), 5), lambda ax, partial: ax.plot(partial))
        png = figure.frame(final=True).png
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    assert pixels[2, 2, 3] == alpha


def with_all(ax, partial):
    """Draw what has a colour of its own: a colour bar, a title, a legend, texts."""
    image = ax.imshow(partial.reshape(2, 3), label="values")
    ax.figure.colorbar(image, ax=ax, label="K")
    ax.plot([0, 1], label="a line")
    ax.legend()
    ax.set_title("mine")
    ax.text(0, 0, "default")
    ax.text(1, 1, "red", color="red")


@pytest.mark.parametrize("in_background", [False, True])
def test_all_texts_of_a_users_plot_are_grey_but_those_with_a_colour(in_background):
    """Also in a background job, for which matplotlib's settings cannot be changed."""
    figure = LiveFigure(played(np.arange(6.0), 6), with_all, in_users_style=in_background)
    figure.frame(final=True)
    colours = {text.get_text(): to_hex(text.get_color()) for text in figure.figure.findobj(Text)}
    assert {"mine", "K", "default", "a line"} <= set(colours)
    assert colours.pop("red") == "#ff0000"
    assert set(colours.values()) == {GREY}
    assert not figure.figure.axes[0].get_legend().get_frame_on()


# -- scales that fit the values ----------------------------------------------------------------


WITH_OUTLIER = np.where(np.arange(900) == 77, 1e6, np.sin(np.arange(900.0)))


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
def test_outliers_that_hide_the_other_values_are_told(kind):
    results = WITH_OUTLIER.reshape(30, 30) if kind == "image" else WITH_OUTLIER
    remark = "horizon: {0} of {0}, outliers hide most values (see limits='robust')"
    assert drawn(results, LivePlot(kind))[1] == remark.format(len(results))
    assert "outliers" not in drawn(results, LivePlot(kind, limits="robust"))[1]


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
@pytest.mark.parametrize(
    "results",
    [
        np.random.default_rng(0).normal(size=900),
        np.eye(30).ravel(),  # robust limits would not help
        WITH_OUTLIER[60:100],  # one of so few is not outside of robust limits
        np.full(9, 2.0),
    ],
)
def test_values_without_outliers_have_no_remark(results, kind):
    assert drawn(results, LivePlot(kind))[1] == "horizon: {0} of {0}".format(len(results))


@pytest.mark.parametrize("offset", [0, -1e6, 1e9, 1e12])
def test_all_points_of_a_line_are_within_its_axes(offset):
    results = offset + np.linspace(0, 0.004, 40) * max(1, abs(offset) / 1e9)
    axes, _ = drawn(results, LivePlot())
    low, high = axes.get_ylim()
    assert low < results.min() < results.max() < high


@pytest.mark.parametrize("n", [1, 40, 2000])
def test_the_only_value_of_a_histogram_is_in_the_middle_of_its_bar(n):
    axes, _ = drawn(np.full(n, 2.5), LivePlot("hist"))
    counts, edges, _ = axes.patches[0].get_data()
    (k,) = np.flatnonzero(counts)
    assert edges[k : k + 2].mean() == pytest.approx(2.5)


DAY, LATER = np.array(["2026-03-01", "2026-03-02"], "M8[D]")


@pytest.mark.parametrize("kind", ["line", "hist"])
def test_equal_dates_have_an_axis_of_a_few_days(kind):
    axes, _ = drawn(np.full(5, DAY), LivePlot(kind))
    low, high = axes.get_ylim() if kind == "line" else axes.get_xlim()
    assert low < DAY.astype(int) < high < low + 2


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
@pytest.mark.parametrize("are_items", [False, True])
def test_the_first_and_the_last_date_of_matplotlib_are_drawn(kind, are_items):
    days = np.array(["0001-01-01", "2026-03-01", "9999-12-31"], "M8[D]")
    job = played(np.arange(3.0) if are_items else days, 1)
    job._inputs = days if are_items else None
    frame = LiveFigure(job, kind).frame(final=True)
    assert frame.title == "horizon: 3 of 3"


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
@pytest.mark.parametrize(
    ("results", "limits"),
    [
        (np.full(3, DAY), (0, 1)),
        (np.arange(3.0), (DAY, LATER)),
        (np.arange(3.0), (DAY - DAY, LATER - DAY)),
    ],
)
def test_limits_of_another_kind_than_the_results_are_refused(results, limits, kind):
    with pytest.raises(CannotDrawError, match=r"not of the kind of limits=\("):
        drawn(results, LivePlot(kind, limits=limits))
