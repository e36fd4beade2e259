"""Arrays in shared memory: their type, NumPy's results of them, and the end of their memory."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nbshare
from nbshare import SharedArray, parallel_map
from nbshare.errors import OutOfMemoryError
from tests.support import tasks
from tests.support.faultlab import wait_until

DTYPES = [
    np.dtype(name)
    for name in (
        *("?", "i1", "u8", "f2", "f4", "f8", "g", "F", "D", "G", "S5", "U3", "V7"),
        *("M8[D]", "M8[ns]", "m8[s]", ">i4", ">f8", ">U2", ">M8[us]"),
    )
] + [
    np.dtype([("id", "i4"), ("position", "f8", (3,)), ("name", "U5")]),
    np.dtype([("small", "i1"), ("large", "f8")], align=True),
    np.dtype([("inner", [("a", ">i2"), ("b", "S3")])]),
]


def sample(dtype, shape):
    """Return an array of a dtype with bytes that are not all alike."""
    numbers = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    if dtype.names:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            field = array[name]
            field[...] = sample(dtype[name].base, field.shape)
        return array
    return numbers.astype("S").astype(dtype) if dtype.kind in "SUV" else numbers.astype(dtype)


def assert_same(array, expected):
    """Compare class by class, by dtype with byte order, shape, every value of every field."""
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(np.asarray(array), expected)


def memfds():
    """Return how many descriptors and mappings of segments this process has."""
    gc.collect()  # what tests before this one have left
    held = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            held.append(os.readlink(f"/proc/self/fd/{fd}"))
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("nbshare-" in path for path in held), sum("nbshare-" in line for line in maps)


def has_no_more_than(before):
    """Whether there are no more of them. What other tests have left may go at any time."""
    return all(now <= then for now, then in zip(memfds(), before, strict=True))


# ---------------------------------------------------------------------------- creation


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_new_arrays_are_as_numpys(dtype, shape):
    """Zeros, empty and full give the shape, dtype, layout and values that NumPy's give."""
    value, made = sample(dtype, ()), []
    for order in "CF":
        zeros, full = np.zeros(shape, dtype, order), np.full(shape, value, dtype, order)
        made += [
            (nbshare.zeros(shape, dtype, order), zeros),
            (nbshare.empty(shape, dtype, order=order), zeros),
            (nbshare.full(shape, value, dtype, order), full),
        ]
    for array, expected in made:
        assert type(array) is SharedArray
        assert_same(array, expected)
        assert array.strides == expected.strides or not array.size
        assert array.flags.writeable
        assert array.flags.aligned
        assert tasks.is_in_segment(array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_shape_of_a_sub_array_dtype_is_added(order):
    """A sub-array dtype lends its shape to the array, as in NumPy."""
    dtype = np.dtype(("i2", (4,)))
    array, expected = nbshare.zeros((2, 3), dtype, order), np.zeros((2, 3), dtype, order)
    assert (array.shape, array.dtype, array.strides) == (
        expected.shape,
        expected.dtype,
        expected.strides,
    )
    array[...] = 7
    assert (array == 7).all()


@pytest.mark.parametrize("shape", [5, np.int64(5), [5], (5,), np.array([5])], ids=repr)
def test_shapes_are_given_as_for_numpy(shape):
    """A shape is a number or a sequence of numbers of any kind."""
    assert nbshare.zeros(shape).shape == np.zeros(shape).shape


@pytest.mark.parametrize("dtype", ["S", "U"])
def test_strings_of_no_length_get_room_for_one_character(dtype):
    """A string dtype without a length means what it means to NumPy, not strings of no bytes."""
    assert nbshare.zeros(3, dtype).dtype == np.zeros(3, dtype).dtype
    np.testing.assert_array_equal(nbshare.full(3, "x", dtype), np.full(3, "x", dtype))


def test_full_takes_its_dtype_from_the_value():
    """Full has the dtype of its value unless told otherwise, and broadcasts it."""
    for value in (
        7,
        0.5,
        True,
        np.float16(2),
        "ab",
        np.arange(3, dtype="u1"),
        np.datetime64(0, "s"),
    ):
        array, expected = nbshare.full((2, 3), value), np.full((2, 3), value)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, "3", None, (2, None)], ids=repr)
def test_a_shape_that_is_none_is_refused(shape):
    """Negative lengths and other objects are refused. The message names the argument."""
    with pytest.raises((ValueError, TypeError), match=r"^shape"):
        nbshare.zeros(shape)


def test_an_unknown_order_is_refused():
    """The order has to be C or F."""
    with pytest.raises(ValueError, match=r"'Q'.*'C'.*'F'"):
        nbshare.zeros(3, order="Q")


@pytest.mark.parametrize("dtype", [object, [("a", "f8"), ("b", object)]])
def test_python_objects_are_refused_with_the_remedy(dtype):
    """A dtype that holds Python objects is a TypeError that says what to do."""
    for make in (nbshare.zeros, nbshare.empty, lambda n, d: nbshare.share(np.empty(n, d))):
        with pytest.raises(TypeError, match=r"objects.*astype"):
            make(3, dtype)


def test_variable_strings_are_refused():
    """NumPy's StringDType keeps its text elsewhere. The message says how to convert it."""
    dtypes = pytest.importorskip("numpy.dtypes")
    if not hasattr(dtypes, "StringDType"):
        pytest.skip("this NumPy has no StringDType")
    stars = np.array(["Deneb", "Mira"], dtypes.StringDType())
    for make in (nbshare.share, nbshare.zeros_like):
        with pytest.raises(TypeError, match=r"strings outside the array.* astype\('U20'\)"):
            make(stars)
    assert nbshare.share(stars.astype("U20")).tolist() == ["Deneb", "Mira"]


# -------------------------------------------------------------------------------- share


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_share_copies_any_dtype(dtype, shape):
    """The copy has the values, dtype and shape of the source, and its own memory."""
    source = sample(dtype, shape)
    expected = source.copy()
    array = nbshare.share(source)
    assert type(array) is SharedArray
    assert_same(array, expected)
    assert array.flags.writeable
    assert tasks.is_in_segment(array)
    source[...] = np.zeros((), dtype)
    assert_same(array, expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a[1:, 2],
        lambda a: a[2, 3, :0],
        lambda a: a.transpose(1, 0, 2),
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, axis=1),
        lambda a: a.real,
    ],
)
def test_share_copies_any_layout(view):
    """Views of every kind are copied by value. C and Fortran order are kept."""
    source = view(np.arange(60.0).reshape(3, 4, 5))
    array = nbshare.share(source)
    np.testing.assert_array_equal(array, source)
    assert array.flags.writeable
    assert array.flags.f_contiguous == source.flags.f_contiguous or source.flags.c_contiguous
    assert array.flags.c_contiguous == source.flags.c_contiguous or not source.flags.f_contiguous


def test_share_reads_read_only_sources():
    """A read-only source becomes a writable copy."""
    source = np.frombuffer(b"\x01\x02\x03", "u1")
    array = nbshare.share(source)
    array += 1
    assert array.tolist() == [2, 3, 4]
    assert source.tolist() == [1, 2, 3]


def test_sharing_again_copies_nothing():
    """A SharedArray, and a view of one, is given back as it is."""
    array = nbshare.zeros((3, 4))
    assert nbshare.share(array) is array
    view = array[1:, ::2]
    assert nbshare.share(view) is view


def test_array_classes_that_mean_more_stay_themselves():
    """An array whose class means more than its values is not silently reduced to them."""
    source = np.ma.array([1.0, 2.0], mask=[True, False])
    assert np.ma.is_masked(nbshare.share(source))


def test_unknown_modes_are_refused():
    """The modes are named in the error."""
    with pytest.raises(ValueError, match=r"'w'.*'r\+'"):
        nbshare.share(np.zeros(3), mode="w")


def test_a_mapped_file_becomes_a_shared_array(tmp_path):
    """numpy.memmap is an array like any other. Its values are copied."""
    mapped = np.memmap(tmp_path / "data", "f4", "w+", shape=(3, 4))
    mapped[...] = 2
    shared = nbshare.share(mapped)
    assert type(shared) is nbshare.SharedArray
    assert (shared == 2).all()


# ------------------------------------------------------------------------------ modes


@pytest.mark.parametrize("order", ["C", "F"])
def test_nobody_can_write_to_what_was_shared_read_only(order):
    """With mode "r" the owner cannot, by setting the flag, nor a worker through an item."""
    source = np.arange(2000.0).reshape(4, 500, order=order)
    array = nbshare.share(source, mode="r")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, [array], progress=False)
    np.testing.assert_array_equal(array, source)
    assert array.flags.f_contiguous == source.flags.f_contiguous


@pytest.mark.parametrize("given", ["items", "shared"])
def test_writes_to_a_private_copy_stay_where_they_are_made(given):
    """With mode "c" each process may write, and none sees what the others wrote."""
    array = nbshare.share(np.zeros(2000), mode="c")
    array[0] = 5  # here only
    if given == "items":
        seen = parallel_map(tasks.add_in_place, [array] * 4, max_workers=4, chunksize=1)
    else:
        seen = parallel_map(tasks.add_in_place, range(4), shared={"array": array}, max_workers=4)
    assert set(seen.tolist()) <= {1.0, 2.0, 3.0, 4.0}, "a worker starts from the values given"
    assert array.tolist() == [5.0, *[0.0] * 1999]


def test_another_mode_is_a_copy_and_the_same_is_not():
    """share() copies where it must, between modes, and not within one."""
    writable = nbshare.zeros(3)
    for mode in ("r", "c"):
        other = nbshare.share(writable, mode=mode)
        assert nbshare.share(other, mode=mode) is other
        writable[:] = 7
        assert not other.any()
        back = nbshare.share(other)
        back[:] = 1
        assert not other.any()
        writable[:] = 0


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize("like", [nbshare.empty_like, nbshare.zeros_like])
def test_like_is_as_in_numpy(like, order):
    """Shape, dtype and memory order follow the prototype as in NumPy. Given arguments win."""
    for prototype in (np.ones((2, 3), "f2"), np.ones((2, 3), ">i4", order="F"), [[1.5]]):
        array, expected = like(prototype, order=order), np.zeros_like(prototype, order=order)
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.strides == expected.strides
        assert not array.any()
    assert like(np.ones(3), "U2", shape=(2, 2)).shape == (2, 2)


# ---------------------------------------------------------------- what NumPy makes of them

TABLE = np.arange(24.0).reshape(4, 6)

VIEWS = {
    "slice": lambda a: a[1:, ::2],
    "row": lambda a: a[0],
    "ellipsis": lambda a: a[..., 0],
    "0-d": lambda a: a[0, 0, ...],
    "newaxis": lambda a: a[:, None],
    "reversed": lambda a: a[::-1],
    "transpose": lambda a: a.T,
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "reshape": lambda a: a.reshape(2, 12),
    "ravel": lambda a: a.ravel(),
    "view": lambda a: a.view("u8"),
    "bytes": lambda a: a.view(np.uint8),
    "diagonal": lambda a: a.diagonal(),
    "real": lambda a: a.real,
    "squeeze": lambda a: a[:1].squeeze(),
    "np.transpose": np.transpose,
    "np.reshape": lambda a: np.reshape(a, -1),
    "np.split": lambda a: np.split(a, 2)[1],
    "np.atleast_3d": np.atleast_3d,
    "np.moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "np.expand_dims": lambda a: np.expand_dims(a, 0),
    "iteration": lambda a: next(iter(a)),
    "of a view": lambda a: a[1:].T[::2, 1],
}

MADE = {
    "+": lambda a: a + 1,
    "1 -": lambda a: 1 - a,
    "a * a": lambda a: a * a,
    "**": lambda a: a**2,
    "//": lambda a: a // 2,
    "neg": lambda a: -a,
    "abs": abs,
    "<": lambda a: a < 3,
    "==": lambda a: a == a,
    "@": lambda a: a @ a.T,
    "dot": lambda a: a.dot(a.T),
    "divmod": lambda a: divmod(a, 5)[1],
    "with plain": lambda a: np.ones(6) + a,
    "np.sin": np.sin,
    "a named tuple": lambda a: np.linalg.svd(a)[0],
    "np.add.outer": lambda a: np.add.outer(a[0], a[1]),
    "np.add.accumulate": np.add.accumulate,
    "copy": lambda a: a.copy(),
    "astype": lambda a: a.astype(int),
    "astype same": lambda a: a.astype(float),
    "fancy": lambda a: a[[0, 2]],
    "boolean": lambda a: a[a > 3],
    "take": lambda a: a.take([1, 2], axis=1),
    "compress": lambda a: a.compress([True, False, True], axis=0),
    "repeat": lambda a: a.repeat(2),
    "flatten": lambda a: a.flatten(),
    "ravel of a transpose": lambda a: a.T.ravel(),
    "reshape of a transpose": lambda a: a.T.reshape(-1),
    "sum of rows": lambda a: a.sum(axis=0),
    "mean of rows": lambda a: a.mean(axis=1, keepdims=True),
    "std": lambda a: a.std(axis=0),
    "max": lambda a: a.max(axis=0),
    "argmax": lambda a: a.argmax(axis=0),
    "any": lambda a: a.any(axis=0),
    "all": lambda a: a.all(axis=1),
    "cumsum": lambda a: a.cumsum(),
    "clip": lambda a: a.clip(1, 5),
    "round": lambda a: a.round(1),
    "conj": lambda a: (a * 1j).conj(),
    "imag": lambda a: a.imag.copy(),
    "argsort": lambda a: a.argsort(),
    "nonzero": lambda a: a.nonzero()[0],
    "searchsorted": lambda a: a[0].searchsorted([1.5, 2]),
    "byteswap": lambda a: a.byteswap(),
    "np.where": lambda a: np.where(a > 3, a, 0),
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.stack": lambda a: np.stack([a, a]),
    "np.sort": np.sort,
    "np.roll": lambda a: np.roll(a, 1),
    "np.copy": np.copy,
    "np.array": np.array,
    "np.pad": lambda a: np.pad(a, 1),
    "np.median": lambda a: np.median(a, axis=0),
    "np.percentile": lambda a: np.percentile(a, 30, axis=0),
    "np.einsum": lambda a: np.einsum("ij->j", a),
    "np.cumsum": np.cumsum,
    "np.unique": np.unique,
    "np.linalg.norm": lambda a: np.linalg.norm(a, axis=0),
    "np.fft": np.fft.fft,
    "np.zeros_like": np.zeros_like,
    "np.full_like": lambda a: np.full_like(a, 3),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda a: pickle.loads(pickle.dumps(a)),
}

NUMBERS = {
    "item": lambda a: a[1, 2],
    "sum": lambda a: a.sum(),
    "mean": lambda a: a.mean(),
    "max": lambda a: a.max(),
    "argmin": lambda a: a.argmin(),
    "any": lambda a: a.any(),
    "np.sum": np.sum,
    "np.median": np.median,
    "dot": lambda a: a[0].dot(a[0]),
    "@": lambda a: a[0] @ a[0],
    "np.add.reduce": lambda a: np.add.reduce(a, axis=None),
    "trace": lambda a: a.trace(),
    "0-d + 1": lambda a: a[0, 0, ...] + 1,
    "item()": lambda a: a.item(3),
    "float": lambda a: float(a[0, :1].sum()),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_are_shared_arrays(make):
    """A view is in the same memory and is a SharedArray itself."""
    array = nbshare.share(TABLE)
    view = make(array)
    assert type(view) is SharedArray
    assert np.shares_memory(view, array)
    assert tasks.is_in_segment(view)
    np.testing.assert_array_equal(view, make(TABLE))


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_numpy_makes_elsewhere_is_plain(make):
    """An array with memory of its own is a plain ndarray, with NumPy's values."""
    array = nbshare.share(TABLE)
    made = make(array)
    expected = make(TABLE)
    assert type(made) is np.ndarray
    assert not np.shares_memory(made, array)
    assert not tasks.is_in_segment(made)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_reductions_are_scalars(make):
    """A single number is the scalar that NumPy gives, not an array of no dimensions."""
    number, expected = make(nbshare.share(TABLE)), make(TABLE)
    assert type(number) is type(expected)
    assert number == expected


def test_what_happens_in_place_stays():
    """Augmented assignment, ``out=``, sort and fill keep array and memory."""
    array = before = nbshare.share(TABLE)
    address = array.ctypes.data
    array += 1
    array[array > 20] *= 2
    array[...] = -array
    np.sqrt(np.abs(array), out=array)
    assert np.add(array, 1, out=array) is array
    first, second = nbshare.zeros(6), nbshare.zeros(6)
    parts = np.divmod(array[0], 2, out=(first, second))
    assert parts[0] is first
    assert parts[1] is second
    total = nbshare.zeros(6)
    assert array.sum(axis=0, out=total) is total
    assert np.mean(array, axis=0, out=total) is total
    array.sort(axis=0)
    np.add.at(array, (0, 0), 5)
    assert array is before
    assert type(array) is SharedArray
    assert array.ctypes.data == address
    expected = TABLE + 1
    expected[expected > 20] *= 2
    expected = np.sqrt(expected) + 1
    assert total.tolist() == expected.mean(axis=0).tolist()
    expected[0, 0] += 5
    np.testing.assert_array_equal(array, expected)


def test_fields_of_records_are_views():
    """A field of a structured array is written in place."""
    array = nbshare.zeros(3, [("a", "i4"), ("b", "f8", (2,))])
    array["b"][1] = 2.5
    array[2]["a"] = 7
    assert type(array["b"]) is SharedArray
    assert array["a"].tolist() == [0, 0, 7]
    assert array["b"].tolist() == [[0, 0], [2.5, 2.5], [0, 0]]


def test_other_array_classes_meet_shared_arrays():
    """Masked arrays and matrices win over SharedArrays as they do over plain arrays."""
    array, masked = nbshare.share(TABLE), np.ma.array(TABLE, mask=TABLE > 3)
    for result in (array + masked, masked + array, np.ma.add(array, masked)):
        assert isinstance(result, np.ma.MaskedArray)
        assert result.mask.tolist() == (TABLE > 3).tolist()


def test_the_repr_names_the_class():
    """A SharedArray shows itself as one."""
    assert repr(nbshare.zeros(2)) == "SharedArray([0., 0.])"
    assert str(nbshare.zeros(2)) == "[0. 0.]"


# -------------------------------------------------------------------- values, not references


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pickle_stores_values(dtype, protocol):
    """A pickle is a plain array with the values of its time, in every protocol."""
    source = sample(dtype, (2, 3))
    array = nbshare.share(source)
    data = pickle.dumps(array, protocol)
    array[...] = np.zeros((), dtype)
    back = pickle.loads(data)
    assert type(back) is np.ndarray
    assert_same(back, pickle.loads(pickle.dumps(source, protocol)))
    assert b"nbshare" not in data


def test_out_of_band_pickles_hold_values_too():
    """With a buffer callback the values travel in the buffers."""
    array = nbshare.share(TABLE)
    buffers = []
    data = pickle.dumps(array, 5, buffer_callback=buffers.append)
    back = pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])
    assert type(back) is np.ndarray
    np.testing.assert_array_equal(back, TABLE)


def test_files_hold_values(tmp_path):
    """Files that NumPy saves do not point into memory."""
    array = nbshare.share(TABLE)
    np.save(tmp_path / "one.npy", array)
    np.savez(tmp_path / "many.npz", a=array[::2].T)
    array.tofile(tmp_path / "raw")
    text = io.StringIO()
    np.savetxt(text, array)
    text.seek(0)
    array[...] = 0
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), TABLE)
    np.testing.assert_array_equal(np.load(tmp_path / "many.npz")["a"], TABLE[::2].T)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "raw").reshape(4, 6), TABLE)
    np.testing.assert_array_equal(np.loadtxt(text), TABLE)


# ------------------------------------------------------------------------------ travelling


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_travels_by_reference(dtype):
    """Workers write into arrays of every dtype, by rows and in a partial."""
    source = sample(dtype, (4, 3))
    target = nbshare.zeros((4, 3), dtype)
    parallel_map(tasks.assign, list(target), list(source))
    assert_same(target, source)
    other = nbshare.zeros(4, dtype)
    parallel_map(functools.partial(tasks.assign_row, other, source[:, 0].copy()), range(4))
    assert_same(other, source[:, 0])


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_view_travels_by_reference(view):
    """A worker writes through any view into the caller's memory."""
    array, expected = nbshare.share(TABLE), TABLE.copy()
    target = view(array)
    if target.flags.writeable:
        parallel_map(tasks.overwrite, [target], [0])
        view(expected)[...] = 0
        np.testing.assert_array_equal(array, expected)
    else:
        with pytest.raises(ValueError, match="read-only"):
            parallel_map(tasks.overwrite, [target], [0])


# --------------------------------------------------------------------------------- memory


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
def test_memory_goes_with_the_last_view(cold):
    """The segment is unmapped and closed when the last view of any class is gone, not before."""
    before = memfds()
    array = nbshare.zeros(10_000)  # in no slab with others
    with_it = memfds()
    assert with_it > before
    assert with_it[1] == before[1] + 1
    view = np.asarray(array)[::2].view("u8")
    field = memoryview(array[5:])
    del array
    view[3] = 7
    del view
    assert field[1] == np.array(7, "u8").view(float)
    assert memfds() == with_it
    del field
    assert memfds() == before


def test_a_thousand_arrays_leave_nothing():
    """Making and dropping many arrays keeps no descriptor and no mapping."""
    before = memfds()
    for i in range(1000):
        nbshare.full((i % 7, 3), i).sum()
    assert has_no_more_than(before)


def test_results_of_a_map_leave_nothing(cold):
    """After runs whose results are gone, and the end of the workers, all memory is given back."""
    before = memfds()
    for _ in range(5):
        parallel_map(tasks.double, np.ones((4, 300_000)))
    nbshare.shutdown()
    wait_until(lambda: has_no_more_than(before))  # the dispatcher's thread has its last call


def test_a_result_outlives_the_workers(cold):
    """A result stays readable and writable when the workers have ended."""
    result = parallel_map(tasks.double, np.ones((4, 300_000)))
    nbshare.shutdown()
    result += 1
    assert (result == 3).all()


def test_two_results_are_two_arrays():
    """A later run does not write into the kept result of an earlier one, nor into its views."""
    table = np.ones((4, 300_000))
    views = []
    for i in range(6):
        result = parallel_map(tasks.add, table, [i] * 4)
        views.append(result[:, ::1000] if i % 2 else np.asarray(result)[1:])
        del result
        table = table.copy()
    for i, view in enumerate(views):
        assert (view == 1 + i).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nbshare.zeros(200 << 20, "u1"),
        lambda: nbshare.empty((200, 1 << 20), "u1", "F"),
        lambda: nbshare.full(50 << 20, 1, "f4"),
        lambda: nbshare.share(np.zeros(200 << 20, "u1")),  # not touched, so it takes no memory
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_allocated(make, monkeypatch):
    """Too large an array is a MemoryError with both figures, and nothing is allocated."""
    monkeypatch.setattr("nbshare._core.system.processes.available_bytes", lambda: 100 << 20)
    before = memfds()
    with pytest.raises(MemoryError, match=r"200 MiB.* 100 MiB") as caught:
        make()
    assert isinstance(caught.value, OutOfMemoryError)
    assert has_no_more_than(before)
    assert nbshare.zeros(80 << 20, "u1").nbytes == 80 << 20


# ---------------------------------------------------- NumPy says what has to come out

DTYPE = st.one_of(
    hnp.scalar_dtypes(),
    hnp.array_dtypes(allow_subarrays=True),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(st.data())
def test_share_is_a_copy_of_any_view_of_any_array(data):
    """For any dtype, shape and strides, the shared copy is equal to the source, bit by bit."""
    shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    source = data.draw(hnp.arrays(DTYPE, shape))
    if source.ndim:
        source = source[data.draw(hnp.basic_indices(source.shape, allow_newaxis=True))]
        source = source.T if data.draw(st.booleans()) else source
    if not isinstance(source, np.ndarray):  # the index gave one value
        return
    array = nbshare.share(source)
    assert type(array) is SharedArray
    assert (array.dtype, array.shape) == (source.dtype, source.shape)
    assert array.tobytes() == source.tobytes()
    assert array.flags.writeable
    assert not np.shares_memory(array, source)
