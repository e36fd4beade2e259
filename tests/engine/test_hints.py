"""Large inputs that could take less memory or time are named, by `plan` and by jobs."""

from __future__ import annotations

import pickle
import re
import sys
from functools import partial

import numpy as np
import pytest

from nbshare import map_async, plan, share
from nbshare._core.arrays import loaded_size
from nbshare._core.engine import hints
from tests.support import once


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Take inputs of 100 kB for large ones, none of which has been copied before."""
    monkeypatch.setattr(hints, "LARGE", 100_000)
    monkeypatch.setattr(loaded_size, "LEAST", 2000)
    monkeypatch.setattr(hints, "_copied", ())


def hinted(*iterables, **options):
    """Return the hints on a call."""
    job = map_async(once.ignore, *iterables, progress=False, max_workers=2, **options)
    job.result()
    return job._run.hints


def test_python_objects_are_named_with_their_size():
    """Each large object of ``shared=`` is named, not the small ones, nor what is held once."""
    shared = {
        "first": "x",
        "names": [f"name {i}" for i in range(100_000)],
        "array": np.ones(100_000),
        "more": {i: i for i in range(300)},
        "text": "x" * 900_000,
    }
    names, text = plan(once.ignore, range(3), shared=shared).hints
    assert re.match(r"shared\['names'\]: about [6-9] MB of Python objects in each worker", names)
    assert text.startswith("shared['text']: about 1 MB of Python objects")
    assert hinted(range(3), shared=shared)[:2] == [names, text]
    assert "shared['names']" in repr(plan(once.ignore, range(3), shared=shared))


def test_memory_counts_not_the_pickle():
    """Objects whose pickle is small are named if they become large, wherever a call has them."""
    numbers = {i: float(i) for i in range(1000, 7000)}
    assert len(pickle.dumps(numbers, 5)) < 90_000 < 600_000 < sys.getsizeof(numbers) + 6000 * 56
    about = "about 1 MB of Python objects"
    (hint,) = hinted(range(3), shared={"numbers": numbers})
    assert hint.startswith(f"shared['numbers']: {about}")
    (hint,) = hinted([(numbers, i) for i in range(9)])
    assert hint.startswith(f"an object of several items: {about}")
    (hint,) = plan(partial(once.ignore, numbers=numbers), range(3)).hints
    assert hint.startswith(f"the function: {about}")
    (hint,) = plan(lambda i: numbers, range(3)).hints
    assert hint.startswith(f"the function: {about}")


def test_an_object_of_several_items_is_named():
    """One that items hold is loaded by each worker, too."""
    items = [(text, i) for text in ["x" * 900_000] for i in range(40)]
    (hint,) = hinted(items)
    assert hint.startswith("an object of several items: about 1 MB")
    assert plan(once.ignore, items).hints == [hint]


@pytest.mark.parametrize("backend", [None, "threads"])
def test_an_array_that_is_copied_again_is_named(backend):
    """From the second call on, and a view of it, but not once it is in shared memory."""
    array = np.ones(100_000)
    options = {"backend": backend}
    assert hinted(range(2), shared={"x": array}, **options) == []
    (hint,) = hinted(range(2), shared={"x": array[5:]}, **options)
    assert hint.startswith("shared['x']: 1 MB are copied at each call")
    assert "x = nbshare.share(x)" in hint
    (hint,) = hinted(array.reshape(2, -1), **options)
    assert hint.startswith("the items: 1 MB")
    shared = share(array)
    for _ in range(2):
        assert hinted(range(2), shared={"x": shared}, **options) == []


def test_another_array_in_its_place_is_not_taken_for_it():
    """An array that has ended is not remembered, whatever is where it was."""
    for _ in range(3):
        assert hinted(range(2), shared={"x": np.ones(100_000)}) == []
