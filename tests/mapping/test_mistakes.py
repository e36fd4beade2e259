"""Calls that a newcomer types a little wrong are refused, or answered, with its cure."""

import importlib
import sqlite3
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nbshare
from nbshare import errors, map_async, parallel_map, rows, share

DATA = np.arange(10.0)
FRAME = pd.DataFrame({"a": [0.0, 1.0, 2.0], "name": list("xyz")})


def double(x):
    return 2 * x


def lookup(x, data):
    return data[x]


def add(a, b):
    return a + b


def scaled(x, data, scale):
    return data[x] * scale


def noise(x, rng):
    return x + rng.normal()


def no_return(x):
    double(x)


def row_sum(row):
    return row["a"] + row["name"]


def invert(x):
    return 1 / (x - 3)


def overwrite(x, data):
    data[0] = x


def leave(x):
    sys.exit(x)


def image(x):
    return np.full((4, 5), x)


class Model:
    """Has a lock."""

    def __init__(self):
        self.lock = threading.Lock()

    def predict(self, x):  # noqa: D102
        return x

    def merge(self, a, b):  # noqa: D102
        return a


def broken():
    yield 0
    raise OSError("disk gone")


CONNECTION = sqlite3.connect(":memory:")
SHARED = "shared={'data': ...}"
RECORDS = "nbshare.rows(df) for an item per row, or list(df.columns)"
RESULT = "job.result()"
# The call, the type of its error, and parts of the message and its notes.
REFUSED = {
    "arguments swapped": (
        lambda: parallel_map(range(5), double),
        TypeError,
        ["not range", "The order is parallel_map(function, items)"],
    ),
    "data as keyword": (lambda: parallel_map(lookup, range(5), data=DATA), TypeError, [SHARED]),
    "data forgotten": (lambda: parallel_map(lookup, range(5)), TypeError, [SHARED]),
    "data as second positional": (
        lambda: parallel_map(lookup, range(10), DATA, max_workers=1),
        IndexError,
        ["raised for item 0 (0, 0.0)", "(range, ndarray)", "shared={name: ...}"],
    ),
    "the same in this process": (
        lambda: parallel_map(lookup, range(10), DATA, backend="serial"),
        IndexError,
        ["raised for item 0 (0, 0.0)", "(range, ndarray)", "shared={name: ...}"],
    ),
    "shared= is an array": (
        lambda: parallel_map(lookup, range(5), shared=DATA),
        TypeError,
        ['such as shared={"elevation": dem}', "not ndarray"],
    ),
    "a wrong name in shared=": (
        lambda: parallel_map(lookup, range(5), shared={"Data": DATA}),
        TypeError,
        ["no parameter 'Data'", "did you mean 'data'?"],
    ),
    "a strange name in shared=": (
        lambda: parallel_map(double, range(5), shared={"elevation": DATA}),
        TypeError,
        ["no parameter 'elevation'", "add that parameter"],
    ),
    "the function is called": (
        lambda: parallel_map(double(3), range(5)),
        TypeError,
        ["Pass the function itself, f, not its result, f(...)"],
    ),
    "a data frame": (lambda: parallel_map(row_sum, FRAME), TypeError, ["columns", RECORDS]),
    "iterrows": (
        lambda: parallel_map(row_sum, FRAME.iterrows(), max_workers=1),
        TypeError,
        ["raised for item 0 (0, a 0.0 name x Name: 0, dtype: object) in worker"],
    ),
    "tuples": (
        lambda: parallel_map(add, [(1, 2), (3, 4)]),
        TypeError,
        ["The items are tuples", "parallel_map(func, *zip(*items))"],
    ),
    "tuples of an iterator": (
        lambda: parallel_map(add, zip([1, 2], [3, 4], strict=True)),
        TypeError,
        ["If the items are tuples", "parallel_map(func, *zip(*items))", "nbshare.grid"],
    ),
    "dicts": (
        lambda: parallel_map(add, [{"a": 1, "b": 2}]),
        TypeError,
        ["The items are dicts", "parallel_map(lambda item: func(**item), items)"],
    ),
    "rows": (
        lambda: parallel_map(add, rows(pd.DataFrame({"a": [1], "b": [2]}))),
        TypeError,
        ["parallel_map(lambda item: func(item.a, item.b), items)"],
    ),
    "a number of items": (lambda: parallel_map(double, 10), TypeError, ["range(n)"]),
    "a generator fails": (
        lambda: parallel_map(double, broken()),
        OSError,
        ["disk gone", "raised when item 1 was taken from the iterable"],
    ),
    "a lock in an object": (
        lambda: parallel_map(Model().predict, range(3)),
        TypeError,
        ["Model.lock cannot be pickled", "nbshare.SharedLock"],
    ),
    "a lock in an object that reduce= uses": (
        lambda: parallel_map(double, range(3), reduce=Model().merge),
        TypeError,
        ["the function of reduce= cannot be sent", "Model.lock", "nbshare.SharedLock"],
    ),
    "a connection in the function before reduce=": (
        lambda: parallel_map(lambda _: CONNECTION.total_changes, range(3), reduce=add),
        TypeError,
        ["its variable 'CONNECTION'", "connect inside the function"],
    ),
    "a connection in a global": (
        lambda: parallel_map(lambda _: CONNECTION.total_changes, range(3)),
        TypeError,
        ["its variable 'CONNECTION'", "connect inside the function"],
    ),
    "a connection's method": (
        lambda: parallel_map(CONNECTION.execute, ["select 1"]),
        TypeError,
        ["Connection cannot be pickled", "connect inside the function"],
    ),
    "out= is too short": (
        lambda: parallel_map(double, range(5), out=np.zeros(4)),
        ValueError,
        ["shape (4,), but there are 5 items", "first axis must have length 5"],
    ),
    "out= has another inner shape": (
        lambda: parallel_map(image, range(5), out=np.zeros((5, 4, 4))),
        ValueError,
        ["the result has shape (4, 5), but a row of out= has shape (4, 4)"],
    ),
    "out= has a smaller dtype": (
        lambda: parallel_map(lambda x: x + 0.5, range(5), out=np.zeros(5, int)),
        TypeError,
        ["dtype float64, which out= of dtype int64 cannot hold", "convert the result"],
    ),
    "out= is a word": (
        lambda: parallel_map(double, range(5), out="array"),
        ValueError,
        ['is not allowed: pass None, "list", "stack", an ndarray'],
    ),
    "seed= without rng": (
        lambda: parallel_map(double, range(5), seed=1),
        TypeError,
        ["add a parameter rng, or drop seed="],
    ),
    "rng without seed=": (lambda: parallel_map(noise, range(5)), TypeError, ["pass seed=1"]),
    "n_jobs=": (lambda: parallel_map(double, [1], n_jobs=2), TypeError, ["use max_workers="]),
    "workers=": (lambda: parallel_map(double, [1], workers=2), TypeError, ["use max_workers="]),
    "desc=": (lambda: parallel_map(double, [1], desc="fit"), TypeError, ["use progress="]),
    "max_workers=-1": (
        lambda: parallel_map(double, [1], max_workers=-1),
        ValueError,
        ["is not allowed: pass 1 or more, or None for all CPUs"],
    ),
    "max_workers=0": (
        lambda: parallel_map(double, [1], max_workers=0),
        ValueError,
        ["is not allowed: pass 1 or more, or None for all CPUs"],
    ),
    "an unknown plot": (
        lambda: parallel_map(double, [1], plot="scatter"),
        ValueError,
        ["'scatter' is not allowed: pass 'line', 'image', 'hist'"],
    ),
    "plot=True": (lambda: parallel_map(double, [1], plot=True), TypeError, ["pass 'line'"]),
    "a write to shared=": (
        lambda: parallel_map(overwrite, range(3), shared={"data": np.zeros(3)}),
        ValueError,
        ["read-only in the workers", "x = x.copy()", "share(x, mode='c')"],
    ),
    "an item fails": (
        lambda: parallel_map(invert, range(6)),
        ZeroDivisionError,
        ["raised for item 3 in worker", "return 1 / (x - 3)"],
    ),
    "all items fail": (
        lambda: parallel_map(lambda x: 1 / 0, range(3), max_workers=1),
        ZeroDivisionError,
        ["raised for item 0 in worker 1"],
    ),
    "too slow": (
        lambda: parallel_map(time.sleep, [60.0], timeout=0.1),
        TimeoutError,
        ["item 0 (60.0) took longer than timeout=0.1 s"],
    ),
    "sys.exit": (
        lambda: parallel_map(leave, [3]),
        errors.TaskError,
        ["SystemExit was raised for item 0 (3) in worker 1: 3"],
    ),
    "checkpoint= of a file": (
        lambda: parallel_map(double, range(3), checkpoint=__file__),
        ValueError,
        ["is a plain file instead of a folder", "Use another path"],
    ),
    "backend='loky'": (
        lambda: parallel_map(double, [1], backend="loky"),
        ValueError,
        ["is not allowed: pass None (worker processes on this machine), 'serial', 'threads'"],
    ),
    "backend='processes'": (
        lambda: parallel_map(double, [1], backend="processes"),
        ValueError,
        ["is not allowed: pass None (worker processes on this machine), 'serial', 'threads'"],
    ),
    "no file": (
        lambda: parallel_map("nofile.py:f", range(3)),
        FileNotFoundError,
        ["there is no file 'nofile.py'", "Write the module first"],
    ),
    "no function in the file": (
        lambda: parallel_map(f"{__file__}:dubble", range(3)),
        AttributeError,
        ["has no 'dubble'; did you mean 'double'?"],
    ),
    "retries='3'": (
        lambda: parallel_map(double, [1], retries="3"),
        ValueError,
        ["is not allowed: pass an integer of 0 or more"],
    ),
    "no items": (lambda: parallel_map(double), TypeError, ["at least one iterable of items"]),
    "objects in share": (
        lambda: share(np.array(["a", None], object)),
        TypeError,
        ["dtype object holds Python objects", "parallel_map(shared=...)"],
    ),
    "SharedArray(5)": (
        lambda: nbshare.SharedArray(5),
        TypeError,
        ["make one with nbshare.empty, zeros or full"],
    ),
    "detach without checkpoint": (
        lambda: map_async(double, range(3), detach=True),
        ValueError,
        ["needs checkpoint=, the folder"],
    ),
    "a dict as items": (
        lambda: parallel_map(double, {"a": 1}),
        TypeError,
        ["a dict among the iterables yields its keys", "list(d)"],
    ),
    "a dict without shared=": (
        lambda: parallel_map(lookup, range(5), {"data": DATA}),
        TypeError,
        ["shared={name: ...}"],
    ),
    "a str as items": (
        lambda: parallel_map(double, "abc"),
        TypeError,
        ["yields its characters as items ('abc')", "list(text)"],
    ),
    "one of two forgotten": (
        lambda: parallel_map(scaled, range(3), shared={"data": DATA}),
        TypeError,
        ["shared={'scale': ...}"],
    ),
    "job[0]": (lambda: map_async(double, range(5))[0], TypeError, [f"{RESULT}[0]"]),
    "np.mean(job)": (lambda: np.mean(map_async(double, range(3))), TypeError, [RESULT]),
    "job.results": (lambda: map_async(double, range(3)).results, AttributeError, ["result()"]),
    "chunksize=0": (
        lambda: parallel_map(double, range(3), chunksize=0),
        ValueError,
        ["is not allowed: pass 1 or more, or None for the default"],
    ),
    "timeout with serial": (
        lambda: parallel_map(double, range(3), timeout=1, backend="serial"),
        ValueError,
        ["needs worker processes", "Leave it out with backend='serial'"],
    ),
}
# The call, the class of its warning, and parts of the message.
WARNED = {
    "two lengths": (
        lambda: parallel_map(add, range(5), range(3)),
        errors.LengthsWarning,
        ["5 and 3 items", "nbshare.grid(", "shared="],
    ),
    "data that is longer": (
        lambda: parallel_map(add, range(5), DATA),
        errors.LengthsWarning,
        ["5 and 10 items", "shared="],
    ),
    "None for one item": (
        lambda: parallel_map(lambda x: None if x == 2 else float(x), range(5)),
        errors.MixedResultsWarning,
        ["item 0 is a float, item 2 a NoneType"],
    ),
    "arrays of several shapes": (
        lambda: parallel_map(np.zeros, range(1, 4)),
        errors.MixedResultsWarning,
        ["shape (1,), item 1 an array of float64 and shape (2,)", 'out="list"'],
    ),
    "numbers and words": (
        lambda: parallel_map(lambda x: x if x < 3 else "no", range(5)),
        errors.MixedResultsWarning,
        ["item 0 is an int, item 3 a str"],
    ),
    "dicts for out='stack'": (
        lambda: parallel_map(lambda x: {"a": x}, range(3), out="stack"),
        errors.MixedResultsWarning,
        ["requires tuples of one length"],
    ),
}
# Calls that work as they were meant, although they look wrong.
ANSWERED = {
    "strings of a column": (
        lambda: parallel_map(double, FRAME["name"]),
        ["xx", "yy", "zz"],
    ),
    "a lambda in shared=": (
        lambda: parallel_map(lambda x, k: k(x), range(3), shared={"k": lambda v: v + 1}).tolist(),
        [1, 2, 3],
    ),
    "a large array in each item": (
        lambda: parallel_map(lambda item: item[0].sum() + item[1], [(DATA, 1)] * 3).tolist(),
        [46.0] * 3,
    ),
    "no results": (lambda: parallel_map(no_return, range(3)), [None] * 3),
    "no items": (lambda: parallel_map(double, []).tolist(), []),
    "a copy of a data frame": (lambda: share(FRAME["a"].to_numpy()).tolist(), [0.0, 1.0, 2.0]),
    "pairs of a job": (lambda: sorted(map_async(double, range(3))), [(0, 0), (1, 2), (2, 4)]),
    "rows of a matrix": (
        lambda: parallel_map(lambda i: i + 1, np.eye(2)).tolist(),
        [[2.0, 1.0], [1.0, 2.0]],
    ),
    "a Series in shared=": (
        lambda: parallel_map(lambda i, s: s.iloc[i], range(3), shared={"s": FRAME["a"]}).tolist(),
        [0.0, 1.0, 2.0],
    ),
    "data frames as results": (
        lambda: [len(f) for f in parallel_map(lambda i: FRAME.head(i + 1), range(3))],
        [1, 2, 3],
    ),
    "a name of an option in shared=": (
        lambda: parallel_map(lambda x, seed: x + seed, range(3), shared={"seed": 2}).tolist(),
        [2, 3, 4],
    ),
    "a function of arrays": (
        lambda: parallel_map(np.polyval, [[1, 2], [3, 4]], shared={"x": 3}).tolist(),
        [5, 13],
    ),
    "a built-in with a keyword": (
        lambda: parallel_map(round, [1.234, 2.345], shared={"ndigits": 1}).tolist(),
        [1.2, 2.3],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_with_its_cure(name):
    call, kind, parts = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    for part in parts:
        assert part in said


@pytest.mark.parametrize("name", WARNED)
def test_a_likely_mistake_is_told_and_the_run_goes_on(name):
    call, kind, parts = WARNED[name]
    with pytest.warns(kind) as told:
        call()
    for part in parts:
        assert part in str(told[0].message)


@pytest.mark.parametrize("name", ANSWERED)
def test_what_looks_wrong_gives_what_was_meant(name, recwarn):
    call, expected = ANSWERED[name]
    assert call() == expected
    assert not recwarn.list


def test_a_global_variable_is_not_changed_by_workers():
    def count(x):
        global counted
        counted = counted + 1
        return x

    global counted
    counted = 0
    assert parallel_map(count, range(5)).tolist() == [0, 1, 2, 3, 4]
    assert counted == 0


def test_the_note_on_several_iterables_is_for_errors_that_they_explain():
    with pytest.raises(ZeroDivisionError) as caught:
        parallel_map(lambda a, b: a // b, [1], [0])
    assert "iterables" not in "".join(caught.value.__notes__)


@pytest.mark.parametrize("backend", [None, "serial"])
def test_the_repr_of_an_item_is_one_short_line(backend):
    with pytest.raises(TypeError) as caught:
        parallel_map(lambda x: x + "", [np.arange(600).reshape(20, 30)], backend=backend)
    line = caught.value.__notes__[0].splitlines()[0]
    assert line.startswith("raised for item 0 (array([[ 0, 1, 2, ")
    assert "…)" in line
    assert len(line) < 100


def test_a_lock_inside_an_object_of_a_package_is_not_for_users_to_replace(tmp_path, monkeypatch):
    """As in a registry of units: they can only create the whole object in the workers."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "units_of_test.py").write_text(
        "import threading\n"
        "class Registry:\n"
        "    def __init__(self):\n"
        "        self._caches = {'lock': threading.Lock()}\n"
    )
    monkeypatch.syspath_prepend(site)
    registry = importlib.import_module("units_of_test").Registry()
    with pytest.raises(errors.UnsendableError) as caught:
        parallel_map(lambda x: (registry, x), range(3))
    assert "registry._caches['lock']" in str(caught.value)
    assert "create the object inside the function" in str(caught.value)
    assert "define both in a .py file" in str(caught.value)
    assert "SharedLock" not in str(caught.value)


def test_a_path_among_the_items_is_named_as_it_is_printed():
    """Not as PosixPath('a.png'), which takes more room and says no more."""
    with pytest.raises(TypeError) as caught:
        parallel_map(lambda path: path + 1, [Path("a.png")])
    assert "raised for item 0 (a.png) in worker 1" in caught.value.__notes__[0]
