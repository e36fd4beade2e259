"""What a wrong call says: what is wrong, and what to write instead."""

from __future__ import annotations

import inspect
import pickle
import re
import threading
from array import array

import pytest

from nbshare import Executor, SharedBuffer, map_async, parallel_map, pipeline


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


# What is called, and what the message must tell.
WRONG_CALLS = {
    "tuples": (lambda: parallel_map(two, [(1, 2)]), TypeError, "parallel_map(func, *zip(*items))"),
    "seed": (lambda: parallel_map(one, [1], seed=1), TypeError, "add a parameter rng"),
    "twice": (
        lambda: parallel_map(two, [1], shared={"a": 1, "b": 2}),
        TypeError,
        "'a' is given twice: by an iterable, and in shared=",
    ),
    "layout": (
        lambda: SharedBuffer(64).layout([("A", 3, "f8")]),
        TypeError,
        "must be a dict of names",
    ),
    "float": (lambda: SharedBuffer(1e6), TypeError, "nbytes=1000000.0: must be an int"),
    "out": (
        lambda: parallel_map(one, [1], out=array("d", range(1000))),
        ValueError,
        "…: allowed are None",
    ),
    "count": (lambda: parallel_map(one, [1], max_workers=-1), ValueError, "None for all CPUs"),
    "loky": (lambda: parallel_map(one, [1], backend="loky"), ValueError, "allowed are None"),
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
    "path": (lambda: parallel_map(one, [1], checkpoint=7), TypeError, "checkpoint=7: must be"),
    "names": (lambda: parallel_map(one, [1], shared={1: 2}), TypeError, "not all strings: [1]"),
    "async": (lambda: map_async(one, [1], n_jobs=2), TypeError, "map_async() has no argument"),
    "executor": (lambda: Executor(n_jobs=2), TypeError, "max_workers="),
    "sent": (lambda: pickle.dumps(Executor()), TypeError, "make one there"),
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
print(told.getvalue().count("plot= is shown in a notebook only"))
"""


def test_a_plot_that_nobody_can_see_is_told_of_once(script):
    """In a script the run goes on, also where warnings are errors, and it is said once."""
    assert script(PLOTTED) == "1\n"
