"""Iterables that give what they change later, or give the same objects on purpose."""

from __future__ import annotations

import collections
import copy
import csv
import io
import itertools
import re
import sqlite3
import types
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from joblib import delayed

import nbshare
from nbshare import Executor, parallel_map
from nbshare._core.wire.kept import kept_items
from nbshare.errors import ReusedItemWarning
from tests.support import policies

N = 8


class Trajectory:
    """Has one frame for all times, as those of molecular dynamics, with a length and indices."""

    def __init__(self):
        self.frame = types.SimpleNamespace(time=-1)

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i >= N:
            raise IndexError(i)
        self.frame.time = i
        return self.frame


def generated():
    yield from Trajectory()


def in_dicts():
    for i, frame in enumerate(Trajectory()):
        yield {"at": [i, frame]}


def in_turn(n_buffers):
    """Yield a few objects in turn, as a reader does that reads ahead."""
    frames = [types.SimpleNamespace(time=-1) for _ in range(n_buffers)]
    for i in range(N):
        frames[i % n_buffers].time = i
        yield frames[i % n_buffers]


READERS = {
    "indexed": Trajectory,
    "iterator": lambda: iter(Trajectory()),
    "generator": generated,
    "enumerate": lambda: enumerate(Trajectory()),
    "zip": lambda: zip(itertools.count(), Trajectory(), strict=False),
    "in dicts": in_dicts,
    "two in turn": lambda: in_turn(2),
    "three in turn": lambda: in_turn(3),
    "map": lambda: map(Trajectory().__getitem__, range(N)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("call", ["map", "executor"])
def test_an_object_that_changes_is_told(reader, call):
    """Once, with what to do, in the line of the call."""
    run = parallel_map if call == "map" else Executor(2).map
    with pytest.warns(
        ReusedItemWarning, match="same SimpleNamespace for several items.*copy"
    ) as told:
        assert len([*run(policies.pid, READERS[reader]())]) == N
    assert len(told) == 1
    assert told[0].filename == __file__


def test_copies_of_it_are_right():
    """As the warning advises."""
    frames = (copy.copy(frame) for frame in Trajectory())
    assert parallel_map(lambda frame: frame.time, frames).tolist() == [*range(N)]


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
@pytest.mark.parametrize("kind", [np.ndarray, np.recarray])
def test_a_row_that_is_filled_again_is_what_it_was(backend, kind):
    """A row of a structured array is a view of the array."""

    def rows():
        table = np.zeros(1, [("t", int)]).view(kind)
        for i in range(N):
            table["t"] = i
            yield table[0]

    found = parallel_map(lambda row: row["t"], rows(), backend=backend, max_workers=2)
    assert found.tolist() == [*range(N)]


CONFIG = {"depth": [1, 2], "model": types.SimpleNamespace(weights=np.ones(10_000))}
FRAME = pd.DataFrame({"a": [1, 2, 3, 4], "b": list("xxyy")})
TEXT = "a,b\n" + "1,2\n" * 5


CONNECTION = sqlite3.connect(":memory:")


def rows_of_a_table():
    CONNECTION.execute("drop table if exists t")
    CONNECTION.execute("create table t (x)")
    CONNECTION.executemany("insert into t values (?)", [(1,)] * 5)
    CONNECTION.row_factory = sqlite3.Row
    return map(tuple, CONNECTION.execute("select * from t"))


OTHERS = {
    "list of one": lambda: [CONFIG["model"]] * N,
    "tuple of one": lambda: (CONFIG["model"],) * N,
    "repeat": lambda: itertools.repeat(CONFIG["model"], N),
    "generated": lambda: (CONFIG["model"] for _ in range(N)),
    "next to a number": lambda: ((CONFIG["model"], i) for i in range(N)),
    "cycle": lambda: itertools.islice(itertools.cycle([CONFIG["model"]]), N),
    "zip": lambda: zip(itertools.repeat(CONFIG["model"]), range(N), strict=False),
    "product": lambda: itertools.product([CONFIG["model"]], range(N)),
    "class": lambda: (dict for _ in range(N)),
    "rows": FRAME.iterrows,
    "named rows": FRAME.itertuples,
    "columns": FRAME.items,
    "groups": lambda: iter(FRAME.groupby("b")),
    "groups of itertools": lambda: itertools.groupby("aabbcc"),
    "keys": lambda: dict.fromkeys("abcd").keys(),
    "items": lambda: dict.fromkeys("abcd").items(),
    "set": lambda: {1, 2, 3, 4},
    "deque": lambda: collections.deque([CONFIG] * N),
    "nditer": lambda: np.nditer(np.arange(5)),
    "ndenumerate": lambda: np.ndenumerate(np.arange(5)),
    "rows of an array": lambda: iter(np.ones((5, 3))),
    "objects in an array": lambda: np.array([CONFIG] * 5, dtype=object),
    "data array": lambda: xr.DataArray(np.ones((5, 2))),
    "csv": lambda: csv.reader(io.StringIO(TEXT)),
    "csv dicts": lambda: csv.DictReader(io.StringIO(TEXT)),
    "lines": lambda: io.StringIO(TEXT),
    "matches": lambda: (found.groups() for found in re.finditer("([a-z])", "abcdef")),
    "table": rows_of_a_table,
    "chunks": lambda: pd.read_csv(io.StringIO(TEXT), chunksize=1),
    "enumerate": lambda: enumerate([CONFIG] * N),
    "two in turn": lambda: itertools.islice(itertools.cycle([CONFIG["model"], FRAME]), N),
    "map": lambda: map(str, range(N)),
    "pairwise": lambda: itertools.pairwise(FRAME.iterrows()),
    "one array": lambda: (array for array in [np.zeros(3)] * N),
    "random numbers": lambda: (np.random.default_rng(i) for i in range(N)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_nothing_is_told_of_other_iterables(kind):
    """Nor is an item changed, however often the same one comes on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReusedItemWarning)
        n = sum(1 for _ in kept_items(OTHERS[kind]()))
        assert n == sum(1 for _ in OTHERS[kind]())


def count_group(pair):
    key, group = pair
    return key, sum(1 for _ in group)


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_groups_of_itertools_are_whole(backend):
    """Though each is empty as soon as the next one is asked for."""
    expected = [("a", 2), ("b", 3), ("c", 1)]
    found = parallel_map(
        count_group, itertools.groupby("aabbbc"), backend=backend, max_workers=2, out="list"
    )
    assert found == expected
    numbered = enumerate(itertools.groupby("aabbbc"))
    found = parallel_map(
        lambda pair: count_group(pair[1]), numbered, backend=backend, max_workers=2, out="list"
    )
    assert found == expected


def test_a_delayed_function_is_refused():
    """It would give back its calls, which nothing runs."""
    for call in (parallel_map, nbshare.map_async):
        with pytest.raises(
            TypeError, match=r"joblib's delayed\(identity\).*parallel_map\(identity, items\)"
        ):
            call(delayed(policies.identity), [1, 2])


def test_a_function_of_that_name_is_not_refused():
    """As long as it is the user's own."""

    def delayed_function(x):
        return x + 1

    assert parallel_map(delayed_function, [1, 2]).tolist() == [2, 3]
