"""The memory of Python objects in a worker is estimated well enough to say which are large."""

from __future__ import annotations

import collections
import decimal
import fractions
import pickle
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nbshare._core.arrays import loaded_size
from nbshare._core.arrays.loaded_size import loaded_nbytes
from tests.support import once

N = 20_000
TEXTS = [f"text {i}" for i in range(N)]

OBJECTS = {
    "texts by number": lambda: {i: f"text {i}" for i in range(N)},
    "numbers by text": lambda: {f"key {i}": float(i) for i in range(N)},
    "numbers": lambda: [float(i) for i in range(4 * N)],
    "small numbers": lambda: [i % 100 for i in range(8 * N)],
    "a set": lambda: {i + 1000 for i in range(N)},
    "records": lambda: [{"name": f"{i}", "x": i + 0.5, "kind": "a"} for i in range(N)],
    "nested dicts": lambda: {i: {k: {"x": k + 0.5} for k in range(9)} for i in range(N // 9)},
    "pairs": lambda: [(float(i), [float(i)]) for i in range(N)],
    "empty lists": lambda: [[] for _ in range(4 * N)],
    "few texts, many times": lambda: [TEXTS[i % 9] for i in range(9 * N)],
    "some texts, many times": lambda: [TEXTS[i % 999] for i in range(9 * N)],
    "one large text, many times": lambda: ["x" * 900_000] * N,
    "a large text next to small ones": lambda: ["x" * 900_000, *TEXTS],
    "objects": lambda: [SimpleNamespace(x=i, y=f"{i}") for i in range(N)],
    "decimals": lambda: [decimal.Decimal(i) / 7 for i in range(N)],
    "fractions": lambda: [fractions.Fraction(i, 7) for i in range(N)],
    "a subclass of dict": lambda: collections.OrderedDict((i + 0.5, i) for i in range(N)),
    "an array of objects": lambda: np.array(TEXTS * 2, object),
    "a column of objects": lambda: pd.DataFrame({"x": pd.Series(TEXTS, dtype=object)}),
    "an array next to texts": lambda: {"array": np.ones(N), "texts": list(TEXTS)},
    "bytes": lambda: bytes(9 * N),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_estimate_is_near_what_loading_takes(name, monkeypatch):
    """The estimate is within a factor of two, whatever is in the object."""
    monkeypatch.setattr(loaded_size, "LEAST", 0)
    obj, buffers = OBJECTS[name](), []
    data = pickle.dumps(obj, 5, buffer_callback=buffers.append)
    tracemalloc.start()
    loaded = pickle.loads(data, buffers=buffers)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / 2 < loaded_nbytes(obj, len(data)) < taken * 2
    del loaded


def test_what_is_not_pickled_does_not_count():
    """Neither arrays, nor modules, classes and functions that a worker imports."""
    obj = [
        np.ones(10_000_000),
        np,
        once.Model,
        once.ignore,
        pd.DataFrame({"x": np.ones(9_000_000)}),
    ]
    assert loaded_nbytes(obj, 2_000_000) < 2_100_000


def test_a_circle_ends():
    """An object that holds itself is counted once."""
    circle = ["x" * 3_000_000]
    circle += [circle, {1: circle}]
    assert 3_000_000 < loaded_nbytes(circle, 3_000_000) < 3_002_000
