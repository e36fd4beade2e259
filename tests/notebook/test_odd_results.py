"""A result that cannot be drawn costs its own place, and a frame that fails only itself.

Names, units, dates and zones are asserted at the axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import tracemalloc
import warnings
from collections import namedtuple
from itertools import zip_longest
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.dates import date2num, num2date

from nbshare import LivePlot, grid
from nbshare._core.notebook import Display, frames
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.live_plot import CannotDrawError, NothingYetError
from nbshare.errors import DisplayWarning
from tests.support.grids import combined
from tests.support.played import PlayedJob, played

pytestmark = pytest.mark.usefixtures("few_pixels")


def axes_of(results, plot="line", items=None, *, first=None):
    """Return the axes of the last frame, after one of the first results."""
    job = played(results, 1)
    job._inputs = items
    figure = LiveFigure(job, plot)
    if first is not None:
        job.flags[first:] = False
        with contextlib.suppress(NothingYetError):
            figure.frame(final=False)
        job.flags[:] = True
    figure.frame(final=True)
    return figure.figure.axes[0]


def cells_of(results, kind):
    """Return the values of the last frame, as the pointer on a page shows them."""
    figure = LiveFigure(played(results, 1), kind)
    figure.frame(final=True)
    return figure._cells()


# -- results of several lengths --------------------------------------------------------------------


def padded(arrays):
    """Return arrays of several lengths as the rows of one."""
    return np.array([*zip_longest(*arrays, fillvalue=np.nan)], float).T


@pytest.mark.parametrize(
    ("make", "lengths", "first"),
    combined(
        [np.array, list, tuple, pd.Series],
        [(1, 2, 3), (3, 1, 2), (0, 2, 1)],
        [None, 1, 2],
        soak=True,
    ),
)
def test_short_results_of_several_lengths_have_a_line_for_each_element(make, lengths, first):
    results = [make(np.arange(1.0, n + 1)) for n in lengths]
    axes = axes_of(results, first=first)
    drawn = np.array([line.get_ydata() for line in axes.lines]).T
    assert np.array_equal(drawn, padded(results), equal_nan=True)


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max", "last"])
@pytest.mark.parametrize("first", [None, 1])
def test_long_results_of_several_lengths_are_reduced_over_their_own(how, first):
    results = [np.arange(n, 0.0, -1.0) for n in (20, 9, 31)]
    axes = axes_of(results, LivePlot("line", reduction=how), first=first)
    one = {"last": lambda row: row[-1]}.get(how) or getattr(np, how)
    assert axes.lines[0].get_ydata().tolist() == [one(row) for row in results]
    assert axes.get_title("left") == "horizon"


@pytest.mark.parametrize("first", [None, 1])
def test_rows_of_several_lengths_are_an_image_whose_short_rows_end_in_gaps(first):
    results = [np.arange(1.0, n) for n in (12, 20, 16)]
    (image, *_) = axes_of(results, "image", first=first).images
    shown = np.ma.getdata(image.get_array())
    there = np.isfinite(padded(results))
    assert shown.shape == there.shape
    assert (shown[there] == padded(results)[there]).all()


def test_a_histogram_of_several_lengths_counts_what_there_is():
    axes = axes_of([np.arange(12.0), np.arange(3.0), np.zeros(0)], "hist")
    assert axes.patches[0].get_data()[0].sum() == 15
    assert axes.get_title("left") == "horizon"


def test_images_of_several_shapes_are_combined_where_they_are():
    axes = axes_of([np.ones((4, 6)), np.full((6, 4), 3.0)], "image", first=1)
    mean = np.ma.getdata(axes.images[0].get_array())
    assert mean.shape == (6, 6)
    assert (mean[:4, :4] == 2).all()
    assert (mean[:4, 4:] == 1).all()
    assert (mean[4:, :4] == 3).all()


@pytest.mark.parametrize("first", [None, 1])
def test_parts_that_come_later_have_a_line_and_a_panel(first):
    results = [{"a": 1.0}, {"a": 2.0, "b": 5.0}, {"b": 6.0}]
    axes = axes_of(results, first=first)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    drawn = np.array([line.get_ydata() for line in axes.lines])
    assert names == ["a", "b"]
    assert np.array_equal(drawn, [[1, 2, np.nan], [np.nan, 5, 6]], equal_nan=True)


def test_many_results_of_several_lengths_are_never_read_into_one_array():
    results = [np.ones((1000 + k, 200)) for k in range(30)]
    figure = LiveFigure(played(results, 0.5), "image")
    figure.frame(final=False)
    tracemalloc.start()
    figure._job.flags[:] = True
    figure.frame(final=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(array.nbytes for array in results) * 0.9


# -- what is missing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "place", "first"),
    combined([None, pd.NA, pd.NaT, np.ma.masked], [0, 2, 5], [None, 1, 3], soak=True),
)
def test_a_missing_number_is_a_gap(missing, place, first):
    results = [float(i) for i in range(6)]
    results[place] = missing
    axes = axes_of(results, first=first)
    y = axes.lines[0].get_ydata()
    assert np.flatnonzero(np.isnan(y)).tolist() == [place]
    assert "1 missing" in axes.get_title("left")


def test_a_missing_number_is_counted_above_an_image():
    assert axes_of([1.0, None, 3.0, 4.0], "image").get_title("left") == "horizon, 1 missing"


@pytest.mark.parametrize("kind", ["line", "hist", "image"])
@pytest.mark.parametrize(
    "results",
    [
        [None, 1.0, 2.0],
        [pd.Timestamp("2026-03-01"), pd.NaT, pd.Timestamp("2026-03-03")],
        [dt.date(2026, 3, 1), None, dt.date(2026, 3, 2)],
        [(1, None), (2, 3.0), None],
        [np.ones(4), None, np.zeros(4)],
        [{"a": 1, "b": 2.0}, {"a": 3}, None],
        [None, np.ones((5, 6)), np.ones((5, 6))],
        [1.0, 2 + 1j, None],
        [pd.Timedelta(hours=2), pd.NaT, dt.timedelta(days=400)],
    ],
)
def test_a_missing_result_leaves_the_others(kind, results):
    if kind == "image" and isinstance(results[0], dt.date):
        pytest.skip("dates have no colours")
    for order in (results, results[::-1]):
        assert axes_of(order, kind, first=1).get_title("left")


@pytest.mark.parametrize("kind", ["line", "image"])
def test_a_result_that_value_cannot_take_is_a_gap_and_warns_once(kind, shown):
    results = [{"E": float(i)} for i in range(9)]
    results[2], results[5] = {}, {"other": 1}
    job = PlayedJob(results)
    with pytest.warns(DisplayWarning, match="KeyError") as caught:
        drawn = shown(job, LivePlot(kind, value=lambda result: result["E"]), 5, 9)
    assert len(caught) == 1
    assert drawn == ["horizon: 5 of 9, 1 missing", "horizon: 9 of 9, 2 missing"]


def test_complex_results_after_real_ones_are_drawn_by_magnitude():
    axes = axes_of([1.0, -2.0, 3 + 4j], first=2)
    assert axes.lines[0].get_ydata().tolist() == [1, 2, 5]
    assert axes.get_ylabel() == "|result|"


@pytest.mark.parametrize("how", ["mean", "min", "max", "sum"])
def test_masked_values_and_nan_are_left_out_of_a_line(how):
    rows = np.arange(80.0).reshape(4, 20)
    rows[1, 3] = rows[2] = np.nan
    plot = LivePlot("line", reduction=how)
    expected = getattr(pd.DataFrame(rows), how)(axis=1).where(~np.isnan(rows).all(axis=1))
    for results in (rows, [*np.ma.masked_invalid(rows)]):
        axes = axes_of(results, plot)
        np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
        assert "1 NaN left out" in axes.get_title("left")


@pytest.mark.parametrize("dtype", ["Int64", "Float32", "boolean", "float64[pyarrow]"])
def test_missing_values_of_a_series_are_counted_as_missing(dtype):
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    results = [pd.Series([1, pd.NA, 0], dtype=dtype) for _ in range(500)]
    figure = LiveFigure(played(results, 1), "hist")
    assert figure.frame(final=True).title == "horizon: 500 of 500, 500 missing"
    figure = LiveFigure(played(results * 3, 1), "line")
    assert figure.frame(final=True).title == "horizon: 1500 of 1500, 1,500 missing"


@pytest.mark.parametrize("kind", ["line", "image", "hist"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "int4"])
def test_numbers_of_ml_dtypes_are_drawn(dtype, kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2, 4]).astype(getattr(ml_dtypes, dtype))
    for results in (array, list(array), [array, array]):
        assert "of" in LiveFigure(played(results, 1), kind).frame(final=True).title


# -- frames that fail ------------------------------------------------------------------------------


class Output:
    """An output of a cell, which keeps the texts of what it showed."""

    def __init__(self):
        self.texts = []

    def show(self, make, *, final):
        """Keep the text."""
        if (bundle := make()) is not None:
            self.texts.append(bundle[0]["text/plain"])


@pytest.fixture
def shown(monkeypatch):
    """Return a function that draws a job at some numbers of results, and returns the titles."""
    monkeypatch.setattr(frames, "kernel_output", lambda _: Output())

    def draw(job, plot, *numbers):
        job.state = "running"
        drawer = frames.LiveFrames(job, plot, in_background=False)
        display = Display([drawer])
        for n in numbers[:-1]:
            job.flags[:n] = True
            display._draw(drawer, final=False)
        job.flags[: numbers[-1]], job.state = True, "done"
        display.close()
        return drawer.output.texts

    return draw


def test_values_of_reduce_between_frames_are_points_of_the_last_one(monkeypatch):
    """Also in a document that is rebuilt, which has only the last frame."""
    monkeypatch.setattr(frames, "kernel_output", lambda _: Output())
    monkeypatch.setenv("NBSHARE_STATIC", "1")
    job = played([1.0] * 9, 0)
    job._is_reduced, job._folded = True, lambda: (job.n_done, job.results[0] / max(job.n_done, 1))
    drawer = frames.LiveFrames(job, "line", in_background=False)
    display = Display([drawer], live=False)
    for n in (2, 5, 9):
        job.flags[:n] = True
        display.update()
        display._due[drawer] = 0.0
    assert drawer.output.texts == []
    display.close()
    (line,) = drawer._figure.figure.axes[0].lines
    assert line.get_data()[0].tolist() == [2, 5, 9]
    assert line.get_data()[1].tolist() == [1 / 2, 1 / 5, 1 / 9]


class SlowOutput(Output):
    """An output for which a frame takes some time, on a clock of its own."""

    def __init__(self, clock, took_s):
        super().__init__()
        self._clock, self._took_s = clock, took_s

    def show(self, make, *, final):
        """Keep the text."""
        super().show(make, final=final)
        self._clock.now_s += self._took_s


@pytest.mark.parametrize("took_s", [0.02, 0.05, 0.09])
def test_the_first_frames_come_soon_and_later_ones_make_up_for_it(monkeypatch, took_s):
    """All in all drawing takes 5 % of the time if the workers use all CPUs."""
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(frames, "time", clock)
    monkeypatch.setattr(frames.processes, "usable_cpus", lambda: 2)
    monkeypatch.setattr(frames, "kernel_output", lambda _: SlowOutput(clock, took_s))
    job, n_frames, began = PlayedJob(np.arange(300.0)), 0, []
    job.state = "running"
    drawer = frames.LiveFrames(job, "line", in_background=False)
    while clock.now_s < 40:
        job.flags[: n_frames + 1] = True
        n_frames += 1
        began.append(clock.now_s)
        clock.now_s += drawer.draw(final=False)
    assert began[3] < 2
    assert n_frames * took_s / clock.now_s == pytest.approx(0.05, rel=0.05)


def fails_below(least):
    """Return a function that cannot draw few points."""

    def draw(ax, partial):
        if partial.count() < least:
            raise ValueError("too few points")
        ax.plot(partial)

    return draw


def test_a_frame_that_fails_is_left_out_and_later_ones_are_drawn(shown):
    with pytest.warns(DisplayWarning, match="too few points") as caught:
        drawn = shown(PlayedJob(np.arange(20.0)), fails_below(6), 2, 4, 10, 20)
    assert drawn == ["horizon: 10 of 20", "horizon: 20 of 20"]
    assert len(caught) == 1


def test_the_end_is_drawn_although_no_frame_before_could_be(shown):
    with pytest.warns(DisplayWarning, match="too few points"):
        assert shown(PlayedJob(np.arange(9.0)), fails_below(9), 1, 2, 9) == ["horizon: 9 of 9"]


def test_if_the_end_cannot_be_drawn_the_last_good_frame_says_how_much_it_shows(shown):
    titles = []

    def draw(ax, partial):
        if partial.count() > 7:
            raise ValueError("too many points")
        ax.plot(partial)
        titles.append(partial.count())

    with pytest.warns(DisplayWarning, match="too many points") as caught:
        drawn = shown(PlayedJob(np.arange(9.0)), draw, 3, 5, 8, 9)
    assert drawn == ["horizon: 3 of 9", "horizon: 5 of 9", "horizon: 5 of 9"]
    assert titles == [3, 5, 5]
    assert len(caught) == 1


def test_results_that_are_all_missing_so_far_cost_no_warning(shown):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown(PlayedJob([None, None, 1.0]), "line", 1, 2, 3) == [
            "horizon: 3 of 3, 2 missing"
        ]
    with pytest.warns(DisplayWarning, match="all results so far are missing"):
        assert shown(PlayedJob([None, None]), "line", 1, 2) == []


def test_a_plot_that_lags_says_how_much_it_shows():
    job = played(np.arange(60.0), 0.5)
    figure = LiveFigure(job, "line")
    titles = []
    for n_soon in (0, 35, 60):
        figure.frame(final=False, n_soon=n_soon)
        titles.append(figure.figure.axes[0].get_title("left"))
    assert titles == ["horizon", "horizon", "horizon: 30 of 60"]


# -- dates -----------------------------------------------------------------------------------------

TOKYO = ZoneInfo("Asia/Tokyo")


def stamps(zone):
    """Return times in several types, one per hour."""
    first = dt.datetime(2026, 3, 1, 8, tzinfo=zone)
    times = [first + dt.timedelta(hours=i) for i in range(30)]
    return [times, [*map(pd.Timestamp, times)], pd.DatetimeIndex(times)]


def labels(axis):
    """Return the texts at an axis."""
    axis.axes.figure.canvas.draw()
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("zone", [None, TOKYO, dt.timezone(dt.timedelta(hours=9))])
def test_times_keep_their_zone_and_the_axis_names_it(zone, kind):
    times = stamps(zone)[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_item = axes_of(np.arange(30.0), "line", times)
        as_result = axes_of([*times], "line")
    for axis, places in (
        (by_item.xaxis, by_item.lines[0].get_xdata()),
        (as_result.yaxis, as_result.lines[0].get_ydata()),
    ):
        assert num2date(places[0], zone or dt.UTC).hour == 8
        assert ("" if zone is None else str(zone)) in axis.get_label_text()
        at = [num2date(x, zone or dt.UTC) for x in axis.get_ticklocs()]
        assert [f"{time:%H:%M}" for time in at if time.hour] == [
            text for text in labels(axis) if ":" in text
        ]


@pytest.mark.parametrize(
    "items",
    [
        pd.date_range("2026-01-01", periods=90),
        [dt.date(2026, 1, 1) + dt.timedelta(i) for i in range(90)],
        pd.period_range("2026-01-01", periods=90, freq="D"),
        pd.Series(pd.date_range("2026-01-01", periods=90), index=range(5, 95)),
        np.datetime64("2026-01-01") + np.arange(90),
    ],
)
def test_dates_as_items_make_a_date_axis(items):
    axes = axes_of(np.arange(90.0), "line", items)
    assert axes.get_xlabel() == "input"
    days = [num2date(x).date() for x in axes.lines[0].get_xdata()]
    assert (days[0], days[-1]) == (dt.date(2026, 1, 1), dt.date(2026, 3, 31))
    assert {"Feb", "Mar"} <= set(labels(axes.xaxis))


# -- names and units -------------------------------------------------------------------------------

Fit = namedtuple("Fit", "mean std")


@dataclasses.dataclass
class Moments:
    """Two numbers with names."""

    mean: float
    std: float


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"mean": x, "std": 2 * x},
        lambda x: Fit(x, 2 * x),
        lambda x: Moments(x, 2 * x),
        lambda x: pd.Series({"mean": x, "std": 2 * x}),
        lambda x: np.array((x, 2 * x), [("mean", float), ("std", float)]),
    ],
)
def test_parts_of_a_result_keep_their_names(make):
    results = [make(float(i)) for i in range(9)]
    axes = axes_of(results, first=3)
    assert [text.get_text() for text in axes.get_legend().texts] == ["mean", "std"]
    assert axes.lines[1].get_ydata().tolist() == [2.0 * i for i in range(9)]
    image = axes_of(results, "image")
    assert labels(image.xaxis) == ["mean", "std"]


@pytest.mark.parametrize(
    ("durations", "unit", "last"),
    [
        ([dt.timedelta(days=i) for i in range(1, 6)], "d", 5),
        ([pd.Timedelta(hours=i / 2) for i in range(1, 9)], "h", 4),
        ([np.timedelta64(i, "ms") for i in range(900)], "ms", 899),
        (np.arange(3000).astype("m8[s]"), "min", 2999 / 60),
    ],
)
def test_durations_have_a_unit_for_their_range(durations, unit, last):
    axes = axes_of(durations, first=2)
    assert axes.get_ylabel() == f"result ({unit})"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(last)
    by_item = axes_of(np.arange(len(durations)), items=durations)
    assert by_item.get_xlabel() == f"input ({unit})"
    assert by_item.lines[0].get_xdata()[-1] == pytest.approx(last)


class Metres:
    """A quantity as astropy has them."""

    def __init__(self, value, unit="m"):
        self.value, self.unit = value, unit

    def to_value(self, unit):
        """Return the number in a unit."""
        return self.value * {"m": 1, "km": 1000}[self.unit] / {"m": 1, "km": 1000}[unit]


@pytest.mark.parametrize("kind", ["line", "image"])
def test_times_of_a_day_are_durations_since_midnight(kind):
    times = [dt.time(hour, 30) for hour in range(24)]
    (cells,) = cells_of(times, kind)
    assert cells.values.ravel()[:24].tolist() == [hour + 0.5 for hour in range(24)]
    assert cells.names == ["result (h)"]


@pytest.mark.parametrize("year", ["-0500", "0000", "12000"])
def test_a_date_that_matplotlib_has_not_is_refused_with_advice(year):
    with pytest.raises(CannotDrawError, match=r"years 1 to 9999.*LivePlot\(value="):
        axes_of(np.array([year, "2026"], "M8[Y]"))


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
def test_dates_of_every_unit_are_drawn(unit):
    dates = np.array(["1700-01-01", "2026-03-01", "2261-12-31", "NaT"], f"M8[{unit}]")
    drawn = axes_of(dates).lines[0].get_ydata()
    np.testing.assert_allclose(drawn, date2num(dates))


@pytest.mark.parametrize("hours", [5, 28, 47, 50, 24 * 45, 24 * 500])
def test_dates_in_a_small_plot_cost_no_warning(hours, recwarn):
    """Pink boxes in the notebook, of a locator that finds no interval for so few ticks."""
    days = np.datetime64("2026-01-01T00", "h") + np.linspace(0, hours, 7).astype(int)
    for kind in ("hist", "line"):
        axes_of([{"day": day, **dict.fromkeys("abcdefg", 1.0)} for day in days], kind)
    assert not recwarn.list


@pytest.mark.parametrize("kind", ["line", "hist", "image"])
def test_numbers_near_zero_cost_no_warning(kind, recwarn):
    axes_of([5e-324, 0.0, 2e-323], kind)
    assert not recwarn.list


def test_an_empty_histogram_has_no_negative_numbers():
    assert axes_of([np.nan, np.nan], "hist").get_ylim() == (0, 1)


def test_a_number_that_is_too_large_for_a_plot_is_refused_with_advice():
    with pytest.raises(CannotDrawError, match="too large for float64"):
        axes_of([1, 10**400])


def test_quantities_have_the_unit_of_the_first_at_the_axis():
    results = [Metres(2.0, "km"), Metres(500.0), Metres(3.0, "km")]
    axes = axes_of(results)
    assert axes.get_ylabel() == "result (km)"
    assert axes.lines[0].get_ydata().tolist() == [2, 0.5, 3]
    assert axes_of(np.arange(3.0), items=results).get_xlabel() == "input (km)"


def test_items_with_names_keep_them():
    axes = axes_of(np.arange(3.0), items=["early", "late", "other"])
    assert labels(axes.xaxis) == ["early", "late", "other"]


class Colour(enum.Enum):
    """Items of an Enum."""

    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([Colour.RED, Colour.BLUE], ["RED", "BLUE"]),
        ([False, True], ["False", "True"]),
        (np.array([False, True]), ["False", "True"]),
    ],
)
@pytest.mark.parametrize("kind", ["line", "grid"])
def test_members_of_an_enum_and_bools_are_names_of_items(items, names, kind):
    axes = axes_of([1.0, 2.0], items=items if kind == "line" else grid(x=items))
    assert [axes.xaxis.get_major_formatter()(k, None) for k in (0, 1)] == names


def test_items_of_xarray_have_their_name_and_unit_at_the_axis():
    items = [*xr.DataArray([1.0, 3.0], dims="f", name="frequency", attrs={"units": "Hz"})]
    axes = axes_of([1.0, 2.0], items=items)
    assert axes.lines[0].get_xdata().tolist() == [1, 3]
    assert axes.get_xlabel() == "frequency (Hz)"
