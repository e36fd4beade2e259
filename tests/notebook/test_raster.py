"""No value of large results is left out of an image. NumPy is the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbshare import LivePlot, map_async, tiles
from nbshare._core.notebook import image, raster
from nbshare._core.notebook.axes import calm
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.live_plot import REDUCTIONS
from tests.support.played import PlayedJob, played

COMBINED = {"mean": np.nanmean, "sum": np.nansum, "min": np.nanmin, "max": np.nanmax}


def combined(how, values):
    """Return what NumPy makes of values, NaN if there are none that are not."""
    values = values[~np.isnan(values)]
    return COMBINED[how](values) if values.size else np.nan


def blocks_of(values, steps, combine):
    """Return the blocks of an image, each combined."""
    height, width = values.shape
    return [
        [combine(values[y : y + steps[0], x : x + steps[1]]) for x in range(0, width, steps[1])]
        for y in range(0, height, steps[0])
    ]


def some_values(rng, shape):
    """Return values of which some are NaN."""
    values = rng.normal(size=shape).astype(rng.choice(["f4", "f8"]))
    values[rng.random(shape) < rng.choice([0, 0.3])] = np.nan
    return values


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["mean", "min", "max"]))
def test_each_pixel_is_what_its_block_of_the_result_has(seed, how):
    rng = np.random.default_rng(seed)
    shape, steps = rng.integers(1, 50, 2), rng.choice([1, 2, 3, 7, 20], 2)
    values = some_values(rng, (1, *shape))
    one = raster.Raster(1, tuple(shape), how, steps)
    one.add(np.zeros(1, int), np.zeros(1, int), values)
    expected = blocks_of(values[0], steps, lambda block: combined(how, block))
    seen = one.picture((), is_combined=False)
    np.testing.assert_allclose(seen.pixels[0], expected, rtol=1e-4, atol=1e-5)
    is_shown = np.repeat(np.repeat(~np.isnan(expected), steps[0], 0), steps[1], 1)
    is_left_out = np.isnan(values[0]) & is_shown[: shape[0], : shape[1]]
    assert seen.n_left_out == np.count_nonzero(is_left_out)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["mean", "sum", "min", "max"]))
def test_images_are_combined_pixel_by_pixel_and_then_in_blocks(seed, how):
    rng = np.random.default_rng(seed)
    shape, steps = rng.integers(1, 30, 2), rng.choice([1, 2, 3, 20], 2)
    values = some_values(rng, (6, *shape))
    one = raster.Raster(1, tuple(shape), how, ())
    for part in np.array_split(rng.permutation(6), 3):
        items = np.sort(part)
        one.add(np.zeros(len(items), int), items, values[items])
    whole = np.array(
        [[combined(how, values[:, y, x]) for x in range(shape[1])] for y in range(shape[0])]
    )
    seen = one.picture(steps, is_combined=True)
    in_block = "mean" if how == "sum" else how
    expected = blocks_of(whole, steps, lambda block: combined(in_block, block))
    np.testing.assert_allclose(seen.pixels[0], expected, rtol=1e-4, atol=1e-5)
    assert np.isnan(seen.low - seen.high) or (seen.low, seen.high) == pytest.approx(
        (np.nanmin(whole, initial=np.inf), np.nanmax(whole, initial=-np.inf)), rel=1e-5, abs=1e-5
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["mean", "min", "max"]))
def test_parts_of_a_result_are_as_the_whole(seed, how):
    """Also where a block is of several of them."""
    rng = np.random.default_rng(seed)
    shape, steps = rng.integers(1, 40, 2), rng.choice([1, 2, 3, 20], 2)
    values = some_values(rng, shape)
    whole, parts = (raster.Raster(1, tuple(shape), how, steps) for _ in range(2))
    whole.add(np.zeros(1, int), np.zeros(1, int), values[np.newaxis])
    cuts = [[0, *np.sort(rng.integers(0, k, 2)), k] for k in shape]
    for y, x in itertools.product(*map(itertools.pairwise, cuts)):
        if y[0] < y[1] and x[0] < x[1]:
            place = slice(*map(int, y)), slice(*map(int, x))
            parts.put(place, values[place])
    one, other = (each.picture((), is_combined=False) for each in (whole, parts))
    np.testing.assert_allclose(other.pixels, one.pixels, rtol=1e-4, atol=1e-5)
    assert (other.low, other.high) == (one.low, one.high)
    assert other.n_left_out == one.n_left_out
    assert other.is_there.all()


def clim(results, plot="image"):
    """Return the range of the colours."""
    figure = LiveFigure(played(results, 1), plot)
    figure.paint(final=True)
    return figure.figure.axes[0].images[0].get_clim()


def check_limits(seed):
    """Compare the limits of an array with more values than pixels with NumPy's."""
    rng = np.random.default_rng(seed)
    n = int(np.exp(rng.uniform(np.log(30_000), np.log(3_000_000))))
    tall = int(np.exp(rng.uniform(np.log(2), np.log(n / 2))))
    values = rng.random((tall, n // tall), np.float32)
    odd = rng.integers(0, values.size, 4)
    values.ravel()[odd] = rng.choice([1e3, -1e3, np.nan, np.inf, -np.inf], 4)
    results = values[np.newaxis] if rng.random() < 0.5 else values
    finite = values[np.isfinite(values)]
    low, high = clim(results)
    assert (low, high) == calm(float(finite.min()), float(finite.max()))


def test_the_limits_are_those_of_all_values():
    for seed in range(4):
        check_limits(seed)


def test_the_limits_are_those_of_all_values_of_many_arrays():
    for seed in range(4, 60):
        check_limits(seed)


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("shape", [(1, 1500, 1500), (40, 5000), (3000, 7), (100_000,)])
def test_a_single_bright_value_is_within_the_limits(shape, how):
    results = np.zeros(shape, np.float32)
    results.reshape(-1)[results.size * 2 // 3 + 1] = 100
    assert clim(results, LivePlot("image", reduction=how)) == (0, 100)


def test_a_bright_pixel_of_tiles_is_within_the_limits():
    whole = np.zeros((1500, 1300), np.float32)
    whole[701, 701] = 100
    job = map_async(np.copy, tiles(whole, (301, 301), 0), backend="threads", progress=False)
    job.result()
    figure = LiveFigure(job, "image")
    figure.paint(final=True)
    shown = figure.figure.axes[0].images[0]
    assert shown.get_clim() == (0, 100)
    assert shown.get_array().max() == pytest.approx(25)


def test_what_was_averaged_away_is_told():
    results = np.zeros((60, 8000))
    results[range(60), range(1003, 7000, 100)] = 1
    job = played(results, 1)
    for how, remark in (("mean", ", peaks are averaged (see reduction='max')"), ("max", "")):
        frame = LiveFigure(job, LivePlot("image", reduction=how)).frame(final=True)
        assert frame.title == f"horizon: 60 of 60{remark}"


@pytest.mark.parametrize("n", [1, 3])
def test_a_nan_changes_its_own_pixel_only(n):
    """The others are drawn as without it, also where images have more pixels than the plot."""
    y, x = np.mgrid[-1:1:700j, -1:1:700j]
    results = np.broadcast_to(np.sin(300 * (x**2 + y**2)), (n, 700, 700)).copy()
    drawn = []
    for k in (0, 1):
        results[:, 300, 200 : 200 + k] = np.nan
        figure = LiveFigure(played(results, 1), "image")
        figure.frame(final=True)
        drawn.append(np.asarray(figure._canvas.buffer_rgba()).copy())
        box = figure.figure.axes[0].get_window_extent()
    is_other = (drawn[0] != drawn[1]).any(axis=2)[:, : int(box.x1)]
    assert 0 < np.count_nonzero(is_other) <= 25


def test_what_is_missing_is_left_out_and_counted():
    results = np.ones((4, 6, 7))
    results[1:, 2, 3] = results[:, 4, 4] = np.nan
    figure = LiveFigure(played(results, 1), "image")
    assert figure.frame(final=True).title == "horizon: mean of 4 of 4, 3 NaN left out"
    assert figure.figure.axes[0].images[0].get_array().min() == 1
    (text,) = figure.figure.axes[0].get_legend().get_texts()
    assert text.get_text() == "NaN"


def test_blocks_that_stick_out_are_in_their_place():
    """The last block of a side of 1500 is as large as the others, beyond the edge of the axes."""
    figure = LiveFigure(played(np.zeros((1, 1501, 1025)), 1), "image")
    figure.paint(final=True)
    (axes,) = figure.figure.axes
    assert axes.images[0].get_extent() == [-0.5, 1025.5, 1501.5, -0.5]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 1024.5), (1500.5, -0.5))


def test_the_colours_of_large_pictures_are_means_of_blocks():
    results = np.zeros((1, 1100, 1100, 3))
    results[:, ::2, :, 0] = 1
    figure = LiveFigure(played(results, 1), "image")
    assert figure.frame(final=True).title == "horizon: mean of 1 of 1, blocks of 2 × 2"
    colours = figure.figure.axes[0].images[0].get_array()
    assert (colours == [0.5, 0, 0, 1]).all()


def test_a_frame_reads_new_results_only(monkeypatch):
    """Its cost is that of what has come since the one before."""
    seen = []
    add = image.Raster.add

    def noted(self, cells, items, rows):
        seen.extend(items.tolist())
        add(self, cells, items, rows)

    monkeypatch.setattr(image.Raster, "add", noted)
    job = PlayedJob(np.ones((9, 1200, 1200)))
    figure = LiveFigure(job, "image")
    for n in (2, 5, 9):
        job.flags[:n] = True
        figure.paint(final=True)
    assert seen == list(range(9))
