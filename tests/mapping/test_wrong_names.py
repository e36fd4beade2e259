"""Wrong names and arguments of all that is public are answered with what was meant."""

from __future__ import annotations

import inspect
import pickle
import re

import numpy as np
import pytest

import nbshare
from nbshare import errors, parallel_map, types


def two(a, b):
    return a + b


def any_names(a, path=None, **others):
    return a


def wrong():
    raise OSError("no data")


def calls():
    """Return all public functions, classes and methods, by the name that a message has."""
    found = {}
    for name in nbshare.__all__:
        thing = getattr(nbshare, name)
        if inspect.isclass(thing) and not issubclass(thing, BaseException | nbshare.SharedArray):
            if name not in ("Job", "SharedObject"):  # which users do not make
                found[name] = thing
            for part, method in vars(thing).items():
                if part[0] != "_" and callable(method):
                    found[f"{name}.{part}"] = getattr(thing, part)
        elif inspect.isfunction(thing):
            found[name] = thing
    return found


CALLS = calls()
OPTIONS = [
    (name, p.name)
    for name, call in CALLS.items()
    for p in inspect.signature(call).parameters.values()
    if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and len(p.name) > 4
]


def misspelt(name):
    """Return a name with two of its letters in each other's place."""
    return next(
        name[:i] + name[i + 1] + name[i] + name[i + 2 :]
        for i in range(1, len(name))
        if name[i] != name[i + 1]
    )


def test_a_misspelt_option_is_named_for_each_public_call():
    """It is the name of an argument, or of an option that is passed on."""
    assert len(OPTIONS) > 80
    for name, option in OPTIONS:
        with pytest.raises(TypeError) as caught:
            CALLS[name](**{misspelt(option): 1})
        said = str(caught.value)
        assert said.startswith((f"{name}() ", f"{name.rpartition('.')[2]}() ")), said
        if name not in ("parallel_map", "map_async", "plan", "pipeline"):  # their function first
            assert f"did you mean {option}=?" in said


@pytest.mark.parametrize("module", [nbshare, errors, types], ids=lambda module: module.__name__)
def test_a_misspelt_public_name_is_named(module):
    names = [name for name in module.__all__ if len(name) > 3]
    for name in names:
        with pytest.raises(AttributeError, match=f"did you mean '{name}'"):
            getattr(module, misspelt(name))
        assert not hasattr(module, misspelt(name))


@pytest.mark.parametrize(
    ("name", "ours"),
    {"pmap": "parallel_map", "Pool": "parallel_map", "gird": "grid", "imap": "map_async"}.items(),
)
def test_an_import_of_a_wrong_name_says_which_is_meant(name, ours):
    """Names of other libraries are known, and the error is an ImportError."""
    with pytest.raises(ImportError, match=f"no attribute '{name}'; did you mean '{ours}'"):
        exec(f"from nbshare import {name}")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: nbshare.grid([1, 2], [3]), "grid() takes its arguments by name: grid(a=..., b="),
        (lambda: nbshare.SharedLock(5), "SharedLock() takes no arguments, but 1 argument came"),
        (lambda: nbshare.RingBuffer(), "needs slots and shape: RingBuffer(slots, shape, ...)"),
        (lambda: nbshare.register_type(cls=int, reduce=repr), "takes cls by position"),
        (
            lambda: nbshare.zeros(3, "f4", "C", 5),
            "zeros() takes shape, dtype, order, but 4 arguments came",
        ),
        (lambda: nbshare.zeros(3, shape=3), "got shape twice: by position, and as shape="),
        (lambda: nbshare.LivePlot("line", color="red"), "LivePlot(lambda ax, partial: ax.plot("),
        (lambda: nbshare.LivePlot("image", vmin=0), "use limits=(low, high)"),
        (lambda: nbshare.Executor(workers=3), "use max_workers="),
        (lambda: parallel_map(func=two, iterables=[1]), "takes func by position"),
        (lambda: parallel_map([two]), "func must be callable"),
        (lambda: parallel_map(two, items=[1]), "pass items by position: parallel_map(two, items)"),
        (lambda: parallel_map(two, a=[1], b=[2]), "parallel_map(two, a, b), and what all calls"),
        (lambda: parallel_map(two, [1], b=3), "to pass it to your function, use shared={'b': ...}"),
        (lambda: parallel_map(any_names, [1], path=3), "use shared={'path': ...}"),
        (lambda: parallel_map(any_names, [1], grain=3), "use shared={'grain': ...}"),
        (lambda: parallel_map(two, [1], cores=3), "use max_workers="),
        (lambda: parallel_map(two, [1], pool=3), "use backend="),
        (lambda: parallel_map(two, [1], resume=True), "use checkpoint="),
        (lambda: parallel_map(two, [1], cmap="gray"), "plot=nbshare.LivePlot(kind, ...)"),
        (lambda: parallel_map(two, [1], gpu=True), "To pass it to two(), which does not take it"),
        (lambda: parallel_map(abs, [1], reduce="sum"), "pass a function, called as reduce(a, b)"),
        (
            lambda: parallel_map(two, [1], plot=lambda partial: 0),
            "plot=lambda ax, partial: ax.plot(",
        ),
        (lambda: nbshare.pipeline(two), "shape: pipeline(load, *stages, shape=..., ...)"),
        (lambda: nbshare.RingBuffer(1, 1).put([1.0]), "with ring.put() as slot: slot[...] ="),
        (lambda: nbshare.RingBuffer(1, 1).get()[0], "with ring.get() as slot:"),
        (lambda: np.sum(nbshare.RingBuffer(1, 1).get()), "with ring.get() as slot:"),
        (lambda: pickle.dumps(nbshare.map_async(abs, [1])), "Use its results, job.result()."),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_to_write(call, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        call()


OBJECTS = {
    "job": lambda: nbshare.map_async(abs, [1]),
    "executor": lambda: nbshare.Executor(1),
    "ring": lambda: nbshare.RingBuffer(1, 1),
    "lock": nbshare.SharedLock,
    "buffer": lambda: nbshare.SharedBuffer(8),
    "plot": nbshare.LivePlot,
    "checkpoint": lambda: nbshare.Checkpoint("folder"),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_a_misspelt_attribute_is_named_for_each_public_object(make):
    """With the attribute that was meant, in one line."""
    thing = make()
    names = [name for name in dir(thing) if name[0] != "_" and len(name) > 4 and name != "result"]
    for name in names:
        with pytest.raises(AttributeError, match=f"did you mean '{name}'"):
            getattr(thing, misspelt(name))
    assert not hasattr(thing, "gpu")


@pytest.mark.parametrize(
    ("thing", "name", "ours"),
    [
        ("job", "stop", "cancel"),
        ("job", "status", "state"),
        ("job", "ready", "done"),
        ("executor", "apply_async", "submit"),
        ("executor", "imap_unordered", "map"),
        ("executor", "close", "shutdown"),
        ("ring", "push", "put"),
        ("ring", "qsize", "stats"),
        ("lock", "lock", "acquire"),
    ],
)
def test_a_method_of_another_library_is_answered_with_ours(thing, name, ours):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean '{ours}'"):
        getattr(OBJECTS[thing](), name)


@pytest.mark.parametrize(
    "call",
    [
        lambda: parallel_map(abs, ["x"]),
        lambda: nbshare.map_async(abs, ["x"]).result(),
        lambda: nbshare.pipeline(wrong, abs, shape=1),
    ],
    ids=["parallel_map", "result", "pipeline"],
)
def test_a_failure_has_one_frame_of_ours_in_a_script(call):
    """That of the public call."""
    with pytest.raises((TypeError, OSError)) as caught:
        call()
    ours = [each for each in caught.traceback if "_core" in str(each.path)]
    assert len(ours) == 1


FROM_THE_CALL = [
    "nbshare.grid(a=1)",
    "nbshare.rows({})",
    "nbshare.tiles(3)",
    "nbshare.register_type(3, 4)",
    "nbshare.report('x')",
    "nbshare.Checkpoint(3)",
    "nbshare.map",
    "nbshare.errors.WorkerDied",
    "nbshare.SharedLock().release()",
    "next(iter(nbshare.RingBuffer(1, 1).put(timeout='x')))",
    "job[0]",
    "job.results",
    "job.result(timeout='x')",
    "len(job)",
    "ex.submit(abs, 1)",
    "ex.sumbit",
    "nbshare.SharedLock().lock()",
    "nbshare.RingBuffer(1, 1).get()[0]",
    "nbshare.RingBuffer(1, 1).get(timeout=0).__enter__()",
    "pickle.dumps(job)",
    "from nbshare import pmap",
]


def test_an_error_in_a_notebook_has_no_frame_of_ours(common):
    """Whichever public name the call began with."""
    _, kernel = common
    kernel.run_well(
        "import pickle, nbshare; ex = nbshare.Executor(1); ex.shutdown();"
        "job = nbshare.map_async(abs, [1]); job.wait()"
    )
    for line in FROM_THE_CALL:
        cell = kernel.run(line)
        assert cell.status == "error", line
        assert "/nbshare/" not in cell.traceback, cell.traceback
