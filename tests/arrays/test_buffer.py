"""One block of shared memory, laid out anew as often as wanted."""

from __future__ import annotations

import copy
import functools
import gc
import math
import mmap
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbshare import SharedArray, SharedBuffer, parallel_map
from nbshare._core.memory import segment_of
from tests.support import locking, tasks

DTYPES = [
    *["?", "i1", "u8", "f2", "f4", "f8", "g", "F", "G", "S5", "U3", "V7", "U0", "S0", "V0"],
    *["M8[D]", "M8[25ns]", "m8[s]", ">i4", ">f8", ">U2", ">M8[us]", ">f2"],
    np.dtype([("id", "i4"), ("position", "f8", (3,)), ("name", "U5")]),
    np.dtype([("small", "i1"), ("large", "f8")], align=True),
    np.dtype({"names": ["b", "a"], "formats": ["f4", "u1"], "offsets": [8, 1], "itemsize": 21}),
    np.dtype(("i2", (4,))),
    np.dtype((">f4", (2, 3))),
    np.dtype([]),
]
SHAPES = st.integers(0, 9) | st.lists(st.integers(0, 4), max_size=4).map(tuple)
LAYOUTS = st.dictionaries(
    st.text(max_size=5), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6
)
ALIGNMENTS = st.integers(0, int(math.log2(mmap.PAGESIZE))).map(lambda n: 2**n)
LAYOUT = {"A": ((3, 4), "f8"), "B": (10, "f2"), "C": ((), "i8")}

in_numbers = settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
    ),
    pytest.mark.usefixtures("no_helpers_left"),
]


@pytest.fixture
def buffer():
    """Return a buffer that `LAYOUT` just fits in."""
    return SharedBuffer(SharedBuffer.nbytes_for(LAYOUT))


def whole(buffer):
    """Return all bytes of a buffer."""
    return buffer.layout({"all": (buffer.nbytes, "u1")})["all"]


def address(array):
    return array.__array_interface__["data"][0]


def raw(array):
    """View the elements as bytes without a meaning. NumPy has no view of no bytes."""
    plain = np.asarray(array)
    return plain.reshape(-1).view("u1") if plain.nbytes else np.empty(0, "u1")


# ------------------------------------------------------------------------------- layouts


@in_numbers
@given(LAYOUTS, ALIGNMENTS, st.integers(0, 100))
def test_arrays_lie_one_behind_the_other(layout, alignment, spare):
    """Arrays are as NumPy's, aligned, in order, within the buffer, and share no byte."""
    needed = SharedBuffer.nbytes_for(layout, alignment=alignment)
    buffer = SharedBuffer(needed + spare)
    arrays = buffer.layout(layout, alignment=alignment)
    assert list(arrays) == list(layout)
    start = end = address(whole(buffer))
    for name, (shape, dtype) in layout.items():
        array, expected = arrays[name], np.zeros(shape, dtype)
        assert type(array) is SharedArray
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        if array.size:
            assert array.strides == expected.strides
        assert address(array) % alignment == 0
        if array.nbytes:  # where nothing lies, NumPy chooses
            assert end <= address(array) < end + alignment
            end = address(array) + array.nbytes
    gap = start + needed - end
    assert gap == 0 or (array.nbytes == 0 and 0 < gap < alignment)


@in_numbers
@given(LAYOUTS, ALIGNMENTS)
def test_nbytes_for_is_exact(layout, alignment):
    """A layout fits in as many bytes as it is said to need, and not in one less."""
    needed = SharedBuffer.nbytes_for(layout, alignment=alignment)
    SharedBuffer(needed).layout(layout, alignment=alignment)
    if needed:
        too_few = f"needs {needed} bytes?, but the buffer has {needed - 1}"
        with pytest.raises(ValueError, match=too_few):
            SharedBuffer(needed - 1).layout(layout, alignment=alignment)


@pytest.mark.first
@in_numbers
@given(LAYOUTS, LAYOUTS, ALIGNMENTS, st.integers(0, 2**32))
def test_bytes_come_back(first, second, alignment, seed):
    """Values written to each array stay when all are written. Laying out changes nothing."""
    nbytes = [SharedBuffer.nbytes_for(x, alignment=alignment) for x in (first, second)]
    buffer = SharedBuffer(max(nbytes))
    assert not whole(buffer).any()
    random = np.random.default_rng(seed)
    written = {}
    for name, array in buffer.layout(first, alignment=alignment).items():
        written[name] = random.integers(256, size=array.nbytes, dtype="u1")
        raw(array)[...] = written[name]
    before = whole(buffer).tobytes()
    buffer.layout(second, alignment=alignment)
    again = buffer.layout(first, alignment=alignment)
    assert whole(buffer).tobytes() == before
    assert all(raw(again[name]).tobytes() == written[name].tobytes() for name in first)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_any_dtype_come_back(dtype):
    """Arrays of every kind of dtype hold what NumPy's hold, also 0-d and empty ones."""
    layout = {str(shape): (shape, dtype) for shape in [(), (0,), (3,), (2, 0), (2, 3)]}
    arrays = SharedBuffer(SharedBuffer.nbytes_for(layout)).layout(layout)
    for name, (shape, _) in layout.items():
        expected = np.zeros(shape, dtype)
        raw(expected)[...] = np.arange(expected.nbytes) % 2
        arrays[name][...] = expected
        with np.errstate(invalid="ignore"):  # such bytes need not be a long double
            np.testing.assert_array_equal(np.asarray(arrays[name]), expected)


@pytest.mark.parametrize(
    "shape", [5, np.int64(5), [5], (5,), np.array([5]), (np.int8(5),)], ids=repr
)
def test_shapes_are_given_as_for_numpy(shape):
    """A shape is a number or a sequence of numbers of any kind."""
    assert SharedBuffer(40).layout({"A": (shape, "f8")})["A"].shape == np.zeros(shape).shape


def test_every_other_layout_shows_the_same_bytes():
    """Two layouts are two ways to look at the same memory."""
    buffer = SharedBuffer(16)
    numbers = buffer.layout({"x": (2, "f8")})["x"]
    letters = buffer.layout({"x": ((4, 4), "S1")})["x"]
    numbers[:] = 1.5, -2
    assert letters.tobytes() == np.array([1.5, -2]).tobytes()
    letters[...] = b"\0"
    assert not numbers.any()


def test_an_empty_buffer_holds_empty_layouts():
    """A buffer of no bytes is one, for layouts that need none."""
    buffer = SharedBuffer(0)
    assert buffer.nbytes == SharedBuffer.nbytes_for({}) == 0
    assert buffer.layout({}) == {}
    assert buffer.layout({"A": ((2, 0), "f8")})["A"].shape == (2, 0)
    with pytest.raises(ValueError, match="needs 1 byte,"):
        buffer.layout({"A": ((), "?")})


def test_earlier_arrays_outlive_later_layouts_and_the_buffer(buffer):
    """Arrays stay valid, with the same bytes, writable, by reference, when all else is gone."""
    early = buffer.layout(LAYOUT)["A"]
    early[...] = 7
    late = buffer.layout({"B": (buffer.nbytes, "u1")})["B"]
    del buffer
    gc.collect()
    assert (early == 7).all()
    late[:] = 0
    assert not early.any()
    assert segment_of(early)[0] is segment_of(late)[0]
    parallel_map(tasks.overwrite, [early[1]], max_workers=1)
    np.testing.assert_array_equal(early, [[0] * 4, [-1] * 4, [0] * 4])


def test_it_says_how_large_it_is():
    """Its size is what was asked for, and its repr names it."""
    buffer = SharedBuffer(np.int64(1000))
    assert buffer.nbytes == 1000
    assert repr(buffer) == "<SharedBuffer of 1000 bytes>"


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("nbytes", "error"), [(-1, ValueError), (2.5, TypeError), ("9", TypeError), (None, TypeError)]
)
def test_a_size_that_is_none_is_refused(nbytes, error):
    """The size is a whole number, 0 or more."""
    with pytest.raises(error):
        SharedBuffer(nbytes)


@pytest.mark.parametrize("alignment", [0, -1, -64, 3, 48, 2 * mmap.PAGESIZE])
def test_an_alignment_that_is_none_is_refused(buffer, alignment):
    """The alignment is a power of two, at most a page. The message says so, with the value."""
    for call in (buffer.layout, SharedBuffer.nbytes_for):
        with pytest.raises(
            ValueError, match=f"alignment={alignment} is not allowed: pass a power of two"
        ):
            call(LAYOUT, alignment=alignment)


@pytest.mark.parametrize("alignment", [64.0, "64", None])
def test_an_alignment_that_is_no_whole_number_is_refused(buffer, alignment):
    """The alignment is a whole number."""
    with pytest.raises(TypeError):
        buffer.layout(LAYOUT, alignment=alignment)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_an_alignment_may_be_a_number_of_numpy_s(kind):
    """Whole numbers of NumPy's count as Python's, however narrow they are."""
    layout = {"A": (1000, "u1"), "B": ((), "f8")}
    assert SharedBuffer.nbytes_for(layout, alignment=kind(64)) == 1032


@pytest.mark.parametrize(
    ("wanted", "error", "text"),
    [
        *[((-1, "f8"), ValueError, "negative"), (((2, -3), "f8"), ValueError, "negative")],
        *[((2.5, "f8"), TypeError, "float"), (((2, 2.5), "f8"), TypeError, "float")],
        *[(("abc", "f8"), TypeError, "str"), ((None, "f8"), TypeError, "None")],
        *[((3, "nonsense"), TypeError, "nonsense"), ((3, 3.5), TypeError, "data type")],
        *[((3, object), TypeError, "Python objects"), ((3, [("a", "O")]), TypeError, "objects")],
    ],
    ids=repr,
)
def test_an_array_that_cannot_be_is_refused(wanted, error, text):
    """A wrong shape or dtype is refused as such, with the name of the array."""
    with pytest.raises(error, match=rf"(?s){text}.*layout\['B'\]"):
        SharedBuffer(100).layout({"A": (3, "f8"), "B": wanted})


@pytest.mark.parametrize("wanted", [5, None, (3,), (3, "f8", "C"), ()], ids=repr)
def test_what_is_no_pair_is_refused(buffer, wanted):
    """An entry of a layout that is no pair of shape and dtype is named, with its value."""
    message = (
        re.escape("layout['B'] must be a pair of shape and dtype") + f".*{re.escape(repr(wanted))}"
    )
    with pytest.raises(TypeError, match=message):
        buffer.layout({"A": (3, "f8"), "B": wanted})


@pytest.mark.parametrize("shape", [101, 2**62, (2**40, 2**40)], ids=repr)
def test_a_layout_that_is_too_large_is_refused(shape):
    """A layout that needs more than there is, is refused with both figures and the remedy."""
    needed = math.prod(np.atleast_1d(np.array(shape, object)))
    with pytest.raises(
        ValueError, match=f"needs {needed} bytes, but the buffer has 100. Create a la"
    ):
        SharedBuffer(100).layout({"A": (shape, "u1")})


@pytest.mark.parametrize(
    "store", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__
)
def test_it_cannot_be_stored(buffer, store):
    """Plain pickle and copy refuse it and say how it travels."""
    with pytest.raises(TypeError, match="by reference"):
        store(buffer)


def test_its_arrays_store_values(buffer):
    """Plain pickle and copy of an array of it give a plain array with the values of now."""
    array = buffer.layout(LAYOUT)["A"]
    stored = [pickle.loads(pickle.dumps(array)), copy.deepcopy(array)]
    array[...] = 1
    assert [type(each) for each in stored] == [np.ndarray] * 2
    assert not np.any(stored)


# -------------------------------------------------------------------------------- travel


@pytest.mark.parametrize("start", multiprocessing.get_all_start_methods())
def test_it_travels_to_another_pool(buffer, start):
    """A worker of another pool writes into the owner's memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(start)) as pool:
        pool.submit(locking.write, buffer, LAYOUT, "B", 2.5).result(20)
    arrays = buffer.layout(LAYOUT)
    assert (arrays["B"] == 2.5).all()
    assert not arrays["A"].any()


def test_it_travels_through_a_queue(buffer):
    """The array that arrives through a Queue is in the same memory."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.put((buffer, LAYOUT, "C", 12))
    process = context.Process(target=locking.write_from, args=(queue,))
    process.start()
    process.join(20)
    assert buffer.layout(LAYOUT)["C"] == 12


def test_it_travels_as_an_item(buffer):
    """Workers of a run that get it in their items write into the caller's memory."""
    items = [(buffer, LAYOUT, name, value) for name, value in [("A", 1), ("B", 2), ("C", 3)]]
    parallel_map(locking.write_item, items, max_workers=2)
    assert [array.max() for array in buffer.layout(LAYOUT).values()] == [1, 2, 3]


def test_it_travels_in_a_partial(buffer):
    """Workers of a run that get it in a partial write into the caller's memory."""
    func = functools.partial(locking.write, buffer, LAYOUT)
    parallel_map(func, ["A", "B"], [4, 5], max_workers=2)
    assert [array.max() for array in buffer.layout(LAYOUT).values()] == [4, 5, 0]


def test_in_shared_it_is_read_only(buffer):
    """A write to what was given in ``shared=`` is an error in the worker and changes nothing."""
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(locking.write_shared, [9.0], shared={"buffer": buffer, "layout": LAYOUT})
    assert not whole(buffer).any()


def test_in_shared_it_is_read_under_its_lock(buffer):
    """Workers that get it in ``shared=`` take its lock, and see what the caller writes."""
    for value in (1.0, 2.0):
        buffer.layout(LAYOUT)["A"][...] = value
        found = parallel_map(
            locking.read_under_lock,
            ["A"] * 4,
            shared={"buffer": buffer, "layout": LAYOUT},
            out="list",
            max_workers=2,
        )
        assert found == [(12 * value, False)] * 4
    assert not buffer.lock.locked()


@pytest.mark.parametrize("start", [None, "spawn"])
def test_several_write_their_parts_under_the_lock(start):
    """Workers that write arrays of their own, and one of all under the lock, lose nothing."""
    layout = {"rounds": ((), "i8"), "left": (100, "i8"), "right": (100, "f2")}
    buffer = SharedBuffer(SharedBuffer.nbytes_for(layout))
    func = functools.partial(locking.write_part, buffer, layout)
    if start is None:
        parallel_map(func, ["left", "right"], [300, 300], max_workers=2, chunksize=1)
    else:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(start)) as pool:
            list(pool.map(func, ["left", "right"], [300, 300], timeout=20))
    arrays = buffer.layout(layout)
    assert arrays["rounds"] == 600
    assert (arrays["left"] == 300).all()
    assert (arrays["right"] == 300).all()
