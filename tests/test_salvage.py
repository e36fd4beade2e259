"""What can be had of a pickled list is had: pickle itself, one item at a time, is the judge."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import policies
import pytest

from nbshare.arrays.inputs import Broken
from nbshare.arrays.salvage import load_items


class Unset:
    """Fails when it is there already, and its attributes are to be set."""

    def __init__(self):
        self.x = 1

    def __setstate__(self, state):
        raise KeyError("x")


# The same object in several items, as by chance, broken or not.
COMMON = st.sampled_from(
    [
        policies.Stubborn(),
        Unset(),
        SimpleNamespace(a=policies.Stubborn()),
        SimpleNamespace(a=1),
        [2],
    ]
)
LEAVES = st.one_of(
    st.integers(),
    st.text(),
    st.none(),
    st.just(b"x" * 70_000),  # has a frame of its own
    st.builds(policies.Stubborn),
    st.builds(Unset),
    COMMON,
)
ITEMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
        st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict),
        st.builds(lambda a, b: SimpleNamespace(a=a, b=b), inner, inner),
    ),
    max_leaves=8,
)


def kind_and_text(item):
    return type(item), repr(item) if type(item) is not Broken else repr(item.error)


def alone(item):
    try:
        return pickle.loads(pickle.dumps(item, protocol=5))
    except Exception as error:
        return Broken(error)


@hypothesis.given(st.lists(ITEMS, max_size=12))
def test_each_item_is_what_it_would_be_alone(items):
    """Broken where it cannot be loaded, else equal, whatever it shares with others."""
    loaded = load_items(pickle.dumps(items, protocol=5), [])
    assert [*map(kind_and_text, loaded)] == [kind_and_text(alone(item)) for item in items]


@pytest.mark.parametrize("n", [999, 1000, 1001, 2500])  # pickle writes batches of 1000
def test_long_lists(n):
    """One that is broken in each batch costs nobody else."""
    bad = {*range(0, n, 333)}
    items = [policies.Stubborn() if i in bad else (i,) for i in range(n)]
    loaded = load_items(pickle.dumps(items, protocol=5), [])
    assert [type(item) is Broken for item in loaded] == [i in bad for i in range(n)]
    assert all(item == (i,) for i, item in enumerate(loaded) if i not in bad)


def test_items_that_contain_themselves():
    """Recursion is no obstacle."""
    loop = [1]
    loop.append((loop, 2))
    _, first, second = load_items(pickle.dumps([policies.Stubborn(), loop, loop[1]], 5), [])
    assert first[1][0] is first
    assert first[1] is second


def test_buffers_go_to_their_own_items():
    """Also those behind a broken item that has buffers of its own."""
    items = [[np.full(9, 1), policies.Stubborn(), np.full(9, 2)], np.full(9, 3)]
    buffers = []
    data = pickle.dumps(items, protocol=5, buffer_callback=buffers.append)
    broken, array = load_items(data, buffers)
    assert type(broken) is Broken
    assert array.tolist() == [3] * 9
