"""Names, units and places of the items of a run, at the axis of its plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from nbshare import LivePlot, map_async, rows
from nbshare._core.notebook.figure import LiveFigure

pytestmark = pytest.mark.usefixtures("few_pixels")

DAYS = pd.date_range("2026-03-01", periods=3, name="day")
STARS = pd.DataFrame({"star": ["Vega", "Vega", "Mira"], "band": [1, 2, 2], "flux": 1.0})


def one(_):
    return 1.0


def axes_of(items, plot="line"):
    """Return the axes of the plot of a real run over these items."""
    job = map_async(one, items, backend="threads", progress=False)
    assert job.wait(30)
    figure = LiveFigure(job, plot)
    figure.frame(final=True)
    return figure.figure.axes[0]


def texts(axis):
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


@pytest.mark.parametrize(
    ("items", "label"),
    [
        (pd.Series([1.0, 2.0, 4.0], name="depth"), "depth"),
        (pd.Series([1, 2, 4], name=7), "7"),
        (pd.Series([1.0, 2.0, 4.0]), "input"),
        (pd.Index([1.0, 2.0, 4.0], name="depth"), "depth"),
        (pd.Index([1.0, 2.0, 4.0], name="depth").array, "input"),
        (DAYS, "day"),
        (DAYS.tz_localize("Asia/Tokyo"), "day (Asia/Tokyo)"),
        (DAYS.to_series(), "day"),
        (DAYS - DAYS[0], "day (d)"),
        (DAYS.to_period("D"), "day"),
        (pd.Series(["a", "b"], name="star"), "star"),
        (pd.Series(["a", "b"], name="star", dtype="category"), "star"),
        (pd.Series([True, False], name="is_new"), "is_new"),
        (pd.MultiIndex.from_product([[1, 2], ["x", "y"]], names=["n", "k"]), "n, k"),
        (xr.DataArray([1.0, 2.0, 4.0], dims="z", name="depth", attrs={"units": "m"}), "depth (m)"),
        (xr.DataArray([1.0, 2.0], dims="z", coords={"z": [3, 5]}).z, "z"),
        (STARS.groupby("star"), "star"),
        (STARS.groupby(["star", "band"]), "star, band"),
        (STARS.flux.groupby(STARS.band), "band"),
        (rows(STARS.set_index("star")), "star"),
        (rows(STARS), "item"),
        (np.array([1.0, 2.0, 4.0]), "input"),
        (["a", "b"], "item"),
    ],
)
def test_the_name_of_the_items_is_at_their_axis(items, label):
    assert axes_of(items).get_xlabel() == label


def test_times_of_xarray_are_dates_at_the_axis():
    times = xr.DataArray(DAYS, dims="time", name="time")
    axes = axes_of(times)
    assert axes.get_xlabel() == "time"
    assert (
        axes.lines[0].get_xdata().tolist() == DAYS.to_numpy().astype("M8[D]").astype(int).tolist()
    )


def test_the_name_of_a_polars_series_and_of_keys_is_at_their_axis():
    polars = pytest.importorskip("polars")
    assert axes_of(polars.Series("depth", [1.0, 2.0])).get_xlabel() == "depth"
    axes = axes_of(polars.from_pandas(STARS).group_by("star", "band"))
    assert axes.get_xlabel() == "star, band"
    assert texts(axes.xaxis) == ["Vega, 1", "Vega, 2", "Mira, 2"]


def test_the_name_of_the_items_is_at_the_rows_of_an_image():
    plot = LivePlot("image", value=lambda _: np.arange(5.0))
    assert axes_of(pd.Series([1.0, 2.0, 4.0], name="depth"), plot).get_ylabel() == "depth"


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([(1, 2.5), ("a", 3)], ["1, 2.5", "a, 3"]),
        (STARS.groupby(["star", "band"]), ["Mira, 2", "Vega, 1", "Vega, 2"]),
        ([Path("/data/b.fits"), Path("/data/a.fits")], ["b.fits", "a.fits"]),
        ([np.sin, abs, Path], ["sin", "abs", "Path"]),
        (pd.interval_range(0, 2), ["(0, 1]", "(1, 2]"]),
        ([1 + 2j, 3j], ["1+2j", "0+3j"]),
        (pd.Series(["a", None, "c"]), ["a", "c"]),
    ],
)
def test_items_that_are_not_numbers_have_names(items, names):
    assert texts(axes_of(items).xaxis) == names


def test_an_image_of_items_with_names_is_one_row_with_the_names():
    axes = axes_of(pd.Series(["a", "b", "c"], name="site"), "image")
    assert texts(axes.xaxis) == ["a", "b", "c"]
    assert axes.get_xlabel() == "site"
    assert axes.images[0].get_array().shape == (1, 3)
