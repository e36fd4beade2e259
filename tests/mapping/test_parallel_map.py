"""parallel_map, seen from outside: items, inputs, results, wrong use. NumPy is the judge."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nbshare
from nbshare import SharedArray, parallel_map
from nbshare.errors import (
    LengthsWarning,
    MixedResultsWarning,
    UnsendableError,
)
from tests.support import feeds, tasks
from tests.support.faultlab import wait_until
from tests.support.outcomes import notes_of

LARGE = 1000  # float64 values, an array that does not travel inside a pickle


# ---------------------------------------------------------------------------- items


@pytest.mark.parametrize(
    "make",
    [
        lambda: [0, 1, 2, 3, 4],
        lambda: (0, 1, 2, 3, 4),
        lambda: range(5),
        lambda: iter(range(5)),
        lambda: (i for i in range(5)),
        lambda: dict.fromkeys(range(5)).keys(),
        lambda: np.arange(5),
        lambda: nbshare.share(np.arange(5)),
        lambda: np.ma.array([0, 1, 2, 3, 4]),
    ],
    ids=["list", "tuple", "range", "iterator", "generator", "keys", "ndarray", "shared", "masked"],
)
def test_items_come_from_any_iterable(make):
    """The results are those of the built-in map, in its order, whatever yields the items."""
    assert parallel_map(tasks.double, make()).tolist() == [0, 2, 4, 6, 8]


def test_iterables_give_one_argument_each_and_the_shortest_ends():
    """Several iterables of every kind are walked together, as in map."""
    table = np.arange(12.0).reshape(6, 2)
    with pytest.warns(LengthsWarning):
        result = parallel_map(tasks.add, table, range(5), itertools.count(100))
    expected = np.stack([row + i + 100 + i for i, row in zip(range(5), table, strict=False)])
    np.testing.assert_array_equal(result, expected)


def test_a_sequence_longer_than_the_shortest_is_cut():
    """Two sequences of different lengths end with the shorter one."""
    with pytest.warns(LengthsWarning):
        assert parallel_map(tasks.add, [1, 2, 3], np.array([10, 20])).tolist() == [11, 22]


def test_a_generator_is_gone_through_once():
    """Items that a generator makes are taken one time each."""
    taken = []
    parallel_map(tasks.double, (taken.append(i) or i for i in range(7)))
    assert taken == list(range(7))


def refilling(kind, n):
    """Yield the same object again and again, each time with another number in it."""
    array, plain = np.zeros(3), [0]
    items = {
        "array": array,
        "list": plain,
        "bytearray": bytearray(1),
        "array in a tuple": ("frame", array),
        "array in a dict": {"frame": array},
        "lists in a list": [plain, plain],
    }
    for i in range(n):
        array[:], plain[:] = i, [i]
        items["bytearray"][:] = bytes([i])
        yield items[kind]


def number_in(item):
    """Return the number that `refilling` has put into its object."""
    while isinstance(item, (dict, list, tuple)):
        item = list(item.values() if isinstance(item, dict) else item)[-1]
    return float(item[0] if isinstance(item, (np.ndarray, bytearray)) else item)


class Refilling:
    """Frames of a file, of which the number is known, and which are read into one array."""

    def __len__(self):
        return 200

    def __iter__(self):
        return refilling("array", len(self))


KINDS = "array", "list", "bytearray", "array in a tuple", "array in a dict", "lists in a list"


@pytest.mark.parametrize("backend", [None, "threads", "serial"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_may_fill_the_same_object_for_each_item(kind, backend):
    """As in a loop, each item is what it was when the generator yielded it."""
    found = parallel_map(number_in, refilling(kind, 200), backend=backend, progress=False)
    assert found.tolist() == list(range(200))
    options = {"reduce": operator.add, "backend": backend, "progress": False}
    assert parallel_map(number_in, refilling(kind, 200), **options) == sum(range(200))


def test_frames_of_a_known_number_may_fill_the_same_array():
    assert parallel_map(number_in, Refilling(), progress=False).tolist() == list(range(200))


@pytest.mark.parametrize("size", [1, 7])
def test_an_executor_takes_items_as_they_are_yielded(size):
    with nbshare.Executor() as executor:
        found = executor.map(number_in, refilling("array", 50), chunksize=size)
        assert list(found) == list(range(50))


@pytest.mark.parametrize("items", [[], (), range(0), iter(()), np.empty((0, 3)), np.empty(0)])
def test_no_items(items, cold):
    """Without items the result is an empty array, and no process is needed for it."""
    result = parallel_map(tasks.double, items)
    assert (type(result), result.shape, result.dtype) == (np.ndarray, (0,), np.float64)
    assert set(psutil.Process().children()) <= cold


def test_no_items_for_a_list_and_for_an_array():
    """Without items ``out="list"`` gives an empty list, and a given array is given back."""
    out = np.empty((0, 4))
    assert parallel_map(tasks.double, [], out="list") == []
    assert parallel_map(tasks.double, [], out=out) is out


def test_one_item():
    """One item gives an array of one result."""
    np.testing.assert_array_equal(
        parallel_map(tasks.double, [np.ones((2, 3))]), 2 * np.ones((1, 2, 3))
    )


@pytest.mark.parametrize("n", [1, LARGE])
def test_rows_of_a_plain_array_are_read_only_views(n):
    """A plain array's rows cannot be written, whatever their size. Large ones are not copied."""
    table = np.arange(3.0 * n).reshape(3, n)
    for row, seen in zip(table, parallel_map(tasks.facts, table), strict=True):
        assert seen == ("ndarray", False, n == LARGE, row.tolist())
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, table)
    np.testing.assert_array_equal(table, np.arange(3.0 * n).reshape(3, n))


@pytest.mark.parametrize("n", [1, LARGE])
def test_rows_of_a_plain_array_are_read_only_beside_other_iterables(n):
    """An array's rows do not become writable copies because a generator is passed with it."""
    table = np.zeros((3, n))
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, table, iter(range(3)))


def _write_to_all(_, arrays):
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = array
    return len(arrays)


ARRAYS = {
    "numbers": lambda n: np.arange(n, dtype=float),
    "one": lambda n: np.array(n),
    "strided": lambda n: np.arange(2 * n)[::-2],
    "Fortran": lambda n: np.zeros((n, 3), order="F").T[:, 1:],
    "dates": lambda n: np.arange(n).astype("M8[s]"),
    "texts": lambda n: np.full(n, "text"),
    "records": lambda n: np.zeros(n, "i4, f8"),
    "masked": lambda n: np.ma.array(np.zeros(n), mask=np.arange(n) % 2),
}
if hasattr(np.dtypes, "StringDType"):  # NumPy 2
    ARRAYS["long texts"] = lambda n: np.full(n, "text", np.dtypes.StringDType())
SIZES = 1, 20, 600, 5_000, 100_000  # in the pickle, in the arena, and in segments of their own
WAYS = {
    "items": lambda arrays: parallel_map(_write_to_all, range(2), [arrays] * 2),
    "many items": lambda arrays: parallel_map(_write_to_all, range(20), [arrays] * 20),
    "generated": lambda arrays: parallel_map(_write_to_all, [0], iter([arrays])),
    "in threads": lambda arrays: parallel_map(_write_to_all, [0], [arrays], backend="threads"),
    "partial": lambda arrays: parallel_map(functools.partial(_write_to_all, arrays=arrays), [0]),
    "closure": lambda arrays: parallel_map(lambda i: _write_to_all(i, arrays), [0]),
    "shared": lambda arrays: parallel_map(_write_to_all, [0], shared={"arrays": arrays}),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("way", WAYS)
def test_plain_arrays_are_read_only_in_workers_whatever_their_size(way, kind):
    """Writes to a copy would be lost, so they are errors, on all ways to a worker."""
    assert set(WAYS[way]([ARRAYS[kind](n) for n in SIZES])) == {len(SIZES)}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_any_size_arrive_as_they_are(kind, n):
    """With their values, dtype, shape and order in memory."""
    array = ARRAYS[kind](n)
    (found,) = parallel_map(_as_it_is, [array], out="list")
    flags = array.flags
    assert found == (array.dtype, array.shape, flags.fnc and array.size > 1, array.tolist())


def _as_it_is(array):
    return array.dtype, array.shape, array.flags.fnc and array.size > 1, array.tolist()


def test_an_array_that_holds_itself_arrives_so():
    """Its objects are loaded after the array that they refer to."""
    ring = np.empty(2, object)
    ring[:] = [ring, 5]
    assert parallel_map(lambda ring: ring[0] is ring and ring[1], [ring])[0] == 5


@pytest.mark.parametrize("n", [1, LARGE])
def test_a_worker_writes_into_the_rows_of_a_shared_array(n):
    """Rows of a SharedArray are writable in place, so the caller sees what workers write."""
    table = nbshare.zeros((5, n))
    kinds = parallel_map(tasks.facts, table)
    assert {kind[:3] for kind in kinds} == {("SharedArray", True, True)}
    parallel_map(tasks.overwrite, table, range(5))
    np.testing.assert_array_equal(table, np.repeat(np.arange(5.0), n).reshape(5, n))


def test_a_worker_writes_into_views_of_a_shared_array():
    """Slices, transposes and plain views of a SharedArray are written in place too."""
    base = nbshare.zeros((6, 4))
    parallel_map(tasks.overwrite, base[::2].T[1:3], [1, 2])
    parallel_map(tasks.overwrite, [np.asarray(base)[5], base[5][:1]], [3, 4], max_workers=1)
    expected = np.zeros((6, 4))
    expected[::2, 1], expected[::2, 2] = 1, 2
    expected[5] = [4, 3, 3, 3]
    np.testing.assert_array_equal(base, expected)


def test_a_read_only_view_of_a_shared_array_stays_read_only():
    """A worker may not write through what the caller may not write through."""
    base = nbshare.zeros((3, 4))
    view = base[:]
    view.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, view)
    assert not base.any()


def test_shared_arrays_inside_items_are_writable_in_place():
    """A SharedArray deep inside an item travels by reference."""
    parts = [nbshare.zeros(4), nbshare.zeros((2, 2), "int8")]
    pairs = [{"array": part, "value": i + 1} for i, part in enumerate(parts)]
    assert parallel_map(tasks.mark_pair, pairs) == [None, None]
    assert [part.ravel().tolist() for part in parts] == [[1.0] * 4, [2] * 4]


def test_large_arrays_inside_items_go_by_reference():
    """A large plain array inside items is in shared memory once, read-only."""
    large = np.arange(float(LARGE))
    seen = parallel_map(tasks.facts, [large, large, large[::-1]])
    assert [s[:3] for s in seen] == [("ndarray", False, True)] * 3
    assert [s[3] for s in seen] == [large.tolist(), large.tolist(), large[::-1].tolist()]


def test_the_values_of_a_one_dimensional_array_are_numpy_scalars():
    """A 1-D array yields its scalars, of its own dtype, also as a SharedArray."""
    plain = np.arange(6, dtype="float16")
    for items in (plain, nbshare.share(plain), plain[::-2]):
        results = parallel_map(tasks.identity, items, out="list")
        assert [type(x) for x in results] == [np.float16] * len(items)
        assert results == list(items)


def test_a_hundred_thousand_tiny_items():
    """Many tiny items each give their own result, in order."""
    n = 100_000
    np.testing.assert_array_equal(parallel_map(tasks.double, range(n)), np.arange(0, 2 * n, 2))
    values = np.random.default_rng(0).random(n)
    assert parallel_map(tasks.identity, values.tolist()).tobytes() == values.tobytes()


# ----------------------------------------------------------------- shared= and functions


def test_shared_arrays_arrive_in_shared_memory_and_read_only():
    """Arrays in ``shared=``, plain or shared, large or small, are read-only and never copied."""
    arrays = {
        "large": np.arange(float(LARGE)),
        "small": np.arange(3),
        "strided": np.arange(24.0).reshape(2, 3, 4).T[::2],
        "fortran": np.asfortranarray(np.arange(2.0 * LARGE).reshape(2, LARGE)),
        "segment": nbshare.share(np.arange(5)),
    }
    for seen in parallel_map(tasks.shared_facts, range(4), shared=arrays):
        for name, array in arrays.items():
            assert seen[name] == (type(array).__name__, False, True, array.tolist()), name


@pytest.mark.parametrize("make", [np.zeros, nbshare.zeros])
@pytest.mark.parametrize("n", [3, LARGE])
@pytest.mark.parametrize("function", [tasks.overwrite_shared, tasks.make_writable])
def test_writing_into_shared_raises_in_the_worker(make, n, function):
    """A write into ``shared=`` is a ValueError at once, and the caller's bytes stay as they are."""
    table = make(n)
    with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
        parallel_map(function, [0], shared={"table": table})
    assert not table.any()


def test_a_shared_array_in_shared_is_seen_live(tmp_path):
    """Workers see what the caller writes into a SharedArray during the call."""
    shared = {"signal": nbshare.zeros(1), "ready": tmp_path / "ready"}
    signal, ready = shared.values()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(parallel_map, tasks.await_value, [0], shared=shared)
        wait_until(ready.exists, what="the worker has not begun")
        signal[0] = 7
        assert running.result(20).tolist() == [7.0]


def test_shared_takes_anything_that_pickles():
    """Objects that are not arrays arrive as they are."""
    shared = {"y": {"a": [1, (2, "three")]}, "z": frozenset({4})}
    assert parallel_map(tasks.give_all, [1, 2], shared=shared) == [
        (1, shared["y"], shared["z"]),
        (2, shared["y"], shared["z"]),
    ]


def test_a_partial_with_a_shared_array_is_writable_in_place():
    """A SharedArray in a functools.partial is the caller's memory."""
    target = nbshare.zeros(50, int)
    parallel_map(functools.partial(tasks.place, target), range(50))
    assert target.tolist() == [i * i for i in range(50)]


def test_a_large_plain_array_in_a_partial_is_read_only():
    """A plain array in a partial goes by reference, and a write to it is an error."""
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(functools.partial(tasks.place, np.zeros(LARGE)), range(3))


def test_methods_and_callable_objects():
    """Bound methods and callable objects are functions as any other."""
    model = tasks.Model(np.ones(LARGE))
    assert parallel_map(model.predict, [1, 2]).tolist() == [1000.0, 2000.0]
    assert parallel_map(model, [1, 2]).tolist() == [-1000.0, -2000.0]


def test_functions_in_c_without_a_signature():
    """Built-in functions are mapped, also where Python knows no signature of them."""
    assert parallel_map(math.hypot, [3.0, 5.0], [4.0, 12.0]).tolist() == [5.0, 13.0]
    assert parallel_map(max, [3, 5], [4, 12]).tolist() == [4, 12]


# ---------------------------------------------------------------------------- results


STACKED = {
    "int": [3, 1, 2],
    "float": [0.5, math.inf, math.nan, -0.0],
    "complex": [1j, 2.0 + 0j],
    "bool": [True, False, True],
    "float16": [np.float16(1.5), np.float16(2.5)],
    "float32": [np.float32(0.1)] * 3,
    "uint8": [np.uint8(255), np.uint8(0)],
    "longdouble": [np.longdouble(1) / 3, np.longdouble(2)],
    "complex256": [np.clongdouble(1j) / 3],
    "datetime64": [np.datetime64("2020-02-29"), np.datetime64("NaT", "D")],
    "datetime64-ns": [np.datetime64(1, "ns"), np.datetime64(-5, "ns")],
    "timedelta64": [np.timedelta64(3, "h"), np.timedelta64(4, "h")],
    "0-d": [np.array(1.5), np.array(2.5)],
    "1-d": [np.arange(4.0), np.ones(4)],
    "3-d": [np.full((2, 1, 3), i, "int16") for i in range(5)],
    "float16 arrays": [np.arange(3, dtype="f2")] * 2,
    "fortran": [np.asfortranarray(np.arange(6.0).reshape(2, 3))] * 2,
    "strided": [np.arange(10)[::3], np.arange(10)[::-3]],
    "empty": [np.empty((0, 3))] * 3,
    "structured": [np.array([(i, 0.5)], [("a", "i2"), ("b", "f8")]) for i in range(3)],
    "strings": [np.array(["ab", "c"]), np.array(["de", "fg"])],
    "bytes": [np.array([b"ab", b"c"]), np.array([b"de", b"fg"])],
    "shared arrays": [nbshare.share(np.arange(3)), nbshare.zeros(3, int)],
}


@pytest.mark.parametrize("values", STACKED.values(), ids=STACKED)
def test_numbers_and_arrays_become_one_shared_array(values):
    """Numbers, and arrays of one shape, come stacked in one SharedArray, as NumPy stacks them."""
    result = parallel_map(tasks.pick, range(len(values)), shared={"values": values})
    expected = np.stack([np.asarray(value) for value in values])
    assert type(result) is SharedArray
    assert result.flags.writeable
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)


PROMOTED = {
    "int, float": [1, 2.5],
    "float, int": [2.5, 1],
    "int, complex": [1, 2j],
    "float, complex": [1.5, 2j],
    "bool, int": [True, 7],
    "int8, int16": [np.int8(-1), np.int16(300)],
    "uint8, int8": [np.uint8(255), np.int8(-1)],
    "float16, float32": [np.float16(0.5), np.float32(0.1)],
    "float32, float64": [np.float32(0.5), 0.1],
    "float64, python float": [np.float64(0.5), 0.25],
    "0-d, number": [np.array(0.5), 0.25],
    "days, seconds": [np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00:00:01")],
    "day, nothing": [np.datetime64("2020-01-01"), np.datetime64("NaT", "D")],
    "nanoseconds, microseconds": [np.timedelta64(1, "ns"), np.timedelta64(1, "us")],
    "int arrays, float arrays": [np.arange(3), np.array([0.5, 1, 2])],
    "float16 arrays, float32 arrays": [np.ones(3, "f2"), np.full(3, 0.1, "f4")],
    "little, big endian": [np.arange(3, dtype="<i4"), np.arange(3, dtype=">i4")],
    "strings": [np.array(["a"]), np.array(["long"])],
}


@pytest.mark.parametrize("values", PROMOTED.values(), ids=PROMOTED)
def test_a_change_of_dtype_promotes_if_every_value_survives(values):
    """Results of several dtypes become one array of the dtype that NumPy gives their list."""
    result = parallel_map(tasks.pick, range(2), shared={"values": values}, max_workers=1)
    expected = np.array(values)
    assert type(result) is SharedArray
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


MIXED = {
    "2**53 + 1 and a half": [2**53 + 1, 0.5],
    "a half and 2**53 + 1": [0.5, 2**53 + 1],
    "one and 2**70": [1, 2**70],
    "number and None": [0.5, None],
    "number and string": [0.5, "a"],
    "several shapes": [np.zeros(2), np.zeros(3)],
    "number and array": [1.0, np.zeros(3)],
    "date and number": [np.datetime64(5, "ns"), 0.5],
    "array and masked array": [np.zeros(2), np.ma.array([1.0, 2.0], mask=[True, False])],
}


@pytest.mark.parametrize("values", MIXED.values(), ids=MIXED)
def test_results_that_do_not_fit_together_become_a_list_with_a_warning(values):
    """Nothing is lost or changed when results differ in kind, but they come as a list."""
    with pytest.warns(MixedResultsWarning, match='"list"'):
        result = parallel_map(tasks.pick, range(2), shared={"values": values}, max_workers=1)
    assert type(result) is list
    for value, expected in zip(result, values, strict=True):
        np.testing.assert_equal(value, expected)
        assert np.asarray(value).dtype == np.asarray(expected).dtype
        assert np.ma.isMaskedArray(value) == np.ma.isMaskedArray(expected)


def test_the_warning_of_mixed_results_points_to_the_call():
    """The warning names the caller's file, because Python shows a warning once for each place."""
    with pytest.warns(MixedResultsWarning) as caught:
        parallel_map(tasks.identity, [1.5, "a"], max_workers=1)
    assert [warning.filename for warning in caught] == [__file__]


def test_promotion_of_results_warns_of_nothing():
    """Looking whether values survive a promotion ignores the caller's warning filters."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel_map(tasks.identity, [1.5, 2j, 3], max_workers=1)
    assert not caught


OBJECTS = {
    "strings": ["a", "bc"],
    "None": [None, None],
    "bytes": [b"a", b""],
    "tuples": [(1, 2), (3, 4)],
    "dicts": [{"a": 1}, {}],
    "lists": [[1], [2]],
    "objects": [np.dtype("f8"), frozenset()],
    "huge ints": [2**70, -(2**80)],
    "string, then number": ["a", 1],
    "NumPy strings": [np.str_("a"), np.str_("b")],
}


@pytest.mark.parametrize("values", OBJECTS.values(), ids=OBJECTS)
def test_other_results_are_a_list(values):
    """Objects come as the list that the run would give, without a warning."""
    result = parallel_map(tasks.pick, range(2), shared={"values": values}, max_workers=1)
    assert result == values
    assert [type(value) for value in result] == [type(value) for value in values]


def test_records_and_masked_arrays_keep_what_they_are():
    """Single records and masked arrays are objects to their users, and come as a list."""
    records = list(np.array([(1, 0.5), (2, 1.5)], [("a", "i4"), ("b", "f8")]))
    masked = [np.ma.array([1, 2], mask=[False, True])] * 2
    back = parallel_map(tasks.pick, range(2), shared={"values": records})
    assert back == records
    assert back[0].dtype == records[0].dtype
    for array in parallel_map(tasks.pick, range(2), shared={"values": masked}):
        assert array.mask.tolist() == [False, True]


def test_integers_above_the_signed_range_survive():
    """Unsigned 64-bit values among smaller ones keep their values."""
    values = [1, 2**63]
    result = parallel_map(tasks.pick, range(2), shared={"values": values}, max_workers=1)
    assert [int(value) for value in result] == values


def test_one_odd_result_among_many_loses_no_work():
    """A late change of dtype keeps every result of before and after it."""
    values = [float(i) for i in range(2000)]
    values[1500] = 1j
    result = parallel_map(tasks.pick, range(2000), shared={"values": values})
    assert result.dtype == complex
    assert result.tolist() == values


def test_out_list_gives_what_the_function_returned():
    """``out="list"`` gives a list of the results with their own types."""
    values = [1, 2.5, np.float16(3), "four", np.arange(5)]
    result = parallel_map(tasks.pick, range(5), shared={"values": values}, out="list")
    assert [type(value) for value in result] == [int, float, np.float16, str, np.ndarray]
    assert result[:4] == values[:4]
    np.testing.assert_array_equal(result[4], values[4])


def _nines_in_a_file():
    with tempfile.TemporaryFile() as file:
        out = np.memmap(file, float, "w+", shape=(6, 3))
    out[:] = 9
    return out


OUTPUTS = {
    "memmap": _nines_in_a_file,
    "float64": lambda: np.full((6, 3), 9.0),
    "float32": lambda: np.full((6, 3), 9, "f4"),
    "big endian": lambda: np.full((6, 3), 9, ">f8"),
    "Fortran": lambda: np.full((3, 6), 9.0).T,
    "strided": lambda: np.full((12, 6), 9.0)[::2, ::-2],
    "shared": lambda: nbshare.full((6, 3), 9.0),
    "shared Fortran": lambda: nbshare.full((6, 3), 9, "f4", order="F"),
    "shared strided": lambda: nbshare.full((12, 6), 9.0)[::-2, 1::2],
    "plain view of shared": lambda: np.asarray(nbshare.full((3, 12), 9.0)).T[6:],
}


@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
def test_a_given_array_is_filled(make):
    """An array given as ``out=``, of any kind and layout, is filled and given back itself."""
    out = make()
    base = out.base
    rows = np.random.default_rng(1).random((6, 3))
    assert parallel_map(tasks.double, rows, out=out) is out
    np.testing.assert_array_equal(out, (2 * rows).astype(out.dtype))
    if isinstance(base, np.ndarray) and base.dtype == out.dtype:  # nothing next to it was touched
        assert np.count_nonzero(base == 9) == base.size - out.size


def test_a_given_array_may_be_the_input():
    """The rows of an array may be replaced by their results, in plain and shared memory."""
    for make in (np.array, lambda values: nbshare.share(np.array(values))):
        table = make([[1.0, 2.0], [3.0, 4.0]])
        parallel_map(tasks.double, table, out=table)
        assert table.tolist() == [[2.0, 4.0], [6.0, 8.0]]


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (np.zeros(4), ValueError, r"\(4,\).* 3 items"),
        (np.zeros((2, 3)), ValueError, "3 items"),
        (np.array(0.0), ValueError, "0-d.*first axis"),
        (np.zeros(3, object), TypeError, "object"),
        (np.broadcast_to(0.0, 3), ValueError, "read-only"),
        ("array", ValueError, "'array'"),
        (3, ValueError, "out=3"),
    ],
)
def test_an_output_that_cannot_be_filled_is_refused_at_once(out, error, text, cold):
    """A wrong ``out=`` is refused before any process starts."""
    with pytest.raises(error, match=text):
        parallel_map(tasks.double, range(3), out=out)
    assert set(psutil.Process().children()) <= cold


@pytest.mark.parametrize(
    ("out", "items", "text"),
    [
        (np.full(3, 9), [1.0, 2.0, 3.5], "float64.*int64|int64.*float64"),
        (np.full(3, 9), np.array([1.0, 2.0, 3.5]), "float64.*int64|int64.*float64"),
        (np.full(3, 9.0), [1j, 2j, 3j], "complex"),
        (np.full((3, 2), 9.0), [1.0, 2.0, 3.0], r"\(\).*\(2,\)"),
        (np.full((3, 2), 9.0), np.zeros((3, 4)), r"\(4,\).*\(2,\)"),
        (np.full(3, 9.0), ["a", "b", "c"], "."),
        pytest.param(
            *(np.full(3, 9, "int8"), [1000, 1000, 1000], "1000"),
            marks=pytest.mark.skipif(
                np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 wraps it round"
            ),
        ),
    ],
)
def test_a_result_that_does_not_fit_the_output_names_its_item(out, items, text):
    """A result of the wrong kind or shape for ``out=`` is an error that names the item."""
    with pytest.raises((TypeError, ValueError, OverflowError), match=text) as caught:
        parallel_map(tasks.identity, items, out=out, max_workers=1)
    assert "item 0" in notes_of(caught.value)
    assert (out == 9).all()


# --------------------------------------------------------------------------- wrong use


WRONG = {
    "not callable": (lambda: parallel_map([1, 2], tasks.double), TypeError, "list"),
    "None": (lambda: parallel_map(None, [1]), TypeError, "NoneType"),
    "missing file": (
        lambda: parallel_map("no_such_file.py:f", [1]),
        FileNotFoundError,
        "no_such_file.py",
    ),
    "string without name": (lambda: parallel_map("tasks.py", [1]), ValueError, "file.*function"),
    "string without function": (lambda: parallel_map("double", [1]), ValueError, "double"),
    "missing function": (
        lambda: parallel_map(f"{feeds.__file__}:no_such", [1]),
        AttributeError,
        "no_such",
    ),
    "no iterables": (lambda: parallel_map(tasks.double), TypeError, "iterable"),
    "not iterable": (lambda: parallel_map(tasks.double, 5), TypeError, "iter"),
    "0-d array": (lambda: parallel_map(tasks.double, np.array(5)), TypeError, "0-d"),
    "shared a list": (lambda: parallel_map(tasks.add, [1], shared=[1]), TypeError, "shared=.*list"),
    "shared an array": (
        lambda: parallel_map(tasks.add, [1], shared=np.zeros(3)),
        TypeError,
        "shared=.*ndarray",
    ),
    "shared by number": (lambda: parallel_map(tasks.add, [1], shared={1: 2}), TypeError, "shared="),
    "shared lock": (
        lambda: parallel_map(tasks.add, [1], shared={"y": 1, "z": threading.Lock()}),
        UnsendableError,
        r"shared\['z'\].*lock",
    ),
    "lock in a list in shared": (
        lambda: parallel_map(tasks.add, [1], shared={"y": [threading.Lock()]}),
        TypeError,
        r"shared\['y'\].*lock",
    ),
    "item a lock": (
        lambda: parallel_map(tasks.double, [1, 2, threading.Lock()]),
        UnsendableError,
        "item 2.*lock",
    ),
    "function with a lock": (
        lambda: parallel_map(functools.partial(tasks.add, threading.Lock()), [1]),
        UnsendableError,
        "function.*lock",
    ),
    "max_workers 0": (
        lambda: parallel_map(tasks.double, [1], max_workers=0),
        ValueError,
        "max_workers=0",
    ),
    "max_workers -1": (
        lambda: parallel_map(tasks.double, [1], max_workers=-1),
        ValueError,
        "max_workers=-1",
    ),
    "max_workers 1.5": (
        lambda: parallel_map(tasks.double, [1], max_workers=1.5),
        TypeError,
        "max_workers=1.5",
    ),
    "chunksize 0": (
        lambda: parallel_map(tasks.double, [1], chunksize=0),
        ValueError,
        "chunksize=0",
    ),
    "chunksize a string": (
        lambda: parallel_map(tasks.double, [1], chunksize="2"),
        TypeError,
        "chunksize='2'",
    ),
    "a number for items": (lambda: parallel_map(tasks.double, 3), TypeError, r"int.*range\(n\)"),
    "an array without rows": (
        lambda: parallel_map(tasks.double, np.array(3)),
        TypeError,
        "0-d array.*shared=",
    ),
    "more items than there can be": (
        lambda: parallel_map(tasks.double, range(-3, 2**63)),
        ValueError,
        rf"range\(-3, {2**63}\) has more .* Pass iter\(range\(-3, ",
    ),
    "too few arguments": (lambda: parallel_map(tasks.add, [1]), TypeError, "add.*'y'"),
    "too many arguments": (lambda: parallel_map(tasks.double, [1], [2]), TypeError, "double"),
    "unknown name": (lambda: parallel_map(tasks.double, [1], shared={"dem": 1}), TypeError, "dem"),
    "positional and shared": (
        lambda: parallel_map(tasks.add, [1], [2], shared={"y": 3}),
        TypeError,
        "'y'.*iterable.*shared=",
    ),
    "partial and shared": (
        lambda: parallel_map(functools.partial(tasks.add, y=1), [1], shared={"y": 2}),
        TypeError,
        "'y'.*twice.*partial.*shared=",
    ),
    "progress a number": (
        lambda: parallel_map(tasks.double, [1], progress=3),
        TypeError,
        "progress=3",
    ),
    "plot unknown": (lambda: parallel_map(tasks.double, [1], plot="pie"), ValueError, "'pie'"),
}


@pytest.mark.parametrize(("call", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_before_any_process_starts(call, error, text, cold):
    """A mistake in the call is an error that names it, and nothing has been started."""
    with pytest.raises(error, match=text):
        call()
    assert set(psutil.Process().children()) <= cold


# ------------------------------------------------------- NumPy says what has to come out


NUMBERS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
)


QUICK = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def shapes(min_dims):
    """Shapes with at least one row. Other axes may be empty."""
    rest = st.lists(st.integers(0, 4), min_size=min_dims - 1, max_size=3)
    return st.tuples(st.integers(1, 6), rest).map(lambda pair: (pair[0], *pair[1]))


def native(array):
    return array.astype(array.dtype.newbyteorder("="))


@QUICK
@given(st.data())
def test_mapping_identity_stacks_the_rows(data):
    """The rows of any array of numbers come back as np.stack gives them, bit by bit."""
    array = data.draw(hnp.arrays(NUMBERS, shapes(2)))
    if data.draw(st.booleans()):
        array = array[..., ::-1]
    items = nbshare.share(array) if data.draw(st.booleans()) else array
    result = parallel_map(tasks.identity, items)
    expected = np.stack(list(array))
    assert type(result) is SharedArray
    assert result.shape == expected.shape
    assert native(result).dtype == native(expected).dtype
    assert native(result).tobytes() == native(expected).tobytes()


@QUICK
@given(hnp.arrays(NUMBERS, shapes(1).map(lambda shape: shape[:1])))
def test_mapping_identity_over_scalars_gives_the_array(array):
    """The scalars of any 1-D array of numbers come back as that array."""
    result = parallel_map(tasks.identity, array)
    assert result.shape == array.shape
    assert native(result).dtype == native(array).dtype
    assert native(result).tobytes() == native(array).tobytes()


@QUICK
@given(
    st.lists(st.one_of(st.booleans(), st.integers(), st.floats(), st.none(), st.text()), min_size=1)
)
def test_mixed_results_lose_nothing(values):
    """Each value of any mixture, as a list or array, is equal to its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedResultsWarning)
        result = parallel_map(tasks.identity, values)
    assert len(result) == len(values)
    for value, expected in zip(result, values, strict=True):
        np.testing.assert_equal(value, expected)
