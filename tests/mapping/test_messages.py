"""A wrong call says what is wrong, and what to write instead."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import itertools
import multiprocessing as mp
import os
import pickle
import queue
import re
import sqlite3
import subprocess
import sys
import threading
import time
import types
from array import array
from collections import UserDict, deque
from functools import partial

import numpy as np
import pytest
from tqdm import tqdm

from nbshare import Executor, SharedBuffer, errors, map_async, parallel_map, pipeline
from tests.support import objects, pool_tasks


def two(a, b):
    return 10 * a + b


def one(x):
    return x


def locked(lock, *, is_bound):
    """Return a function with a lock in its closure, and perhaps a variable that is not bound."""

    def hold(x):
        return (lock, later, x)

    if is_bound:
        later = 1
    return hold


# The call, and the parts of its message.
WRONG_CALLS = {
    "tuples": (lambda: parallel_map(two, [(1, 2)]), TypeError, "parallel_map(func, *zip(*items))"),
    "seed": (lambda: parallel_map(one, [1], seed=1), TypeError, "add a parameter rng"),
    "twice": (
        lambda: parallel_map(two, [1], shared={"a": 1, "b": 2}),
        TypeError,
        "'a' is given twice: by an iterable, and in shared=. If the function does not use the "
        "item, add a parameter for the item before 'a'.",
    ),
    "layout": (
        lambda: SharedBuffer(64).layout([("A", 3, "f8")]),
        TypeError,
        "layout= needs a dict of names",
    ),
    "float": (lambda: SharedBuffer(1e6), TypeError, "nbytes=1000000.0 is not allowed: pass an int"),
    "out": (
        lambda: parallel_map(one, [1], out=array("d", range(1000))),
        ValueError,
        "… is not allowed: pass None",
    ),
    "count": (lambda: parallel_map(one, [1], max_workers=-1), ValueError, "None for all CPUs"),
    "loky": (
        lambda: parallel_map(one, [1], backend="loky"),
        ValueError,
        "is not allowed: pass None",
    ),
    "lock": (
        lambda: parallel_map(locked(threading.Lock(), is_bound=True), [1]),
        TypeError,
        "its variable 'lock' cannot be pickled",
    ),
    "unbound": (
        lambda: parallel_map(locked(threading.Lock(), is_bound=False), [1]),
        TypeError,
        "function cannot be pickled",
    ),
    "stages": (
        lambda: pipeline(list, sum, shape=2, n_jobs=2),
        TypeError,
        "pipeline() has no n_jobs=: use workers=",
    ),
    "path": (
        lambda: parallel_map(one, [1], checkpoint=7),
        TypeError,
        "checkpoint=7 is not allowed",
    ),
    "names": (lambda: parallel_map(one, [1], shared={1: 2}), TypeError, "are not strings: [1]"),
    "async": (lambda: map_async(one, [1], n_jobs=2), TypeError, "map_async() has no argument"),
    "executor": (lambda: Executor(n_jobs=2), TypeError, "max_workers="),
    "sent": (lambda: pickle.dumps(Executor()), TypeError, "Create one in that process"),
    "debug": (lambda: map_async(one, [1, 2]).debug(7), IndexError, "no item 7: the run has 2"),
}
# Names in joblib, multiprocessing, mpire, tqdm and Dask, slips, and arguments of the function.
ELSEWHERE = {
    "n_jobs": "max_workers=",
    "processes": "max_workers=",
    "chunk_size": "chunksize=",
    "max_worker": "max_workers=",
    "desc": "progress=",
    "verbose": "progress=",
    "total": "leave it out",
    "kwds": "shared={name: value}",
    "random_state": "seed=",
    "callback": "add_done_callback",
    "elevation": "shared={'elevation': ...}",
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_says_what_to_write(name):
    """The message has the cure, and no worker has started for it."""
    call, kind, cure = WRONG_CALLS[name]
    with pytest.raises(kind, match=re.escape(cure)):
        call()


def break_down():
    raise OSError("no licence")


class Table(list):
    """The part of a data frame of pandas that is used."""

    columns = iterrows = ()


@pytest.mark.parametrize("call", [parallel_map, map_async])
@pytest.mark.parametrize(
    ("iterable", "remedy"),
    [
        ({"data": 1}, "list(d)"),
        ({}, "list(d)"),
        (UserDict(a=1), "list(d)"),
        (os.environ, "list(d)"),
        ("abc", "list(text)"),
        ("", "list(text)"),
        (Table(), "nbshare.rows(df)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_iterable_that_gives_its_names_is_refused_alone_or_among_others(call, iterable, remedy):
    """Its keys, characters or columns are hardly the items, so shared= was forgotten."""
    for iterables in ([iterable], [range(3), iterable], [iterable, range(3)]):
        with pytest.raises(TypeError, match=re.escape(remedy)) as caught:
            call(two, *iterables, progress=False)
        assert "shared={name: ...}" in str(caught.value)


@pytest.mark.parametrize(
    "iterables",
    [
        [{1: 2}.keys(), {1: 2}.values()],
        [b"ab", bytearray(b"cd")],
        [(1, 2), {3, 4}],
        [np.arange(2), deque([1, 2])],
    ],
    ids=repr,
)
def test_what_gives_its_items_is_taken(iterables):
    expected = list(map(two, *iterables))
    assert list(parallel_map(two, *iterables, progress=False)) == expected


def test_iterables_of_different_lengths_warn_once_with_the_lengths_and_the_cures():
    """A grid may be meant, of which the run would be the diagonal."""
    for call in (parallel_map, lambda *args, **more: map_async(*args, **more).result()):
        with pytest.warns(errors.LengthsWarning) as warned:
            result = call(two, range(5), np.arange(3), progress=False)
        (warning,) = warned
        assert "5 and 3 items" in str(warning.message)
        assert "nbshare.grid(" in str(warning.message)
        assert "one length" in str(warning.message)
        assert warning.filename == __file__
        assert result.tolist() == [0, 11, 22]
    with pytest.warns(errors.LengthsWarning, match="2, 2 and 0 items"):
        assert len(parallel_map(max, [1, 2], {3, 4}, [], progress=False)) == 0
    with pytest.warns(errors.LengthsWarning, match="1 and 2 items"):  # of three, one has no length
        parallel_map(max, [1], iter([1, 2]), [3, 4], progress=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [range(3), itertools.count()],
        lambda: [range(3), itertools.repeat(1)],
        lambda: [iter([1, 2]), [1, 2, 3]],
        lambda: [(x for x in range(3)), np.arange(2)],
        lambda: [tqdm(x for x in range(3)), [1, 2]],
        lambda: [range(3), np.arange(3), {1, 2, 3}],
    ],
)
def test_lengths_that_are_equal_or_unknown_do_not_warn(make, recwarn):
    expected = list(map(max, *make()))
    assert list(parallel_map(max, *make(), progress=False)) == expected
    assert [w for w in recwarn if w.category is errors.LengthsWarning] == []


def test_all_combinations_come_as_the_message_says():
    a, b = [1, 2, 3], [10, 20]
    expected = [two(x, y) for x in a for y in b]
    assert parallel_map(two, *zip(*itertools.product(a, b), strict=True)).tolist() == expected
    grid = np.meshgrid(a, b, indexing="ij")
    assert parallel_map(two, *(each.ravel() for each in grid)).tolist() == expected


def test_executors_map_keeps_the_meaning_of_the_standard_library(recwarn):
    with Executor(1) as executor:
        assert list(executor.map(two, [1, 2, 3], {4: "a"})) == [14]
        assert list(executor.map(one, "ab")) == ["a", "b"]
    assert len(recwarn) == 0


def test_a_note_is_shown_once():
    """The error of an initializer says once by which one it was raised, and what it said."""
    with pytest.raises(OSError, match="no licence") as caught:
        parallel_map(one, [1], initializer=break_down)
    notes = "\n".join(caught.value.__notes__)
    assert notes.count("raised by the initializer break_down") == 1
    assert notes.count("no licence") == 2  # in the line of the traceback, and as its message


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_from_elsewhere_is_translated(name):
    """An argument that another library has is refused with the one that is meant."""
    with pytest.raises(TypeError, match=f"has no argument {name}=.*{re.escape(ELSEWHERE[name])}"):
        parallel_map(one, [1], **{name: 1})


def test_tuples_of_arguments_are_unpacked_as_the_message_says():
    """``*zip(*items)`` gives what `starmap` gives."""
    items = [(1, 2), (3, 4), (5, 6)]
    assert parallel_map(two, *zip(*items, strict=True)).tolist() == [12, 34, 56]


def test_editors_see_the_arguments_of_both_calls():
    """`map_async` offers the arguments of `parallel_map`, and neither one that does not exist."""
    ours, theirs = inspect.signature(parallel_map), inspect.signature(map_async)
    assert [*ours.parameters, "detach"] == list(theirs.parameters)
    assert ours.parameters.keys() >= {"shared", "plot", "retries", "seed"}
    assert "others" not in ours.parameters


PLOTTED = """
import contextlib, io
from nbshare import parallel_map
with contextlib.redirect_stderr(io.StringIO()) as told:
    for _ in range(3):
        assert parallel_map(abs, [-1, 2], plot="line").tolist() == [1, 2]
print(told.getvalue().count("plot= is shown only in a notebook"))
"""


def test_a_plot_that_nobody_can_see_is_told_of_once(script):
    """In a script the run goes on, also where warnings are errors, and it is said once."""
    assert script(PLOTTED) == "1\n"


# -- what cannot be sent, and what to do -----------------------------------------------------------


class Model:
    """Has a lock two levels deep, as a class of a user's may."""

    def __init__(self, part):
        self.data = np.arange(3)
        self.parts = {"first": part}

    def fit(self, x):  # noqa: D102
        return x


class Slotted:
    """Has no __dict__."""

    __slots__ = ("held", "unset")

    def __init__(self, part):
        self.held = part

    def fit(self, x):  # noqa: D102
        return x


class Bound(np.ndarray):
    """Refuses to be pickled, as patsy's matrices."""

    def __reduce__(self):
        raise NotImplementedError("not yet")


def with_attribute(held):
    """Return a function that holds an object."""

    def function(x):
        return x

    function.held = held
    return function


def refusal_of(call):
    """Return the message with which a call is refused."""
    with pytest.raises(errors.UnsendableError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda m: parallel_map(m.fit, [1]), "Model.parts['first']"),
        (lambda m: parallel_map(partial(m.fit), [1]), "Model.parts['first']"),
        (lambda m: parallel_map(partial(two, b=m), [1]), "its argument \"b.parts['first']\""),
        (lambda m: parallel_map(one, [1, m]), "item 1 cannot be sent to another process: Model."),
        (lambda m: parallel_map(two, [1], shared={"b": m}), "shared['b'] cannot be sent"),
        (lambda m: parallel_map(two, [1], shared={"b": m}), "Model.parts['first']"),
        (lambda m: parallel_map(lambda x: (x, m), [1]), "its variable \"m.parts['first']\""),
        (lambda m: parallel_map(lambda x, m=m: x, [1]), "its variable \"m.parts['first']\""),
        (lambda m: parallel_map(lambda x, *, m=m: x, [1]), "its variable \"m.parts['first']\""),
        (lambda m: parallel_map(with_attribute(m), [1]), "its variable \"held.parts['first']\""),
        (lambda m: parallel_map(one, [[0, (m,)]]), "list[1][0].parts['first']"),
        (lambda _: parallel_map(one, [(0, np.ones(3).view(Bound))]), "tuple[1] cannot be"),
        (lambda m: parallel_map(Slotted(m).fit, [1]), "Slotted.held.parts['first']"),
    ],
)
def test_a_message_names_the_path_to_what_cannot_be_sent(call, path):
    assert path in refusal_of(lambda: call(Model(threading.Lock())))


@pytest.mark.parametrize(
    "make",
    [
        *(mp.Lock, mp.RLock, mp.Condition, mp.Semaphore, mp.Event, mp.Queue, mp.SimpleQueue),
        *(lambda: mp.Value("i", 0), lambda: mp.Array("d", 3), lambda: mp.RawArray("d", 3)),
        *(threading.Lock, threading.RLock, threading.Condition, threading.Event, queue.Queue),
        lambda: mp.RawValue("i", 3),
    ],
)
def test_the_tools_of_other_pools_are_refused_with_those_that_travel(make):
    tool = make()
    calls = [
        lambda: parallel_map(two, [1], shared={"b": tool}),
        lambda: parallel_map(partial(two, b=tool), [1]),
        lambda: parallel_map(one, [tool]),
        lambda: parallel_map(lambda x: (x, tool), [1]),
    ]
    for call in calls:
        message = refusal_of(call)
        for name in ("SharedLock", "zeros", "RingBuffer", "return results"):
            assert name in message


@pytest.mark.parametrize(
    "call",
    [
        lambda bar: parallel_map(Model(bar).fit, [1]),
        lambda bar: parallel_map(two, [1], shared={"b": Model(bar)}),
        lambda bar: parallel_map(one, [Model(bar)]),
    ],
)
def test_an_object_that_pickles_and_does_not_load_is_named_with_its_remedy(call, monkeypatch):
    """As a progress bar of tqdm."""
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # that of pytest cannot be pickled
    with tqdm(total=1) as bar, pytest.raises(RecursionError) as e:
        call(bar)
    assert "instance of tqdm." in "".join(e.value.__notes__)
    assert "Remove the bar" in "".join(e.value.__notes__)


def deeper(n):
    return deeper(n - 1) if n else 1 / 0


def fails_deep(depth):
    sys.setrecursionlimit(depth + 1_000)
    return deeper(depth)


def test_the_ends_of_a_deep_traceback_are_told():
    """Of 100,000 frames. Between them is the same line, which would take 20 s to format."""
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError) as e:
        parallel_map(fails_deep, [100_000])
    assert time.monotonic() - start < 10
    notes = "".join(e.value.__notes__)
    assert "in fails_deep" in notes
    assert notes.rindex("1 / 0") > notes.index("in deeper")
    assert len(notes) < 20_000


def test_each_kind_has_its_remedy():
    class Cached:
        @functools.cached_property
        def table(self):
            return [1]

        def first(self, x):
            return self.table[0] + x

    if sys.version_info < (3, 12):  # later it holds no lock
        message = refusal_of(lambda: parallel_map(Cached().first, [1]))
        assert "Cached.table cannot be pickled" in message
        assert "functools.cached_property holds a lock in Python 3.11" in message
    with sqlite3.connect(":memory:") as connection:
        assert "connect inside" in refusal_of(lambda: parallel_map(lambda x: connection, [1]))
    connection.close()
    generator = (i for i in range(3))
    message = refusal_of(lambda: parallel_map(two, [1], shared={"b": generator}))
    assert "Pass list(...)" in message


def no_license():
    raise ValueError("no license on this machine")


class Licensed:
    """Can be pickled, and not be loaded again."""

    def __reduce__(self):
        return no_license, ()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 has sub-interpreters")
def test_sub_interpreters_are_refused():
    """The error says that NumPy does not run in them."""
    from concurrent.futures import InterpreterPoolExecutor

    with InterpreterPoolExecutor(1) as pool, pytest.raises(ValueError, match="NumPy does not run"):
        parallel_map(one, [1], backend=pool)


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_an_object_of_shared_that_does_not_load_is_named(backend):
    shared = {"a": [1, 2], "b": Licensed()}
    with pytest.raises(ValueError, match="no license") as caught:
        parallel_map(dict, [()], shared=shared, backend=backend, progress=False)
    notes = "\n".join(caught.value.__notes__)
    assert "shared['b']" in notes
    assert "shared['a']" not in notes


def test_a_source_that_works_in_its_own_thread_only_says_to_pass_a_list():
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t(k)")
    connection.executemany("insert into t values (?)", [(1,), (2,)])
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        parallel_map(one, connection.execute("select k from t"), progress=False)
    assert "pass list(...)" in "\n".join(caught.value.__notes__)
    assert parallel_map(one, list(connection.execute("select k from t"))) == [(1,), (2,)]
    connection.close()
    local = threading.local()
    local.value = 1
    with pytest.raises(AttributeError) as caught:
        parallel_map(one, (local.value for _ in range(2)), progress=False)
    assert "pass list(...)" in "\n".join(caught.value.__notes__)
    with pytest.raises(ZeroDivisionError) as caught:
        parallel_map(one, (1 // k for k in (1, 0)), progress=False)
    assert caught.value.__notes__ == ["raised when item 1 was taken from the iterable"]


PATCHERS = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}


@pytest.mark.parametrize("patcher", PATCHERS)
def test_monkey_patching_is_refused_in_one_sentence(patcher, monkeypatch):
    """Under it worker processes cannot be started, nor waited for."""
    patched = {"select"}
    module = types.SimpleNamespace(**{PATCHERS[patcher]: patched.__contains__})
    monkeypatch.setitem(sys.modules, patcher, module)
    for call in (lambda: parallel_map(one, [1]), lambda: parallel_map(one, [1], backend="serial")):
        with pytest.raises(RuntimeError, match="without monkey patching"):
            call()
    patched.clear()
    assert parallel_map(one, [1]).tolist() == [1]


# What is wrong when a public name is imported, and what the error of each use says.
FAILS_TO_IMPORT = {
    "gevent": (
        "sys.modules['gevent.monkey'] = types.SimpleNamespace(is_module_patched={'select'}."
        "__contains__); vars(select).pop('epoll', None)",
        "without monkey patching",
    ),
    "lacks": (
        "find = lambda name, *_: select.lacking if name[:8] == 'nbshare.' else None\n"
        "sys.meta_path.insert(0, types.SimpleNamespace(find_spec=find))",
        "module 'select' has no attribute 'lacking'",
    ),
}
USES = (
    "nbshare.parallel_map",
    "nbshare.types",
    "nbshare.errors.WorkerDiedError, nbshare.zeros",
    "hasattr(nbshare, 'parallel_map')",
    "from nbshare import parallel_map",
    "from nbshare import *",
    "import nbshare.types",
)
TRY_USES = """
import select, sys, types
import nbshare
{}
for use in {}:
    try:
        exec(use)
        print("no error")
    except Exception as error:
        print(error)
print("parallel_map" in dir(nbshare), hasattr(nbshare, "parallel"))
"""


@pytest.mark.parametrize("wrong", FAILS_TO_IMPORT)
def test_an_error_while_a_public_name_is_imported_is_shown(wrong):
    """A use of the name raises it, and does not say that there is no such name."""
    lines, said = FAILS_TO_IMPORT[wrong]
    command = [sys.executable, "-c", TRY_USES.format(lines, USES)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    *of_uses, names = ended.stdout.splitlines()
    assert [use for use, text in zip(USES, of_uses, strict=True) if said not in text] == []
    assert names == "True False"


@pytest.mark.parametrize("kind", objects.BROKEN, ids=lambda kind: kind.__name__)
def test_the_object_that_cannot_be_loaded_is_named(kind):
    """By the class whose object it is, not by what is next to it in the pickle."""
    item = {"before": objects.Fraction(1, 3), "it": kind(), "after": objects.Decimal(1)}
    with pytest.raises(LookupError) as caught:
        parallel_map(one, [item], progress=False)
    assert caught.value.__notes__[0].startswith(objects.BROKEN[kind])


@pytest.mark.parametrize("backend", [None, "serial"])
def test_notes_arrive_though_the_pickle_of_the_error_leaves_them_out(backend):
    """As that of a class with a `__reduce__` of its own does."""
    with pytest.raises(objects.ForgetfulError) as caught:
        parallel_map(objects.raises_noted, [1], progress=False, backend=backend)
    assert caught.value.__notes__[0] == "a note of the function"


def nested(depth):
    """Return a tuple in a tuple in a tuple, and so on."""
    found = ()
    for _ in range(depth):
        found = (found,)
    return found


DEEP = nested(100_000)
CALLS_OF_DEEP = {
    "item": lambda folder: parallel_map(one, [DEEP], progress=False),
    "generator": lambda folder: parallel_map(one, iter([DEEP]), progress=False),
    "threads": lambda folder: parallel_map(one, [DEEP], progress=False, backend="threads"),
    "shared": lambda folder: parallel_map(two, [1], shared={"b": DEEP}, progress=False),
    "partial": lambda folder: parallel_map(partial(two, DEEP), [1], progress=False),
    "initargs": lambda folder: parallel_map(one, [1], initializer=one, initargs=(DEEP,)),
    "task": lambda folder: Executor().submit(one, DEEP).result(),
    "checkpoint": lambda folder: parallel_map(one, [DEEP], progress=False, checkpoint=folder),
    "result": lambda folder: parallel_map(nested, [100_000], progress=False),
    "result here": lambda folder: parallel_map(nested, [100_000], backend="serial"),
    "result of a task": lambda folder: Executor().submit(nested, 100_000).result(),
}


@pytest.mark.parametrize("call", CALLS_OF_DEEP)
def test_an_object_that_is_nested_too_deeply_names_the_recursion_limit(call, tmp_path):
    """Which is what helps, wherever the object is."""
    gc.collect()  # the finalizers of other tests' objects would fail at the limit
    with pytest.raises((TypeError, ValueError, pickle.PicklingError)) as caught:
        CALLS_OF_DEEP[call](tmp_path)
    said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert "sys.setrecursionlimit(" in "\n".join(said)


async def awaited(x):
    return x


async def yielded(x):
    yield x


class _Async:
    """Has methods that are to be awaited."""

    async def __call__(self, x):
        return x

    async def method(self, x):
        return x

    @staticmethod
    async def static(x):
        return x

    @classmethod
    async def of(cls, x):
        yield x


# Functions, and what their error tells to write.
ASYNCHRONOUS = {
    "function": (awaited, "asyncio.run(awaited(item))"),
    "generator": (yielded, "asyncio.run(collect(yielded(item)))"),
    "object": (_Async(), "asyncio.run(func(item))"),
    "method": (_Async().method, "asyncio.run(method(item))"),
    "static method": (_Async.static, "asyncio.run(static(item))"),
    "class method": (_Async.of, "asyncio.run(collect(of(item)))"),
    "partial": (partial(awaited), "asyncio.run(awaited(item))"),
    "partial of an object": (partial(_Async()), "asyncio.run(func(item))"),
    "cached": (partial(functools.cache(yielded)), "asyncio.run(collect(yielded(item)))"),
}
CALLS_OF_FUNCTIONS = {
    "workers": lambda func: parallel_map(func, [1]),
    "serial": lambda func: parallel_map(func, [1], backend="serial"),
    "threads": lambda func: parallel_map(func, [1], backend="threads"),
    "background": lambda func: map_async(func, [1]),
    "initializer": lambda func: parallel_map(one, [1], initializer=func, initargs=[1]),
    "reduce": lambda func: parallel_map(one, [1], reduce=func),
    "until": lambda func: parallel_map(one, [1], until=func),
    "plot": lambda func: parallel_map(one, [1], plot=func),
    "callback": lambda func: map_async(one, [1]).add_done_callback(func),
    "submit": lambda func: Executor().submit(func, 1),
    "submit in a worker": lambda func: parallel_map(pool_tasks.submits, [1], shared={"func": func}),
    "map": lambda func: Executor().map(func, [1]),
    "initializer of tasks": lambda func: Executor(initializer=func, initargs=[1]),
    "loader": lambda func: pipeline(func, one, shape=1),
    "stage": lambda func: pipeline(list, func, shape=1),
}


@pytest.mark.parametrize(
    ("call", "kind"),
    [("workers", kind) for kind in ASYNCHRONOUS]
    + [(call, "function") for call in CALLS_OF_FUNCTIONS if call != "workers"],
)
def test_an_asynchronous_function_is_refused_with_what_to_write(call, kind):
    """Before it is called, which would give a coroutine that nobody awaits."""
    func, told = ASYNCHRONOUS[kind]
    with pytest.raises(TypeError, match="asynchronous") as caught:
        CALLS_OF_FUNCTIONS[call](func)
    assert told in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: [items]])
def test_items_that_are_to_be_awaited_are_refused(wrap):
    """An asynchronous generator is told how to become a list."""
    with pytest.raises(TypeError, match=r"async for|Await it"):
        parallel_map(one, wrap(yielded(1)))


def test_a_plain_function_that_wraps_an_asynchronous_one_is_called():
    """As by a decorator that runs it."""
    run = functools.wraps(awaited)(lambda x: asyncio.run(awaited(x)))
    assert parallel_map(run, [1, 2]).tolist() == [1, 2]
    assert Executor().submit(run, 3).result() == 3
