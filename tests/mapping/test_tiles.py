"""Tiles, parts of an array as items, and results without seams, compared with the whole array."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import LivePlot, attach, map_async, open_checkpoint, parallel_map, tiles
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.notebook.live_plot import CannotDrawError
from nbshare._core.system import SYSTEM

pytest.importorskip("scipy", reason="SciPy is not installed")
from scipy import ndimage

from tests.support.filters import (
    blind,
    colours,
    fails_at_the_middle,
    hides_the_dark,
    is_below,
    itself,
    large_numbers,
    may_share,
    mean,
    median,
    more_colours,
    one_colour,
    smooth,
    smooth_plane,
    stops,
    waits_at_the_right,
    without_overlap,
)
from tests.support.played import pixels_in

BACKENDS = [None, "threads", "serial"]
MODES = {"reflect": "mirror", "symmetric": "reflect", "edge": "nearest", "constant": "constant"}


@st.composite
def cases(draw):
    n_axes = draw(st.integers(1, 4))
    whole = draw(st.tuples(*[st.integers(4, 40 if n_axes < 3 else 9)] * n_axes))
    shape = draw(st.tuples(*[st.integers(2, 17 if n_axes < 3 else 5)] * n_axes))
    colours = draw(st.sampled_from([(), (3,)]))
    dtype = draw(st.sampled_from(["f8", "f4", "u1", "i4"]))
    r = draw(st.integers(0, 2))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 200, (*whole, *colours))
    return array.astype(dtype), shape, r, r + draw(st.integers(0, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), use=st.sampled_from([median, mean, is_below]))
def test_results_are_those_of_the_whole_array(backend, case, use):
    """Bit for bit, of local filters on 1 to 4 axes."""
    array, shape, r, overlap = case
    of_all = {"r": r, "n": len(shape)}
    found = parallel_map(
        use, tiles(array, shape, overlap), shared=of_all, backend=backend, progress=False
    )
    wanted = use(array, **of_all)
    assert isinstance(found, nbshare.SharedArray)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("edges", MODES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_edges_are_those_of_a_padded_array(edges, case):
    """A function that sees what is beyond an edge need not know of edges."""
    array, shape, r, overlap = case
    of_all = {"r": r, "n": len(shape)}
    found = parallel_map(
        blind, tiles(array, shape, overlap, edges=edges), shared=of_all, progress=False
    )
    axes = range(len(shape))
    wanted = ndimage.gaussian_filter(array, r, truncate=1.0, mode=MODES[edges], axes=axes)
    np.testing.assert_array_equal(found, wanted)


def test_the_function_may_leave_out_the_overlap_and_the_colours(image):
    found = parallel_map(without_overlap, tiles(image, (40, 30), 2, edges="constant"))
    np.testing.assert_array_equal(found, image.sum(axis=2, dtype=float))


@pytest.fixture
def image():
    return np.random.default_rng(5).random((100, 75, 3))


@pytest.mark.skipif(SYSTEM != "linux", reason="no /proc, which tells what is mapped")
@pytest.mark.parametrize("kind", ["shared", "file"])
def test_tiles_are_read_only_views_of_the_array_itself(tmp_path, kind):
    values = np.arange(600 * 700.0).reshape(600, 700)
    if kind == "shared":
        array, where = nbshare.share(values), "memfd"
    else:
        array = np.memmap(tmp_path / "values", float, "w+", shape=values.shape)
        array[:], where = values, str(tmp_path / "values")
    found = parallel_map(may_share, tiles(array, (256, 256)), shared={"where": where})
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("kind", ["shared", "file", "wider"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_go_to_the_callers_array(tmp_path, image, kind, backend):
    """Into shared memory or a mapped file, of another dtype too."""
    if kind == "file":
        out = np.memmap(tmp_path / "out", float, "w+", shape=image.shape)
    else:
        out = nbshare.zeros(image.shape, float if kind == "shared" else complex)
    found = parallel_map(smooth, tiles(image, (32, 32), 4), out=out, backend=backend)
    assert np.shares_memory(found, out)
    assert found.dtype == out.dtype
    np.testing.assert_array_equal(out, smooth(image))
    if kind == "file":
        out.flush()
        np.testing.assert_array_equal(np.fromfile(tmp_path / "out").reshape(out.shape), out)


@pytest.mark.skipif(SYSTEM != "linux", reason="an executor as backend needs Linux")
def test_an_executor_as_backend_gets_the_tiles_by_value(image):
    with ThreadPoolExecutor(2) as pool:
        found = parallel_map(smooth, tiles(image, (32, 32), 4), backend=pool)
    np.testing.assert_array_equal(found, smooth(image))


def test_failed_tiles_are_masked_in_their_places(image):
    image[40, 30] = 7
    items = tiles(image, (40, 30), 0)
    found = parallel_map(fails_at_the_middle, items, on_error="return")
    assert found.mask[40:80, 30:60].all()
    assert found.mask.sum() == 40 * 30 * 3
    np.testing.assert_array_equal(found.data[~found.mask], image[~found.mask])
    assert list(nbshare.last_job().errors) == [4]
    with pytest.raises(ValueError, match="it is 7") as caught:
        parallel_map(fails_at_the_middle, items)
    assert "item 4 (<tile 40:80, 30:60>)" in caught.value.__notes__[-1]


def test_results_of_several_dtypes_are_promoted(image):
    def whole_or_not(part):
        return part.astype("i2") if part.shape[1] == 30 else part

    found = parallel_map(whole_or_not, tiles(image, (40, 30), 0))
    assert found.dtype == float
    np.testing.assert_array_equal(found[:, 60:], image[:, 60:])
    assert not found[:, :60].any()


def test_partial_results_and_a_loop_over_them(image):
    items = tiles(image[..., 0], (40, 30), 3)
    job = map_async(smooth_plane, items)
    parts = dict(job)
    assert job.partial().shape == (100, 75)
    assert not job.partial().mask.any()
    for i, part in parts.items():
        np.testing.assert_array_equal(part, smooth_plane(image[..., 0])[items[i].place])


def test_an_interrupted_run_continues_at_its_tiles(tmp_path, image):
    """Stored tiles do not run again, and are in their places, as are those at the edges."""
    items, counts = tiles(image, (32, 32), 4), []
    for stop_at, n_workers in ((5, 1), (0, 2), (0, 2)):  # of two, both might run a fifth tile
        (tmp_path / "log").write_text("")
        (tmp_path / "stop").write_text(str(stop_at))  # as an argument, results would depend on it
        options = {"checkpoint": tmp_path / "run", "max_workers": n_workers}
        with suppress(ArithmeticError):
            found = parallel_map(stops, items, shared={"folder": tmp_path}, **options)
        counts.append(len((tmp_path / "log").read_text().splitlines()))
    assert counts == [5, len(items) - 4, 0]
    np.testing.assert_array_equal(found, smooth(image))


@pytest.mark.skipif(SYSTEM != "linux", reason="an executor as backend needs Linux")
def test_a_checkpoint_of_hosts_and_the_callers_array(tmp_path, image):
    """The owner stores what workers cannot, and what is stored fills an array of the caller."""
    items = tiles(image, (32, 32), 4)
    with ThreadPoolExecutor(2) as pool:
        parallel_map(smooth, items, checkpoint=tmp_path / "run", backend=pool)
    out = nbshare.zeros(image.shape)
    job = map_async(smooth, items, checkpoint=tmp_path / "run")
    assert job._run.n_restored == len(items)
    np.testing.assert_array_equal(job.result(), smooth(image))
    parallel_map(smooth, items, checkpoint=tmp_path / "run2", out=out)
    out[:] = 0
    parallel_map(smooth, items, checkpoint=tmp_path / "run2", out=out)
    np.testing.assert_array_equal(out, smooth(image))


def test_a_detached_run_puts_its_tiles_together(tmp_path, image):
    job = map_async(smooth, tiles(image, (32, 32), 4), checkpoint=tmp_path / "run", detach=True)
    np.testing.assert_array_equal(job.result(), smooth(image))


def test_a_stored_run_is_read_without_seams(tmp_path, image):
    parallel_map(smooth, tiles(image, (32, 48), 4), checkpoint=tmp_path / "run")
    attached = attach(tmp_path / "run")
    for found in (
        open_checkpoint(tmp_path / "run").results(),
        attached.result(),
        attached.partial(),
    ):
        np.testing.assert_array_equal(found, smooth(image))


def test_the_gaps_of_a_stored_run_are_masked(tmp_path, image):
    """And its plot shows each tile in its place."""
    (tmp_path / "log").touch()
    (tmp_path / "stop").write_text("5")
    image, options = image[..., 0], {"checkpoint": tmp_path / "run", "max_workers": 1}
    with pytest.raises(ArithmeticError):
        parallel_map(stops, tiles(image, (32, 48), 4), shared={"folder": tmp_path}, **options)
    attached = attach(tmp_path / "run")
    for found in (open_checkpoint(tmp_path / "run").results(), attached.partial()):
        assert found.shape == image.shape
        assert 0 < found.mask.sum() < found.size
        np.testing.assert_array_equal(found.compressed(), smooth(image)[~found.mask])
    figure = LiveFigure(attached, "image")
    figure.frame(final=False)
    np.testing.assert_array_equal(np.isnan(pixels_in(figure)), found.mask)


@pytest.mark.parametrize("n", [1, 3])
def test_the_live_image_shows_tiles_in_their_places(n):
    """Pixels are means of the whole, or of what the plot makes of a tile."""
    colours = () if n == 1 else (3,)
    whole = np.random.default_rng(1).random((2500, 1300, *colours))
    job = map_async(itself, tiles(whole, (700, 300), 5))
    figure = LiveFigure(job, LivePlot("image", value=lambda tile: 1 - tile))
    job.wait()
    assert figure.frame(final=True).is_complete
    (painter,) = figure._painters
    pixels = pixels_in(figure)
    means = (1 - whole)[:2499].reshape(833, 3, 650, 2, *colours).mean(axis=(1, 3))
    np.testing.assert_allclose(pixels[:833], means, rtol=1e-5)
    assert not painter._hatch.get_visible()


def test_a_live_image_hatches_missing_tiles(tmp_path):
    whole = np.tile(np.arange(200.0), (90, 1))
    items = tiles(whole, (50, 100), 0)
    job = map_async(waits_at_the_right, items, shared={"folder": tmp_path}, max_workers=3)
    while not job.present[::2].all():
        assert not job.done()
        time.sleep(0.001)
    figure = LiveFigure(job, "image")
    figure.frame(final=False)
    (painter,) = figure._painters
    shown = pixels_in(figure)
    np.testing.assert_array_equal(shown[:, :100], whole[:, :100])
    assert np.isnan(shown[:, 100:]).all()
    assert painter._hatch.get_visible()
    assert job.partial().mask[:, 100:].all()
    (tmp_path / "go").touch()
    np.testing.assert_array_equal(job.result(), whole)


@pytest.mark.parametrize("plot", ["line", "hist", lambda axes, partial: axes.imshow(partial)])
def test_other_plots_get_the_array(image, plot):
    job = map_async(itself, tiles(image[..., 0], (40, 30), 5))
    job.wait()
    frame = LiveFigure(job, plot).frame(final=True)
    assert frame.is_complete


def test_tiles_that_are_too_large_are_one(image):
    items = tiles(image, (1000, 1000), 500)
    assert len(items) == 1
    np.testing.assert_array_equal(parallel_map(smooth, items), smooth(image))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda x: tiles([[1]]), TypeError, "not a list"),
        (lambda x: tiles(np.ma.masked_all((3, 3))), TypeError, "a masked array"),
        (lambda x: tiles(x.astype(object)), TypeError, "objects"),
        (lambda x: tiles(x[:, 0, 0]), ValueError, "cuts 2 axes"),
        (lambda x: tiles(x, 5.0), TypeError, "shape="),
        (lambda x: tiles(x, (5, 0)), ValueError, "1 or more"),
        (lambda x: tiles(x, (5, 5), -1), ValueError, "overlap"),
        (lambda x: tiles(x, (5, 5), (1, 1, 1)), ValueError, "each of the 2"),
        (lambda x: tiles(x, (5, 5), edges="wrap"), ValueError, "'wrap'"),
        (lambda x: tiles(x[:0]), ValueError, "no elements"),
        (lambda x: tiles(np.zeros((1,) * 6), (1,) * 5), ValueError, "4 at most"),
        (lambda x: parallel_map(itself, tiles(x), out="list"), ValueError, "one array"),
        (lambda x: parallel_map(itself, tiles(x), out=x), ValueError, "nbshare.empty"),
        (
            lambda x: parallel_map(itself, tiles(x), out=nbshare.zeros((9, 9))),
            ValueError,
            r"\(9, 9\)",
        ),
        (
            lambda x: parallel_map(itself, tiles(x), out=nbshare.zeros(x.shape[:2])),
            ValueError,
            r"lengths \(3,\) after the first 2",
        ),
        (
            lambda x: parallel_map(itself, tiles(x), out=nbshare.zeros(x.shape, int)),
            TypeError,
            "cannot hold",
        ),
        (lambda x: parallel_map(itself, tiles(x), [1]), TypeError, "pass it without other"),
        (lambda x: parallel_map(np.sum, tiles(x)), ValueError, r"\(100, 75\)"),
        (lambda x: parallel_map(hides_the_dark, tiles(x)), TypeError, "filled"),
        (
            lambda x: parallel_map(
                colours,
                tiles(np.arange(9.0), 5, 0),
                shared={"later": more_colours},
                out=nbshare.zeros((9, 3)),
            ),
            ValueError,
            r"\(4,\) after the first 1",
        ),
    ],
)
def test_what_cannot_be_put_together_is_refused(image, make, error, says):
    with pytest.raises(error, match=says):
        make(image)


@pytest.mark.parametrize("later", [more_colours, one_colour, large_numbers])
def test_results_that_no_array_holds_come_as_a_list(tmp_path, later):
    """Those that are stored, too. None is cut, repeated or rounded."""
    items, shared = tiles(np.arange(9.0), 5, 0), {"later": later}
    wanted = [colours(np.arange(0, 5.0), later), later(np.arange(5, 9.0))]
    job = map_async(colours, items, shared=shared, checkpoint=tmp_path / "run")
    with pytest.warns(nbshare.errors.MixedResultsWarning, match="tiles differ"):
        found = job.result()
    with pytest.warns(nbshare.errors.MixedResultsWarning, match="tiles differ"):
        stored = open_checkpoint(tmp_path / "run").results()
    for results in found, stored, job.partial():
        assert [part.dtype for part in results] == [part.dtype for part in wanted]
        for part, whole in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(part, whole)


def tenfold(part):
    return np.full(part.shape, 10) if part[0] == 0 else part * 10


def test_an_image_of_several_dtypes_has_all_tiles_in_their_places():
    """It is no mean of tiles."""
    values = np.arange(12.0) * (np.arange(12) > 3)
    job = map_async(tenfold, tiles(values[:, np.newaxis], (4, 1), 0), backend="threads")
    job.result()
    figure = LiveFigure(job, "image")
    assert figure.frame(final=True).title == "tenfold: 3 of 3"
    pixels = figure.figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(pixels, job.result())


def test_tiles_that_form_no_array_are_not_drawn():
    job = map_async(
        colours, tiles(np.arange(9.0), 5, 0), shared={"later": more_colours}, backend="threads"
    )
    with pytest.warns(nbshare.errors.MixedResultsWarning):
        job.result()
    with pytest.raises(CannotDrawError, match="form one array"):
        LiveFigure(job, "image").frame(final=True)
