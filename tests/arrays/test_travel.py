"""Everything that NumPy can make of an array in shared memory arrives as it was sent.

Hypothesis draws dtypes, shapes, orders and chains of views. Every view is made twice, of an array
in shared memory and of a plain one with the same bytes. NumPy says what has to arrive. ``CI`` makes
the draws the same each time. ``HYPOTHESIS_PROFILE=thorough`` makes a hundred times as many.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import nbshare
from nbshare import parallel_map
from tests.support import receivers, tasks

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default")

pytestmark = pytest.mark.timeout(1200 if PROFILE == "thorough" else 120)


def examples(n):
    """Return settings for a number of examples, or for a hundred times as many."""
    return settings(
        max_examples=n * 100 if PROFILE == "thorough" else n,
        derandomize=PROFILE == "ci",
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --------------------------------------------------------------- what NumPy has to offer

OTHERS = ["S1", "S5", "U1", "U3", "V1", "V7", "M8", "M8[D]", "M8[25ns]", "m8", "m8[h]", "m8[3Y]"]
LEAVES = [np.dtype(code) for code in [*"?bBhHiIlLqQefdgFDG", *OTHERS]]
LEAVES += [swapped for leaf in LEAVES if (swapped := leaf.newbyteorder(">")) != leaf]
with contextlib.suppress(ImportError):
    import ml_dtypes

    LEAVES += [
        np.dtype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4")
    ]
UNIONS = [
    np.dtype({"names": ["whole", "half"], "formats": ["<u4", ">u2"], "offsets": [0, 2]}),
    np.dtype({"names": ["b", "a"], "formats": ["f4", "u1"], "offsets": [8, 1], "itemsize": 21}),
    np.dtype((np.record, [("x", "f8"), ("y", "S3")])),
    np.dtype([("nothing", "S0"), ("something", "i2")]),
    np.dtype([]),
]


@st.composite
def structures(draw, depth=2):
    """Structured dtypes, nested, aligned, with titles and sub-arrays."""
    inner = st.sampled_from(LEAVES)
    if depth > 1:
        inner |= structures(depth - 1)
    fields = []
    for i in range(draw(st.integers(1, 3))):
        name = (f"title {i}", f"field{i}") if draw(st.booleans()) else f"field{i}"
        shape = draw(st.sampled_from([(), (), (2,), (2, 3)]))
        fields.append((name, draw(inner), shape))
    return np.dtype(fields, align=draw(st.booleans()))


DTYPES = st.sampled_from(LEAVES) | st.sampled_from(UNIONS) | structures()
SHAPES = st.lists(st.sampled_from([3, 2, 4, 1, 0, 5]), max_size=4).map(tuple)

# A step is drawn for an array of the shape and dtype at hand, and returns what makes a view of it.


def index(draw, array):
    """Slices with steps of any sign, numbers, new axes."""
    place = draw(hnp.basic_indices(array.shape, allow_newaxis=True, max_dims=6))
    place = place if isinstance(place, tuple) else (place,)
    return lambda a: a[place if ... in place else (*place, ...)]


def reverse(draw, array):
    axes = draw(st.lists(st.booleans(), min_size=array.ndim, max_size=array.ndim))
    return lambda a: a[(*(slice(None, None, -1 if axis else 1) for axis in axes), ...)]


def transpose(draw, array):
    axes = draw(st.permutations(range(array.ndim)))
    return lambda a: a.transpose(axes)


def reshape(draw, array):
    shapes = [(-1,), (1, -1), (*array.shape, 1), (2, -1), (-1, 2)]
    shape = draw(st.sampled_from(shapes))
    return lambda a: a.reshape(shape)


def field(draw, array):
    names = draw(st.sampled_from(array.dtype.names))
    if draw(st.integers(0, 3)) == 0:
        names = [names]  # a structure of one field, with gaps
    return lambda a: a[names]


def view(draw, array):
    dtype = draw(st.sampled_from(LEAVES))
    return lambda a: a.view(dtype)


def broadcast(draw, array):
    shape = (draw(st.integers(0, 3)), *array.shape)
    subok = draw(st.booleans())
    return lambda a: np.broadcast_to(a, shape, subok=subok)


def windows(draw, array):
    axis = draw(st.integers(0, array.ndim - 1))
    width = draw(st.integers(1, max(1, array.shape[axis])))
    options = {"axis": axis, "writeable": draw(st.booleans()), "subok": draw(st.booleans())}
    return lambda a: sliding_window_view(a, width, **options)


def overlaps(draw, array):
    n, step = array.shape[0], array.strides[0]
    width = draw(st.integers(1, max(1, n)))
    shape = (max(0, n + 1 - width), width, *array.shape[1:])
    strides = (step, step, *array.strides[1:])
    return lambda a: as_strided(a, shape, strides)


def plain(draw, array):
    return np.asarray


def read_only(draw, array):
    def lock(a):
        a = a.view()
        a.flags.writeable = False
        return a

    return lock


def part(draw, array):
    name = draw(st.sampled_from(["real", "T", "squeeze", "diagonal", "ravel"]))
    return lambda a: (
        getattr(a, name)() if name in ("squeeze", "diagonal", "ravel") else getattr(a, name)
    )


STEPS = [index, reverse, transpose, reshape, view, broadcast, plain, part, overlaps, windows]


@st.composite
def pairs(draw):
    """Draw an array in shared memory with a view of it, and NumPy's own with the same bytes."""
    shape, dtype = draw(SHAPES), draw(DTYPES)
    nbytes = math.prod(shape) * dtype.itemsize
    content = np.random.default_rng(draw(st.integers(0, 1 << 20))).bytes(nbytes)
    order, mode = draw(st.sampled_from("CF")), draw(st.sampled_from(["r+", "r+", "r+", "r", "c"]))
    source = np.ndarray(shape, dtype, bytearray(content), order=order)
    array = nbshare.share(source, mode=mode)
    expected = np.ndarray(shape, dtype, source.base, strides=array.strides)
    expected.flags.writeable = mode != "r"
    sent, told = array, expected
    for _ in range(draw(st.integers(0, 4))):
        able = [field] * 5 if told.dtype.names else []
        able += STEPS if told.ndim else STEPS[:-2]
        able += [read_only] if mode != "r" else []
        make = draw(st.sampled_from(able))(draw, told)
        try:
            next_told = make(told)
        except (ValueError, TypeError):  # no such view of this array
            continue
        if next_told.ndim > 8 or (told.size and not np.may_share_memory(next_told, told)):
            continue  # a copy
        sent, told = make(sent), next_told
    return mode, array, sent, expected, told


def expectation(sent, told):
    """Return what has to arrive, as plain values."""
    expected = receivers.portrait(told)
    expected["class"] = type(sent).__name__
    return pickle.dumps(expected)


def assert_written(mode, array, expected, told):
    """See what the receiver wrote, unless it was into a private copy."""
    if mode == "r+":
        receivers.last_to_first(told)
    assert receivers.raw(array).tobytes() == receivers.raw(expected).tobytes()


# ------------------------------------------------------------------- other libraries' processes


@pytest.fixture(scope="module")
def stranger(no_helpers_left):
    """Give a spawned process that is not nbshare's. No helper of it is left to other tests."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.first
@examples(250)
@given(pair=pairs())
def test_a_view_of_any_array_goes_there_and_back(stranger, pair):
    """Bytes, dtype, shape, strides, flags and memory of any view survive the way there and back."""
    mode, array, sent, expected, told = pair
    reference = bytes(ForkingPickler.dumps(sent))
    task = stranger.submit(receivers.mirror, reference, expectation(sent, told))
    problems, back = task.result(20)
    assert not problems
    assert_written(mode, array, expected, told)
    assert not receivers.differences(back, pickle.loads(expectation(sent, told)))
    if sent.size:
        assert back.ctypes.data == sent.ctypes.data


@examples(20)
@given(batch=st.lists(pairs(), min_size=12, max_size=16))
def test_views_of_any_arrays_are_items(batch):
    """A worker gets every view among the items as it is, on the caller's memory."""
    items = [sent for _, _, sent, _, _ in batch]
    expectations = [expectation(sent, told) for _, _, sent, _, told in batch]
    problems = parallel_map(
        receivers.compare_and_write, items, expectations, out="list", progress=False, max_workers=1
    )
    assert problems == [{}] * len(batch)
    for mode, array, _, expected, told in batch:
        assert_written(mode, array, expected, told)


def test_a_read_only_view_of_private_memory_is_read_only_in_a_worker():
    """Mode "c" may be written to, but not through a view that may not."""
    array = nbshare.share(np.zeros(3), mode="c")
    array.flags.writeable = False
    ((_, is_writeable, *_),) = parallel_map(tasks.facts, [array], out="list", progress=False)
    assert not is_writeable


@pytest.mark.parametrize("way", ["reference", "item"])
def test_an_empty_view_that_points_outside_its_memory(way):
    """NumPy moves the pointer of a view without elements beyond its array, and that is no error."""
    view = nbshare.zeros((6, 0, 1000))[5:]
    if way == "reference":
        back = pickle.loads(bytes(ForkingPickler.dumps(view)))
        assert (back.shape, back.strides) == (view.shape, view.strides)
    else:
        ((_, _, _, found),) = parallel_map(tasks.facts, [view], out="list", progress=False)
        assert found == view.tolist()


# --------------------------------------------------------------------- size and number

VIEWS = {
    "whole": lambda a: a,
    "slice": lambda a: a[1:, ::2, 1:2],
    "reversed": lambda a: a[::-1, ::-1, ::-1],
    "transposed": lambda a: a.T,
    "element": lambda a: a[1, 2, 3, ...],
    "windows": lambda a: sliding_window_view(a, 3, axis=0),
    "axes": lambda a: a[None, :, None, :, None, :, None],
    "broadcast": lambda a: np.broadcast_to(a, (1 << 20, *a.shape)),
    "plain": np.asarray,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_reference_to_any_view_is_small(name):
    """A reference takes 400 bytes at most, and the bytes of its dtype."""
    for dtype in (*LEAVES, *UNIONS, np.dtype([("a", "f4"), ("b", "S3", (2, 3))])):
        if name == "windows" and dtype.type.__module__ == "ml_dtypes":
            continue  # NumPy makes none of these, as it asks for the dtype by a name of its own
        view = VIEWS[name](nbshare.zeros((50, 60, 70) if dtype.itemsize else (5, 6, 7), dtype))
        reference = ForkingPickler.dumps(view)
        size = len(reference)
        assert size <= 400 + len(pickle.dumps(view.dtype)), (dtype, size)
        assert pickle.loads(reference).dtype == view.dtype  # its memory is held until it arrives


NBYTES = 16 << 20


def overlapping(array):
    """Return eight views of an array, which overlap."""
    return [
        array,
        array[1:],
        array[::2],
        array[::-1],
        array.reshape(2, -1).T,
        np.asarray(array),
        sliding_window_view(array, 3, writeable=True)[:, 1],
        array.view("u1"),
    ]


def test_overlapping_views_are_one_memory_in_a_receiver(stranger):
    """Another pool's process maps the memory of eight views once, and has it in RAM once."""
    views = overlapping(nbshare.full(NBYTES // 8, 1.0))
    total, (n_maps, resident) = stranger.submit(receivers.touch_all, *views).result(20)
    assert total == sum(float(view.sum()) for view in views)
    assert (n_maps, resident) == (1, NBYTES >> 10)


def test_overlapping_views_are_one_memory_in_a_worker():
    """A worker maps the memory of eight views once, and has it in RAM once."""
    views = overlapping(nbshare.full(NBYTES // 8, 1.0))
    ((total, (n_maps, resident)),) = parallel_map(
        receivers.touch_all, *([view] for view in views), out="list", progress=False
    )
    assert total == sum(float(view.sum()) for view in views)
    assert (n_maps, resident) == (1, NBYTES >> 10)


def test_views_go_through_joblib(script):
    """The workers of loky get the memory itself, not a copy."""
    pytest.importorskip("joblib")
    script("""
import joblib, nbshare, numpy as np, pickle
from tests.support import receivers
array = nbshare.share(np.arange(600_000.0).reshape(2, 3, -1))
views = [array, array[::-1, 1:, ::-2], array.T, array[0, 0]]
with joblib.parallel_config("loky", n_jobs=2):
    compare = joblib.delayed(receivers.differences)
    assert joblib.Parallel()(compare(v, receivers.portrait(v)) for v in views) == [{}] * 4
    joblib.Parallel()([joblib.delayed(receivers.fill)(array[:, ::2], 7)])
assert (array[:, ::2] == 7).all() and array[0, 1, 0] == 100_000
""")


def test_a_manager_s_proxies_work_in_workers(lab):
    """As items, in shared= and as arguments of tasks. The key is in no environment."""
    lab.run("""
import pickle
executor = nbshare.Executor(2)
assert executor.submit(tasks.double, 2).result() == 4
tasks.check_double()  # workers are there before anybody has a key
import multiprocessing as mp
from multiprocessing.managers import SyncManager
def drained(queue, n):
    return sorted(queue.get(timeout=faultlab.SOON_S) for _ in range(n))
if __name__ == "__main__":
    with SyncManager(("localhost", 0)) as manager:  # a socket's path may be too long
        queue = manager.Queue()
        executor.submit(tasks.put_two, queue).result()
        assert drained(queue, 2) == [0, 1]
        pair(functools.partial(tasks.put_into, queue), range(4))
        assert drained(queue, 4) == [0, 1, 2, 3]
        pair(tasks.put_with, range(4), shared={"queue": queue})
        assert drained(queue, 4) == [0, 1, 2, 3]
        queues = [manager.Queue(), manager.Queue()]
        quiet(tasks.put_two, queues, out="list")
        assert [drained(queue, 2) for queue in queues] == [[0, 1], [0, 1]]
        key = bytes(mp.current_process().authkey)
        for pid in faultlab.tagged():
            for name in ("environ", "cmdline"):
                data = Path(f"/proc/{pid}/{name}").read_bytes()
                assert key not in data and key.hex().encode() not in data
    executor.shutdown()
""")
