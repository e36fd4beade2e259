"""Objects that function, shared objects and items have in common are one object in workers."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbshare import grid, parallel_map
from nbshare._core.arrays import repeated
from tests.support import graphs

QUIET = {"progress": False, "out": "list", "max_workers": 2}


@st.composite
def calls(draw):
    """Draw a graph of objects, and function, iterables and shared objects made of it."""
    nodes = [draw(st.sampled_from(graphs.KINDS))() for _ in range(draw(st.integers(1, 6)))]
    node = st.sampled_from(nodes)
    value = st.recursive(
        node | st.integers(0, 3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.sampled_from("ab"), inner)
        ),
        max_leaves=4,
    )
    for each in nodes:
        each.parts.extend(draw(st.lists(value, max_size=3)))
    func = draw(st.sampled_from(graphs.FUNCTIONS))(draw(node))
    n = draw(st.integers(1, 5))
    columns = draw(st.lists(st.lists(value, min_size=n, max_size=n), min_size=1, max_size=3))
    shared = draw(st.dictionaries(st.sampled_from(["s", "t"]), value))
    return func, columns, shared


@pytest.fixture(scope="module")
def backends():
    """Return the backends by name, and in the place of a cluster an executor of others."""
    with ThreadPoolExecutor(2) as executor:
        yield {"processes": None, "serial": "serial", "threads": "threads", "hosts": executor}


@pytest.mark.parametrize("name", ["processes", "serial", "threads", "hosts"])
@given(
    call=calls(),
    are_given_by=st.lists(st.sampled_from([list, iter]), min_size=3, max_size=3),
    least=st.sampled_from([0, repeated.LEAST_BYTES]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_one_object_for_a_loop_is_one_for_items(
    backends, monkeypatch, name, call, are_given_by, least
):
    """Whatever parts of a graph of objects a call consists of, items meet it as a loop does."""
    monkeypatch.setattr(repeated, "LEAST_BYTES", least)  # of objects that are pickled once
    func, columns, shared = call
    wanted = [func(*args, **shared) for args in zip(*columns, strict=True)]
    given_as = [kind(column) for kind, column in zip(are_given_by, columns, strict=False)]
    assert parallel_map(func, *given_as, shared=shared, backend=backends[name], **QUIET) == wanted


def graph(n=100):
    """Return objects of which each has its neighbours, and the last one has all."""
    nodes = [graphs.Node() for _ in range(n)]
    for i, node in enumerate(nodes):
        node.parts += [nodes[i - 1], nodes[(i + 1) % n]]
    whole = graphs.Node()
    whole.parts.extend(nodes)
    return nodes, whole


@pytest.mark.parametrize("reduce", [None, operator.add])
def test_many_items_name_objects_that_all_share(reduce):
    """Items that are pickled in blocks, and those of ``reduce=``, are parts of shared objects."""
    nodes, whole = graph()
    pairs = nodes, nodes[1:] + nodes[:1]
    found = parallel_map(
        graphs.shape, *pairs, shared={"whole": whole}, reduce=reduce, progress=False
    )
    wanted = [graphs.shape(a, b, whole=whole) for a, b in zip(*pairs, strict=True)]
    assert found == (wanted if reduce is None else list(itertools.chain(*wanted)))


def test_items_of_a_grid_name_shared_objects():
    """The values of a grid are the objects that the function has."""
    nodes, whole = graph(4)
    found = parallel_map(whole.shape, grid(a=nodes, b=nodes), **QUIET)
    assert found == [whole.shape(a=a, b=b) for a in nodes for b in nodes]


def test_a_plain_array_is_the_same_object():
    """An array that is an item and in ``shared=`` is one array."""
    array = np.arange(3.0)
    assert all(parallel_map(lambda x, y: x is y, [array, array], shared={"y": array}))


class World:
    """Has what cannot be pickled before its agents, and holds some objects weakly."""

    def __init__(self, agents):
        self.lock, self.lazily = threading.Lock(), (agent for agent in agents)
        self.agents = agents
        self.names = weakref.WeakKeyDictionary({agent: k for k, agent in enumerate(agents)})

    def find(self, agent):
        """Return where an agent is, and what it is called."""
        with self.lock:
            return self.agents.index(agent), self.names[agent]


@pytest.mark.parametrize("backend", ["serial", "threads"])
@pytest.mark.parametrize("are_given_by", [list, iter])
def test_a_function_that_is_used_as_it_is_may_have_locks(backend, are_given_by):
    """Items are the objects of the function, whatever it has that cannot be pickled."""
    agents = [graphs.Node() for _ in range(3)]
    found = parallel_map(World(agents).find, are_given_by(agents), backend=backend, **QUIET)
    assert found == [(0, 0), (1, 1), (2, 2)]


def of_thread(obj):
    """Return a function that finds an object in the data of this thread."""
    data = threading.local()
    data.obj = obj
    return lambda: data.obj


def weakly(obj):
    """Return a function that finds an object in a dictionary that does not keep it alive."""
    table = weakref.WeakValueDictionary(a=obj)
    return lambda: table["a"]


@pytest.mark.parametrize("hold", [weakref.ref, weakly, of_thread])
def test_an_object_that_only_such_a_part_holds_is_the_same(hold):
    """An item may be an object that is referred to weakly, or is in the data of the thread."""
    node = graphs.Node()
    find = hold(node)
    found = parallel_map(lambda x: x is find(), [node, graphs.Node()], backend="serial", **QUIET)
    assert found == [True, False]


MARKED = [graphs.ABSENT, graphs.UNSET, graphs.Mark(), object(), None]


@pytest.mark.parametrize("name", ["processes", "serial", "threads", "hosts"])
def test_a_mark_of_a_module_is_the_one_of_the_module(backends, name):
    """An object that is nothing but itself, by whichever function it is compared."""
    wanted = [graphs.marked(x) for x in MARKED]
    for func in graphs.marked, lambda x: graphs.marked(x):
        assert parallel_map(func, MARKED, backend=backends[name], **QUIET) == wanted
    assert parallel_map(graphs.mark, range(2), backend=backends[name], **QUIET) == [*graphs.MARKS]


def test_a_mark_with_attributes_is_a_value(monkeypatch):
    """Workers see the attributes that the caller has set, which the module's file does not."""
    monkeypatch.setattr(graphs.UNSET, "since", 3, raising=False)
    assert parallel_map(graphs.marked, [graphs.UNSET], **QUIET) == [(False, False, {"since": 3})]


def test_a_mark_that_only_the_caller_s_module_has_is_a_value(monkeypatch):
    """A variable that the caller has added, or bound to an object of another class."""
    monkeypatch.setattr(graphs, "ADDED", graphs.Mark(), raising=False)
    assert parallel_map(graphs.marked, [graphs.ADDED], **QUIET) == [(False, False, {})]
