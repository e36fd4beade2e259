"""parallel_map, seen from outside: items, inputs, results, failures, surroundings, wrong use."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import os
import py_compile
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode

import feeds
import numpy as np
import psutil
import pytest
import tasks
from faultlab import memfd_bytes, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from interrupts import InterruptAt

import nbshare
from nbshare import MapInterrupted, SharedArray, last_job, parallel_map
from nbshare.engine import local
from nbshare.errors import (
    MixedResultsWarning,
    NbshareError,
    NotBuiltYetError,
    OutOfMemoryError,
    TaskError,
    UnsendableError,
)

LARGE = 1000  # float64 values: an array that does not travel inside a pickle


def line_of(function, text):
    """Return the number of the line of a function that holds a text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


def notes_of(error):
    return "\n".join(error.__notes__)


# ---------------------------------------------------------------------------- items


@pytest.mark.parametrize(
    "make",
    [
        lambda: [0, 1, 2, 3, 4],
        lambda: (0, 1, 2, 3, 4),
        lambda: range(5),
        lambda: iter(range(5)),
        lambda: (i for i in range(5)),
        lambda: dict.fromkeys(range(5)),
        lambda: np.arange(5),
        lambda: nbshare.share(np.arange(5)),
        lambda: np.ma.array([0, 1, 2, 3, 4]),
    ],
    ids=["list", "tuple", "range", "iterator", "generator", "dict", "ndarray", "shared", "masked"],
)
def test_items_come_from_any_iterable(make):
    """Whatever yields the items, the results are those of the built-in map, in its order."""
    assert parallel_map(tasks.double, make()).tolist() == [0, 2, 4, 6, 8]


def test_iterables_give_one_argument_each_and_the_shortest_ends():
    """Several iterables of every kind are walked together, as in map."""
    table = np.arange(12.0).reshape(6, 2)
    result = parallel_map(tasks.add, table, range(5), itertools.count(100))
    expected = np.stack([row + i + 100 + i for i, row in zip(range(5), table, strict=False)])
    np.testing.assert_array_equal(result, expected)


def test_a_sequence_longer_than_the_shortest_is_cut():
    """Two sequences of different lengths end with the shorter one."""
    assert parallel_map(tasks.add, [1, 2, 3], np.array([10, 20])).tolist() == [11, 22]


def test_a_generator_is_gone_through_once():
    """Items that a generator makes are taken one time each."""
    taken = []
    parallel_map(tasks.double, (taken.append(i) or i for i in range(7)))
    assert taken == list(range(7))


@pytest.mark.parametrize("items", [[], (), range(0), iter(()), np.empty((0, 3)), np.empty(0)])
def test_no_items(items, cold):
    """Without items the result is an empty array, and no process is needed for it."""
    result = parallel_map(tasks.double, items)
    assert (type(result), result.shape, result.dtype) == (np.ndarray, (0,), np.float64)
    assert not psutil.Process().children()


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
    """A plain array's rows cannot be written, whatever their size; large ones are not copied."""
    table = np.arange(3.0 * n).reshape(3, n)
    for row, seen in zip(table, parallel_map(tasks.facts, table), strict=True):
        assert seen == ("ndarray", False, n == LARGE, row.tolist())
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, table)
    np.testing.assert_array_equal(table, np.arange(3.0 * n).reshape(3, n))


@pytest.mark.parametrize("n", [1, LARGE])
def test_rows_of_a_plain_array_are_read_only_beside_other_iterables(n):
    """An array's rows do not become writable copies because a generator stands beside it."""
    table = np.zeros((3, n))
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(tasks.overwrite, table, iter(range(3)))


@pytest.mark.parametrize("n", [1, LARGE])
def test_a_worker_writes_into_the_rows_of_a_shared_array(n):
    """Rows of a SharedArray are writable in place: the caller sees what workers write."""
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
    """What the caller may not write through, a worker may not either."""
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
    """A large plain array inside items lies in shared memory once, read-only."""
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
    """What the caller writes into a SharedArray during the call, workers see."""
    shared = {"signal": nbshare.zeros(1), "ready": tmp_path / "ready"}
    signal, ready = shared.values()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(parallel_map, tasks.await_value, [0], shared=shared)
        wait_until(ready.exists, what="the worker has not begun")
        signal[0] = 7
        assert running.result(20).tolist() == [7.0]


def test_shared_takes_anything_that_pickles():
    """Objects that are no arrays arrive as they are."""
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
    """Nothing is lost or changed when results differ in kind: they come as a list."""
    with pytest.warns(MixedResultsWarning, match='"list"'):
        result = parallel_map(tasks.pick, range(2), shared={"values": values}, max_workers=1)
    assert type(result) is list
    for value, expected in zip(result, values, strict=True):
        np.testing.assert_equal(value, expected)
        assert np.asarray(value).dtype == np.asarray(expected).dtype
        assert np.ma.isMaskedArray(value) == np.ma.isMaskedArray(expected)


def test_the_warning_of_mixed_results_points_to_the_call():
    """The warning names the caller's file: Python shows a warning once for each place."""
    with pytest.warns(MixedResultsWarning) as caught:
        parallel_map(tasks.identity, [1.5, "a"], max_workers=1)
    assert [warning.filename for warning in caught] == [__file__]


def test_promotion_of_results_warns_of_nothing():
    """Looking whether values survive a promotion is no business of the caller's warning filters."""
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
    """Objects come as the list that map would give, without a warning."""
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
    if isinstance(base, np.ndarray) and base.dtype == out.dtype:  # nothing beside it was touched
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
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    ("out", "items", "text"),
    [
        (np.full(3, 9), [1.0, 2.0, 3.5], "float64.*int64|int64.*float64"),
        (np.full(3, 9), np.array([1.0, 2.0, 3.5]), "float64.*int64|int64.*float64"),
        (np.full(3, 9.0), [1j, 2j, 3j], "complex"),
        (np.full((3, 2), 9.0), [1.0, 2.0, 3.0], r"\(\).*\(2,\)"),
        (np.full((3, 2), 9.0), np.zeros((3, 4)), r"\(4,\).*\(2,\)"),
        (np.full(3, 9.0), ["a", "b", "c"], "."),
        (np.full(3, 9, "int8"), [1000, 1000, 1000], "1000"),
    ],
)
def test_a_result_that_does_not_fit_the_output_names_its_item(out, items, text):
    """A result of the wrong kind or shape for ``out=`` is an error that names the item."""
    with pytest.raises((TypeError, ValueError, OverflowError), match=text) as caught:
        parallel_map(tasks.identity, items, out=out, max_workers=1)
    assert "item 0" in notes_of(caught.value)
    assert (out == 9).all()


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", [ValueError, KeyError, ZeroDivisionError, OSError, StopIteration])
def test_an_exception_comes_as_itself_with_its_place(kind):
    """The exception is the function's own; a note names item, worker, file and line."""
    with pytest.raises(kind) as caught:
        parallel_map(functools.partial(tasks.fail_at, kind=kind), "0b2", ["x", "b", "y"])
    note = notes_of(caught.value)
    assert type(caught.value) is kind
    assert caught.value.args == ("no way on at b",)
    assert "item 1" in note
    assert "'b'" in note
    assert f'tasks.py", line {line_of(tasks.fail_at, "raise ")}, in fail_at' in note
    assert "worker" in note
    assert os.sep + "nbshare" + os.sep + "engine" not in note


def test_an_exception_that_holds_a_lambda_comes_as_itself():
    """What plain pickle refuses travels by value."""
    with pytest.raises(ValueError, match="holds a lambda"):
        parallel_map(tasks.raise_holding_lambda, ["only"])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (tasks.raise_two_arguments, "TwoArgumentError"),
        (tasks.leave, "SystemExit"),
        (tasks.interrupt, "KeyboardInterrupt"),
    ],
)
def test_an_exception_that_cannot_travel_is_a_task_error(function, name):
    """What cannot be raised as itself is a TaskError that tells type, text, item and place."""
    with pytest.raises(TaskError, match=name) as caught:
        parallel_map(function, ["only"])
    error = caught.value
    assert (error.index, error.item) == (0, "'only'")
    assert error.type_name.endswith(name)
    assert f"in {function.__name__}" in notes_of(error)
    assert isinstance(error, RuntimeError | NbshareError)


@pytest.mark.parametrize(
    "item", [tasks.Silent(), tasks.Loud(), "x" * 10_000_000, b"y" * 10_000_000]
)
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (tasks.raise_plain, LookupError),
        (tasks.raise_mute, (tasks.MuteError, TaskError)),
        (tasks.raise_long, (ValueError, TaskError)),
    ],
)
def test_items_and_exceptions_that_cannot_be_shown(function, error, item):
    """However an item or exception shows itself, the failure is reported, and briefly."""
    with pytest.raises(error) as caught:
        parallel_map(function, [item])
    assert "item 0" in notes_of(caught.value)
    assert len(notes_of(caught.value)) < 30_000
    assert parallel_map(tasks.double, [1]).tolist() == [2]


def test_a_result_that_does_not_pickle_names_its_item():
    """A result that cannot travel is its item's failure."""
    with pytest.raises(Exception, match="generator") as caught:
        parallel_map(tasks.give_generator, [5])
    assert "item 0" in notes_of(caught.value)


def test_the_results_of_a_failed_map_are_kept(tmp_path):
    """After a failure last_job() has every finished result, and says which are there."""
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=9)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(10), max_workers=2, chunksize=1)
    job = last_job()
    partial = job.partial()
    assert job.state == "failed"
    assert list(job.errors) == [0]
    assert not job.present[0]
    assert job.present[1:9].all()
    assert job.n_done == job.present.sum()
    assert isinstance(partial, np.ma.MaskedArray)
    assert partial.mask.tolist() == (~job.present).tolist()
    assert partial[1:9].tolist() == [float(i) for i in range(1, 9)]
    assert partial.data[0] == 0


def test_the_gaps_in_a_list_are_missing(tmp_path):
    """After a failure a list of results has MISSING in its gaps."""
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=5)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(6), max_workers=2, chunksize=1, out="list")
    partial = last_job().partial()
    assert partial[0] is nbshare.MISSING
    assert partial[1:5] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("make", [np.full, nbshare.full])
def test_a_given_array_has_what_a_failed_map_had_done(tmp_path, make):
    """After a failure the array given as ``out=`` holds every finished row."""
    out = make(10, 99.0)
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=9)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(10), max_workers=2, chunksize=1, out=out)
    assert out[1:9].tolist() == [float(i) for i in range(1, 9)]


def test_the_last_job_is_forgotten_after_a_success():
    """A finished map keeps nothing, neither its own results nor those of the failed one before."""
    with pytest.raises(ValueError, match="no way"):
        parallel_map(tasks.fail_at, [1], [1])
    assert last_job() is not None
    parallel_map(tasks.double, [1])
    assert last_job() is None


def test_the_next_map_after_a_failure_is_right():
    """Fifty failures in a row leave nothing behind that the next map would notice."""
    for i in range(50):
        with pytest.raises(ValueError, match=f"no way on at {i}"):
            parallel_map(tasks.fail_at, range(i + 1), [i] * (i + 1))
        assert parallel_map(tasks.double, [i]).tolist() == [2 * i]


# ---------------------------------------------------------------- workers and chunks


@pytest.mark.parametrize("chunksize", [1, 7, 1000, np.int64(3)])
def test_any_chunksize_gives_the_same_results(chunksize):
    """Chunks decide who runs an item, never the results."""
    result = parallel_map(tasks.double, range(100), chunksize=chunksize)
    assert result.tolist() == list(range(0, 200, 2))


def test_the_items_of_a_chunk_stay_together():
    """A given chunksize is obeyed: the items of a chunk run in one worker."""
    pids = parallel_map(tasks.pid, range(40), chunksize=5).reshape(8, 5)
    assert (pids == pids[:, :1]).all()


@pytest.mark.parametrize("n", [1, 3, 5])
def test_as_many_workers_as_asked_for_work_at_once(tmp_path, n):
    """Exactly `max_workers` processes work on a map, at the same time, none of them the caller."""
    pids = parallel_map(tasks.meet, range(n), shared={"folder": tmp_path, "n": n}, max_workers=n)
    assert len({*pids.tolist(), os.getpid()}) == n + 1
    more = parallel_map(tasks.pid, range(500), max_workers=n, chunksize=1)
    assert len(set(more.tolist())) <= n


def test_by_default_as_many_workers_as_usable_cpus(tmp_path):
    """Without max_workers there is one worker for each CPU that this process may use."""
    n = len(os.sched_getaffinity(0))
    pids = parallel_map(tasks.meet, range(n), shared={"folder": tmp_path, "n": n})
    assert len(set(pids.tolist())) == n


def test_two_threads_map_at_once(tmp_path):
    """Two calls at the same time both go on, each with workers of its own."""
    shared = {"folder": tmp_path, "n": 4}
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(parallel_map, tasks.meet, range(2), shared=shared, max_workers=2)
            for _ in range(2)
        ]
        pids = {pid for call in calls for pid in call.result(20).tolist()}
    assert len(pids) == 4


def test_many_threads_get_their_own_results():
    """Calls from several threads do not mix results or failures."""

    def work(k):
        for i in range(15):
            n = 1 + (k * 7 + i) % 30
            assert parallel_map(tasks.add, range(n), [k] * n).tolist() == [k + j for j in range(n)]
            with pytest.raises(ValueError, match=f"no way on at {k}$"):
                parallel_map(tasks.fail_at, [k], [k])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_map_in_a_worker_runs_there():
    """A nested map gives right results in the worker itself, with no more processes."""
    for n, (squares, is_alone) in zip(
        [3, 4], parallel_map(tasks.nest, [3, 4], out="list"), strict=True
    ):
        assert squares.tolist() == [2 * i for i in range(n)]
        assert is_alone
    assert parallel_map(tasks.nest_deeply, [3]).tolist() == [3]


@pytest.mark.parametrize("function", [tasks.nest_into_integers, tasks.nest_writing])
def test_a_map_in_a_worker_has_the_rules_of_any_other(function):
    """A nested map loses no digits in ``out=`` and guards plain rows, as it does elsewhere."""
    with pytest.raises((TypeError, ValueError), match=r"int64|read-only"):
        parallel_map(function, [0])


def test_workers_draw_different_random_numbers(cold):
    """NumPy's global random state differs between workers, and from one start to the next."""
    first = parallel_map(tasks.draw_number, range(64), max_workers=4, chunksize=1)
    nbshare.shutdown()
    second = parallel_map(tasks.draw_number, range(64), max_workers=4, chunksize=1)
    assert len({*first.tolist(), *second.tolist()}) == 128


def test_an_interrupt_while_the_engine_starts_is_the_maps():
    """`except MapInterrupted` catches it too, and the next map is right."""
    nbshare.shutdown()
    with pytest.raises(MapInterrupted), InterruptAt(1, {local.__file__}):
        parallel_map(tasks.double, [1, 2])
    assert parallel_map(tasks.double, [1, 2]).tolist() == [2, 4]


def test_workers_are_kept_for_the_next_call():
    """A second call runs in the workers of the first one."""
    first, second = (parallel_map(tasks.pid, [0], max_workers=1)[0] for _ in range(2))
    assert first == second


# -------------------------------------------------------------------- the surroundings


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_workers_stand_in_the_new_directory_of_the_old_name(monkeypatch, tmp_path, how):
    """Also where the caller's own folder was replaced between two calls."""
    folder = tmp_path / "results"
    for _ in range(3):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert set(parallel_map(tasks.directory, range(4), max_workers=2)) == {folder.stat().st_ino}
        monkeypatch.chdir(tmp_path)
        if how == "removed":
            folder.rmdir()
        else:
            folder.rename(tmp_path / f"old {folder.stat().st_ino}")


def test_workers_see_the_callers_surroundings(monkeypatch, tmp_path):
    """Environment, folder, import path and umask are those of the call's start, each time."""
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        monkeypatch.setenv("NBSHARE_TEST", f"value {i}")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        before = os.umask(0o20 + i)
        try:
            found = parallel_map(tasks.surroundings, ["NBSHARE_TEST"])
        finally:
            os.umask(before)
        path = [os.path.abspath(p) if p == "" else p for p in sys.path]
        assert found == [(f"value {i}", str(folder), path, 0o20 + i)]
    monkeypatch.delenv("NBSHARE_TEST")
    assert parallel_map(tasks.surroundings, ["NBSHARE_TEST"])[0][0] is None


def test_workers_use_the_callers_cpus():
    """A process that may use one CPU only has workers on that CPU, and back again."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert parallel_map(tasks.cpus, [0], out="list") == [[min(allowed)]]
    finally:
        os.sched_setaffinity(0, allowed)
    assert parallel_map(tasks.cpus, [0], out="list") == [sorted(allowed)]


def test_workers_use_the_callers_warning_filters():
    """A warning that the caller has made an error is one in the workers, one that is off is off."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            parallel_map(tasks.warn, ["careful"])
        warnings.simplefilter("ignore")
        assert parallel_map(tasks.warn, ["careful"]).tolist() == [0]


def test_much_output_from_many_threads_does_not_block(script):
    """Workers print megabytes from several threads, and every line arrives."""
    printed = script(
        "import tasks, nbshare\n"
        'nbshare.parallel_map(tasks.chatter, range(8), shared={"n_lines": 6_000}, max_workers=4)'
    )
    assert printed.count("x") == 8 * 2 * 6_000 * 99


def test_a_caller_without_standard_streams(tmp_path):
    """A process that has closed its input and outputs, as services do, can map."""
    code = (
        "import os, pathlib, sys\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "sys.stdin = sys.stdout = sys.stderr = None\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "import tasks, nbshare\n"
        "result = nbshare.parallel_map(tasks.double, range(3))\n"
        "pathlib.Path('result').write_text(str(result.tolist()))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60)
    assert (tmp_path / "result").exists(), "the map has failed"
    assert (tmp_path / "result").read_text() == "[0, 2, 4]"


# --------------------------------------------------------------------------- fresh code


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module file into a folder of the import path; ``module(name, code)`` imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    written = set()

    def write(name, code, *, into=tmp_path, imported=True):
        Path(into, f"{name}.py").write_text(textwrap.dedent(code))
        written.add(name)
        importlib.invalidate_caches()
        return importlib.import_module(name) if imported else None

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_an_edited_module_is_run_as_it_is_in_the_file(module):
    """The next call runs the new code of a file, though the notebook has not imported it again."""
    answer = module("fresh_edited", "def answer(x): return x + 1").answer
    assert parallel_map(answer, [1]).tolist() == [2]
    for i in range(2, 5):
        module("fresh_edited", f"def answer(x): return 'now {'!' * i}'", imported=False)
        assert parallel_map(answer, [1]) == ["now " + "!" * i]


def test_an_edit_of_the_same_size_within_the_same_second_is_seen(module, tmp_path, monkeypatch):
    """The bytecode cache, which compares seconds and sizes, does not bring old code back."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "fresh_quick.py"
    answer = module("fresh_quick", "def answer(x): return x + 1").answer
    second_ns = path.stat().st_mtime_ns // 10**9 * 10**9
    assert parallel_map(answer, [1]).tolist() == [2]
    for i in range(2, 5):
        module("fresh_quick", f"def answer(x): return x + {i}", imported=False)
        os.utime(path, ns=(second_ns, second_ns + i))
        assert parallel_map(answer, [1]).tolist() == [1 + i]


def test_an_edit_that_keeps_size_time_and_inode_is_seen(module, tmp_path):
    """A file that is written in place, and given its old time back, as `cp -p` and rsync do."""
    path = tmp_path / "fresh_in_place.py"
    answer = module("fresh_in_place", "def answer(x): return x + 1").answer
    for i in range(1, 5):
        module("fresh_in_place", f"def answer(x): return x + {i}", imported=False)
        os.utime(path, ns=(10**18, 10**18))
        assert parallel_map(answer, [1]).tolist() == [1 + i]


@pytest.mark.parametrize(
    ("younger_s", "mode", "is_used"),
    [
        (100, "TIMESTAMP", True),
        (1, "TIMESTAMP", False),
        (100, "UNCHECKED_HASH", False),
        (100, "CHECKED_HASH", False),
    ],
)
def test_a_cache_is_read_only_where_it_is_surely_of_this_version(
    module, tmp_path, younger_s, mode, is_used
):
    """One that is so much younger than its source: here it has other code, to be told apart."""
    name = f"fresh_cached_{younger_s}_{mode}".lower()
    path, code = tmp_path / f"{name}.py", "def answer(x): return x + {}.0"
    answer = module(name, code.format(5)).answer
    os.utime(path, (10**9, 10**9))
    cache = py_compile.compile(str(path), doraise=True, invalidation_mode=PycInvalidationMode[mode])
    module(name, code.format(1), imported=False)
    os.utime(path, (10**9, 10**9))
    changed_s = path.stat().st_ctime
    os.utime(cache, (changed_s + younger_s, changed_s + younger_s))
    assert parallel_map(answer, [1]).tolist() == [6.0 if is_used else 2.0]


def test_a_link_that_leads_to_another_version_is_seen(module, tmp_path):
    """Though both have the same size and time, as files that were unpacked together do."""
    for rate in (1, 9):
        (tmp_path / f"rate_{rate}.py").write_text(f"RATE = {rate}")
        os.utime(tmp_path / f"rate_{rate}.py", (10**9, 10**9))
    link = tmp_path / "fresh_rate.py"
    link.symlink_to("rate_1.py")
    py_compile.compile(str(link), doraise=True)
    answer = module("fresh_rate_user", "import fresh_rate\ndef answer(x): return fresh_rate.RATE")
    assert parallel_map(answer.answer, [0]).tolist() == [1]
    link.unlink()
    link.symlink_to("rate_9.py")
    assert parallel_map(answer.answer, [0]).tolist() == [9]


def test_a_damaged_cache_is_not_read(module, tmp_path):
    """Its source is there: half a cache, of a disk that was full, is as good as none."""
    answer = module("fresh_damaged", "def answer(x): return x + 1").answer
    path = tmp_path / "fresh_damaged.py"
    cache = Path(py_compile.compile(str(path), doraise=True))
    cache.write_bytes(cache.read_bytes()[:24])
    os.utime(cache, (path.stat().st_ctime + 100,) * 2)
    assert parallel_map(answer, [1]).tolist() == [2]


EDITABLE = """
import os
import nbshare
import fresh_editable
for i in range(1, 6):
    with open(fresh_editable.__file__, "w") as file:
        file.write(f"def answer(x): return x + {i}")
    os.utime(fresh_editable.__file__, ns=(10**18, 10**18 + i))  # in the same second
    print(nbshare.parallel_map(fresh_editable.answer, [10], progress=False).tolist()[0] - 10)
"""
FINDER = """
import os, sys
from importlib.util import spec_from_file_location
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "fresh_editable":
            return spec_from_file_location(name, os.path.join({folder!r}, "__init__.py"))
sys.meta_path.append(Finder)
"""


def test_an_editable_install_with_a_finder_of_its_own_is_fresh(tmp_path):
    """Workers run what is in the package's __init__.py now, as of any other module."""
    package = tmp_path / "elsewhere" / "fresh_editable"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def answer(x): return x")
    (tmp_path / "sitecustomize.py").write_text(FINDER.format(folder=str(package)))
    (tmp_path / "main.py").write_text(EDITABLE)
    ended = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.stdout.split() == ["1", "2", "3", "4", "5"], ended.stderr


def test_workers_leave_no_bytecode_beside_a_users_files(tmp_path, monkeypatch):
    """Where the caller has written none."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path = tmp_path / "without_cache.py"
    path.write_text("def answer(x): return x + 1")
    os.utime(path, (1, 1))
    assert parallel_map(f"{path}:answer", [1]).tolist() == [2]
    assert os.listdir(tmp_path) == ["without_cache.py"]


def test_a_default_timeout_of_sockets_is_not_for_workers(cold):
    """Who sets one, for downloads, has the same idle worker in the next call."""
    socket.setdefaulttimeout(0.01)
    try:
        workers = [parallel_map(tasks.pid, [0], max_workers=1)[0]]
        wait_until(lambda: psutil.Process(workers[0]).status() == psutil.STATUS_SLEEPING)
        time.sleep(0.05)  # in which it waits for a message
        workers.append(parallel_map(tasks.pid, [0], max_workers=1)[0])
    finally:
        socket.setdefaulttimeout(None)
    assert workers[0] == workers[1]


def test_an_edited_helper_module_is_seen(module):
    """An edit of a module that the function's module imports counts as well."""
    module("fresh_helper", "STEP = 1")
    code = "import fresh_helper\ndef answer(x): return x + fresh_helper.STEP"
    answer = module("fresh_user", code).answer
    assert parallel_map(answer, [1]).tolist() == [2]
    module("fresh_helper", "STEP = 10", imported=False)
    assert parallel_map(answer, [1]).tolist() == [11]


def test_an_edit_before_the_first_use_is_seen(module):
    """Workers import a module as it is now, though it was there otherwise when they started."""
    nbshare.shutdown()
    answer = module("fresh_unused", "def answer(x): return x").answer
    for _ in range(3):
        parallel_map(tasks.double, [1, 2])
    module("fresh_unused", "def answer(x): return x + 10", imported=False)
    assert parallel_map(answer, [1]).tolist() == [11]
    module("fresh_unused", "def answer(x): return x + 100", imported=False)
    assert parallel_map(answer, [1]).tolist() == [101]


def test_an_edit_during_a_call_is_seen_by_the_next_one(module, tmp_path):
    """A file that changes after a worker has imported it is run as it is now by the next call."""
    path = tmp_path / "fresh_during.py"
    code = """
        from pathlib import Path
        def rewrite(text): Path(__file__).write_text(text)
        def answer(x): return "old"
        """
    during = module("fresh_during", code)
    parallel_map(during.rewrite, ["def answer(x): return 'new'"])
    assert path.read_text() == "def answer(x): return 'new'"
    assert parallel_map(during.answer, [1]) == ["new"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("edit", ["def answer(i): return -1.0", "def answer(i) retu"])
def test_a_replaced_worker_runs_the_code_of_the_calls_start(module, edit, is_first):
    """An edit during a call, of the function's or a helper's file, waits for the next call."""
    module("fresh_step", "STEP = 1.0")
    code = """
        import os, signal
        from pathlib import Path
        import fresh_step
        def answer(i, edit=None):
            if edit and i == 1:
                Path(__file__).write_text(edit)
                Path(fresh_step.__file__).write_text("STEP = 5.0")
                os.kill(os.getpid(), signal.SIGKILL)
            return i + fresh_step.STEP
        """
    answer = module("fresh_replaced", code).answer
    if not is_first:
        assert parallel_map(answer, range(3)).tolist() == [1, 2, 3]
    options = {"max_workers": 1, "on_error": "return", "chunksize": 1}
    result = parallel_map(answer, range(6), shared={"edit": edit}, **options)
    assert result.tolist() == [1.0, None, 3.0, 4.0, 5.0, 6.0]
    if edit.endswith("-1.0"):
        assert parallel_map(answer, range(2)).tolist() == [-1.0, -1.0]
    else:
        with pytest.raises(SyntaxError):
            parallel_map(answer, range(2))


@pytest.mark.parametrize("by_path", [True, False])
def test_a_replaced_worker_runs_files_that_were_deleted(module, tmp_path, by_path):
    """Those of the function and of its helper, deleted during the call."""
    module("fresh_kept_step", "STEP = 1.0")
    code = """
        import os, signal
        from pathlib import Path
        import fresh_kept_step
        def answer(i):
            if i == 1:
                Path(__file__).unlink()
                Path(fresh_kept_step.__file__).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return i + fresh_kept_step.STEP
        """
    name = f"fresh_kept_{'by_path' if by_path else 'by_name'}"
    answer = module(name, code).answer
    func = str(tmp_path / f"{name}.py:answer") if by_path else answer
    options = {"max_workers": 1, "on_error": "return", "chunksize": 1}
    result = parallel_map(func, range(6), **options)
    assert result.tolist() == [1.0, None, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("is_imported_before", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_edit_does_not_split_a_call(module, tmp_path, is_known, is_imported_before):
    """Of two workers one imports the module before an edit, maybe before the call, one after it.

    Whether the notebook had imported it when the workers were started, or later.
    """
    code = """
        import os, signal
        from faultlab import wait_until
        from pathlib import Path
        VERSION = 1.0
        def answer(i, late, folder):
            Path(folder, str(i)).touch()
            if i == 0 and VERSION == 1.0:
                source = Path(__file__)
                source.write_text(source.read_text().replace("VERSION = 1.0", "VERSION = 2.0"))
                os.kill(late, signal.SIGCONT)
                wait_until(Path(folder, "1").exists)
            return VERSION
        def pid(_): return os.getpid()
        """
    nbshare.shutdown()
    late = module("fresh_late", code) if is_known else None
    folders = {name: tempfile.mkdtemp(dir=tmp_path) for name in ("there", "done")}
    there = {"folder": folders["there"], "n": 2}
    pids = parallel_map(tasks.meet, [0, 1], shared=there, max_workers=2, chunksize=1)
    late = late or module("fresh_late", code)
    for _ in range(2):  # after which it is as if the notebook had not known it
        parallel_map(tasks.double, [1, 2])
    pid = late.pid if is_imported_before else tasks.pid
    first = parallel_map(pid, [0], max_workers=1)[0]
    (other,) = set(pids.tolist()) - {first}
    os.kill(other, signal.SIGSTOP)
    shared = {"late": other, "folder": folders["done"]}
    versions = parallel_map(late.answer, [0, 1], shared=shared, max_workers=2, chunksize=1)
    assert versions.tolist() == [1.0, 1.0]
    assert parallel_map(late.answer, [0, 1], shared=shared).tolist() == [2.0, 2.0]


def test_a_module_of_the_same_name_in_another_folder(module, tmp_path, monkeypatch):
    """After a change of the import path, a name means the module that the caller has now."""
    for i in range(2):
        folder = tmp_path / f"project_{i}"
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        sys.modules.pop("fresh_project", None)
        code = f"def which(x): return 'project {i}'"
        which = module("fresh_project", code, into=folder).which
        assert which(0) == f"project {i}"
        assert parallel_map(which, [0]) == [f"project {i}"]


def test_a_broken_edit_is_one_clear_error(module):
    """A file with a syntax error fails the call with that error, and works when it is mended."""
    answer = module("fresh_broken", "def answer(x): return 1").answer
    assert parallel_map(answer, [0]).tolist() == [1]
    module("fresh_broken", "def answer(x) return 2", imported=False)
    with pytest.raises(SyntaxError):
        parallel_map(answer, [0])
    module("fresh_broken", "def answer(x): return 3.5", imported=False)
    assert parallel_map(answer, [0]).tolist() == [3.5]


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
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    "argument",
    [
        {"checkpoint": "results"},
        {"backend": "ray"},
    ],
    ids=str,
)
def test_what_is_not_built_yet_says_so(argument, cold):
    """An argument that comes later is refused by its name, before anything starts."""
    (name,) = argument
    with pytest.raises(NotBuiltYetError, match=f"(?s){name}=.*not built yet"):
        parallel_map(tasks.double, [1], **argument)
    assert not psutil.Process().children()


# ------------------------------------------------------------------------------ memory


@pytest.fixture
def little_memory(monkeypatch):
    """Let the machine have 64 MiB left: the figures, not the memory."""
    monkeypatch.setattr("nbshare.memory.budget._reading", (-1.0, 0))
    monkeypatch.setattr("nbshare.memory.budget.available", lambda: 64 << 20)


@pytest.mark.parametrize("place", ["shared", "items"])
def test_inputs_that_do_not_fit_are_refused_before_they_are_copied(place, little_memory, cold):
    """Too large an input is a MemoryError with both figures, before anything is allocated."""
    table = np.zeros((8, 10 << 20), np.uint8)  # not touched: it takes no memory
    items, shared = ([0], {"table": table}) if place == "shared" else (table, {})
    function = tasks.shared_facts if place == "shared" else tasks.total
    before = memfd_bytes([os.getpid()])
    with pytest.raises(MemoryError, match=r"80 MiB.* 64 MiB") as caught:
        parallel_map(function, items, shared=shared)
    assert isinstance(caught.value, OutOfMemoryError)
    assert memfd_bytes([os.getpid()]) <= before


def test_results_that_do_not_fit_are_refused(little_memory):
    """Too large an output is a MemoryError with both figures; the next map works."""
    items = [(1 << 20, i) for i in range(100)]
    with pytest.raises(MemoryError, match=r"100 MiB.* 64 MiB"):
        parallel_map(tasks.make_bytes, items)
    assert parallel_map(tasks.double, [1]).tolist() == [2]


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
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def shapes(min_dims):
    """Shapes with at least one row; other axes may be empty."""
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
    """Whatever mixture of values comes back, as a list or array, each one is equal to its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedResultsWarning)
        result = parallel_map(tasks.identity, values)
    assert len(result) == len(values)
    for value, expected in zip(result, values, strict=True):
        np.testing.assert_equal(value, expected)


# ------------------------------------------------------------------ without the server

PLAIN_START = """
import os, signal
import numpy as np, psutil
import nbshare, tasks
from nbshare import parallel_map

me = psutil.Process()
assert parallel_map(tasks.double, range(1000)).tolist() == list(range(0, 2000, 2))
workers = me.children(recursive=True)
assert {worker.ppid() for worker in workers} == {os.getpid()}
table = np.arange(3000.0).reshape(3, 1000)
assert parallel_map(tasks.total, table).tolist() == table.sum(axis=1).tolist()
(seen,) = parallel_map(tasks.shared_facts, [0], shared={"table": table})
assert seen["table"][:3] == ("ndarray", False, True)
target = nbshare.zeros((4, 2))
parallel_map(tasks.overwrite, target, range(4))
assert target.tolist() == [[i, i] for i in range(4)]
try:
    parallel_map(tasks.fail_at, range(5), [3] * 5)
except ValueError as error:
    assert "item 3" in error.__notes__[0] and "in fail_at" in error.__notes__[0]
else:
    raise AssertionError("no error")
for worker in me.children():
    worker.send_signal(signal.SIGKILL)
assert parallel_map(tasks.identity, ["a", "b"]) == ["a", "b"]
x = 3
assert parallel_map(lambda y: x * y, [1, 2]).tolist() == [3, 6]
nbshare.shutdown()
assert not me.children()
print("all is well")
"""


def test_workers_without_the_fork_server(script):
    """Where workers are new interpreters, maps, references, failures and deaths are as ever."""
    assert script(PLAIN_START, NBSHARE_PLAIN_START="1") == "all is well\n"
