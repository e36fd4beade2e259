"""What a call sends is copied once, and pickled once, however many items hold it."""

from __future__ import annotations

import functools
import gc
import itertools
import mmap
import pickle
import threading
import tracemalloc
import weakref
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import nbshare
from nbshare import parallel_map, plan
from nbshare._core.arrays import repeated
from nbshare._core.arrays.arena import Arena
from nbshare._core.arrays.copied import ALIGNMENT
from nbshare._core.arrays.inputs import Inputs, lenders
from nbshare._core.arrays.known import LoadedObjects
from nbshare._core.arrays.repeated import NamedParts
from nbshare._core.engine.preparing import pack_sources
from nbshare._core.memory import View, segment_of
from nbshare._core.worker.items import ItemSource, blocks_of
from tests.support import once

BIG = np.random.default_rng(1).random(1 << 17)  # 1 MiB
TEXTS = [f"row number {i:08}" for i in range(40_000)]
N = 40  # items


def placed(*iterables):
    """Return how many bytes the items of a call take in shared memory."""
    arena = Arena()
    pack_sources(arena, iterables)
    return arena.nbytes


def loaders(*iterables):
    """Return what loads the items of a call in a worker, and the memory that they are in."""
    arena = Arena()
    sources = pack_sources(arena, iterables)
    view = View(arena.all_contents(), is_read_only=True)
    inputs = Inputs([view])
    blocks = blocks_of(inputs, sources, None)
    return [ItemSource(inputs, blocks, *each) for each in sources.iterables], view.root


def there_and_back(*iterables):
    """Return the items of a call as a worker loads them, one chunk after the other."""
    columns, _ = loaders(*iterables)
    n = len(iterables[0])
    return [[column.items(range(i, i + 1))[0] for column in columns] for i in range(n)]


def table():
    return pytest.importorskip("pyarrow").table({"a": BIG})


MEMORY = {
    "an array": lambda: [(BIG, i) for i in range(N)],
    "expanding windows": lambda: [BIG[: len(BIG) - 1000 * i] for i in range(N)],
    "growing windows": lambda: [BIG[: 3000 * (i + 1)] for i in range(N)],
    "overlapping windows": lambda: [BIG[2000 * i : 2000 * i + 50_000] for i in range(N)],
    "more and more columns": lambda: [BIG.reshape(2048, 64)[:, : i + 1] for i in range(64)],
    "backwards": lambda: [BIG[::-1][1000 * i :] for i in range(N)],
    "both orders": lambda: [BIG.reshape(256, 512), BIG.reshape(256, 512).T] * 9,
    "bytes and numbers": lambda: [BIG, BIG.view(np.uint8), BIG.view("i4")[5:]] * 9,
    "a sliding window": lambda: sliding_window_view(BIG, 50),
    "a broadcast array": lambda: np.broadcast_to(BIG, (N, len(BIG))),
    "a masked array": lambda: [(np.ma.masked_array(BIG, mask=False), i) for i in range(N)],
    "a recarray": lambda: [(np.rec.fromarrays([BIG], names="x"), i) for i in range(N)],
    "slices of a table": lambda: [
        whole.slice(1000 * i, 5000) for whole in [table()] for i in range(N)
    ],
    "batches of a table": lambda: table().to_batches(3000),
    "parts of a frame": lambda: [pd.DataFrame({"a": BIG}).iloc[1000 * i :] for i in range(N)],
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_of_several_items_is_placed_once(name):
    """Items that show the same memory take as much as that."""
    masks = len(BIG) if "masked" in name else 0
    records = N * BIG.nbytes if "recarray" in name else 0  # made for each item
    frames = N * BIG.nbytes if "frame" in name else 0
    assert placed(MEMORY[name]()) < 1.1 * max(BIG.nbytes, records, frames) + masks * N


@st.composite
def views(draw):
    """Draw views of some memory, of any dtype, strides and overlap."""
    memory = np.arange(draw(st.integers(1, 2000)), dtype=np.uint8)
    found = []
    for _ in range(draw(st.integers(1, 6))):
        dtype = np.dtype(draw(st.sampled_from(["u1", "<i2", ">f4", "f8", "c16", "S3", "i2,f8"])))
        start = draw(st.integers(0, len(memory)))
        rows = memory[start : start + (len(memory) - start) // dtype.itemsize * dtype.itemsize]
        array = rows.view(dtype)
        if len(array):
            step = draw(st.sampled_from([1, 1, 2, 5, -1, -3]))
            array = array[::step]
        shape = draw(st.sampled_from([(-1,), (2, -1), (3, -1), (-1, 2)]))
        if array.size % abs(int(np.prod(shape))) == 0:
            array = array.reshape(shape)
        if draw(st.booleans()):
            array = array.T
        if draw(st.booleans()) and array.size:
            array = np.broadcast_to(array, (2, *array.shape))
        found.append(array)
    return found


@given(views())
@settings(max_examples=300, deadline=None)
def test_views_of_one_memory_arrive_equal(arrays):
    """Whatever views of a memory a call sends, workers see the same values, aligned as here."""
    arena = Arena()
    packed = [arena.pack(each, "it") for each in arrays]
    assert arena.nbytes <= sum(200 + ALIGNMENT + each.nbytes + 64 for each in arrays) + 2000 * 6
    inputs = Inputs([View(arena.all_contents())])
    for array, each in zip(arrays, packed, strict=True):
        arrived = inputs.load(each)
        assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
        assert arrived.tobytes() == array.tobytes()
        assert arrived.flags.aligned or not array.flags.aligned
        assert not arrived.flags.writeable


def test_what_is_between_elements_is_not_sent_without_need():
    """A column of a table takes as much as its values, and arrives contiguous."""
    column = BIG.reshape(-1, 8)[:, 3]
    assert placed([column] * N) < 1.1 * column.nbytes
    assert all(x.flags.c_contiguous and (x == column).all() for (x,) in there_and_back([column]))


def test_a_copy_of_a_large_array_begins_at_a_page():
    """Page faults of later copies to the same memory take less time there."""
    items = [np.arange(10.0), BIG, BIG.reshape(2, -1).T, np.append(BIG, 1.0)]
    places = parallel_map(lambda array: array.ctypes.data % mmap.PAGESIZE, items)
    assert places[1:].tolist() == [0, 0, 0]


OBJECTS = {
    "a dict": lambda: dict.fromkeys(TEXTS, 1.5),
    "a list": lambda: [*map(float, range(100_000))],
    "a text": lambda: "x" * 1_000_000,
    "bytes": lambda: bytes(1_000_000),
    "a frame of texts": lambda: pd.DataFrame({"a": TEXTS}),
    "a frame of objects": lambda: pd.DataFrame({"a": pd.Series(TEXTS, dtype=object)}),
    "an object": lambda: once.Model(TEXTS),
    "one that makes arrays": once.Derived,
}
WAYS = {
    "pairs": lambda x: ([(x, i) for i in range(N)],),
    "a column": lambda x: ([x] * N, range(N)),
    "many": lambda x: ([(x, i) for i in range(1000)],),
    "in objects": lambda x: ([once.Job(x, i) for i in range(N)],),
    "in lists of dicts": lambda x: ([[{"x": x}, i] for i in range(N)],),
    "in methods": lambda x: ([once.Model(x).run] * N,),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_several_items_is_placed_once(name, way):
    """A large object takes its size once, however items hold it."""
    obj = OBJECTS[name]()
    arena = Arena()
    arena.pack(obj, "it")
    assert placed(*WAYS[way](obj)) < 1.1 * arena.nbytes + 100 * 1000


@pytest.mark.parametrize("is_sorted", [True, False])
def test_each_of_several_objects_is_placed_once(is_sorted):
    """Items that are pairs of tables and parameters take the tables once, in any order."""
    tables = [dict.fromkeys(range(k, k + 50_000)) for k in range(6)]
    pairs = [*itertools.product(tables, range(10))]
    if not is_sorted:
        pairs.sort(key=lambda pair: pair[1])
    assert placed(pairs) < 1.1 * len(pickle.dumps(tables, 5))


def test_an_object_of_many_items_is_pickled_few_times():
    """It is pickled to see that it is large, to see that it is the same, and as a part."""
    obj = once.Counted(TEXTS)
    placed([(obj, i) for i in range(N)])
    assert obj.n_pickled <= 3


def test_an_item_has_one_object_of_each_as_in_a_loop():
    """Whether an item holds a repeated object, a part of it, or both, there is one of each."""
    inner = TEXTS[:3000]
    outer = {"inner": inner, "more": TEXTS}
    whole = once.Model(outer)
    items = [(outer, inner), (inner, outer), (whole, inner, outer), [inner, whole, outer]] * 4
    for (item,) in there_and_back(items):
        lists = [x["inner"] if isinstance(x, dict) else getattr(x, "parts", x) for x in item]
        lists = [x["inner"] if isinstance(x, dict) else x for x in lists]
        assert len({*map(id, lists)}) == 1
        assert lists[0] == inner


def test_a_worker_keeps_what_its_next_items_hold():
    """An object is loaded once for items in a row, and dropped after them."""
    first, second = [*range(20_000)], [*range(30_000)]
    loaded = there_and_back([(first, 0), (first, 1), (second, 2), (second, 3), (first, 4)])
    ids = [id(pair[0]) for (pair,) in loaded]
    assert [ids[0], ids[2]] == [ids[1], ids[3]]
    assert ids[4] not in ids[:4]


def test_a_worker_holds_no_copy_of_a_pickle_next_to_its_object():
    """An object of several items takes its own memory in a worker, not that of its pickle, too."""
    obj = bytes(8 << 20)
    (column,), _ = loaders([(obj, i) for i in range(3)])
    tracemalloc.start()
    try:
        column.items(range(1))
        assert tracemalloc.get_traced_memory()[1] < 1.1 * len(obj)
    finally:
        tracemalloc.stop()


def test_a_part_keeps_the_parts_that_it_names():
    """What is in a part that is kept is not loaded a second time."""
    made = []

    def load(part, parts):
        made.append(part)
        return ([parts(0)] if part == 1 else [part]), {}, part == 2

    parts = NamedParts(load)
    outer = parts(1)
    for _ in range(3):
        parts.drop_others()
        assert parts(1) is outer
    assert parts(0) is outer[0]
    assert made == [1, 0]
    parts.drop_others()
    parts.drop_others()
    parts(0)
    assert made == [1, 0, 0]


def test_the_objects_of_a_part_are_read_once():
    """Items that name objects of a large part do not cost a copy of its memo each."""
    n_read = 0

    class Memo:
        def copy(self):
            nonlocal n_read
            n_read += 1
            return {3: "inner"}

    objects = LoadedObjects(SimpleNamespace(memo=Memo()), dict)
    parts = NamedParts(lambda part, parts: ("whole", objects, False))
    assert [parts((0, 3)), parts((0, 3)), parts(0)] == ["inner", "inner", "whole"]
    assert n_read == 1


def test_a_part_with_memory_is_loaded_for_each_block():
    """What an item writes to arrays of a repeated object does not reach a later item."""
    table = once.Model([TEXTS, np.ones(100_000)])
    loaded = there_and_back([(table, i) for i in range(3)])
    models, arrays = zip(*((pair[0], pair[0].parts[1]) for (pair,) in loaded), strict=True)
    assert len({*map(id, models)}) == len({*map(id, arrays)}) == 3


@pytest.mark.parametrize("n", [N, 300])  # items, pickled one by one and several at a time
def test_items_with_the_same_memory_are_loaded_once(n):
    """A worker does not load items ahead that it has to load again without an item's writes."""
    items = [once.Noted(BIG) for _ in range(n)]
    found = parallel_map(once.n_loaded, items, max_workers=1, chunksize=100, progress=False)
    n_before = parallel_map(once.n_loaded, [0], max_workers=1, progress=False)[0]
    again = parallel_map(once.n_loaded, items, max_workers=1, chunksize=100, progress=False)
    assert found[-1] <= n_before
    assert again[-1] - n_before == n


def test_nothing_waits_for_the_garbage_collector():
    """A worker frees the memory of a call when its items are gone."""
    model = once.Model({"texts": TEXTS, "array": np.ones(100_000)})
    columns, root = loaders([(model, model.parts, i) for i in range(3)])
    items = [column.items(range(3)) for column in columns]
    memory = weakref.ref(root)
    del root
    gc.disable()
    try:
        del items, columns
        assert memory() is None
    finally:
        gc.enable()


def test_small_items_are_not_looked_at(monkeypatch):
    """Items whose pickles are small cost no search."""
    monkeypatch.setattr(repeated, "_near", None)
    items = [(i, "text", {"a": i}) for i in range(10_000)]
    assert [item for (item,) in there_and_back(items)] == items


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_items_with_a_common_object_give_what_a_loop_gives(backend):
    """Everywhere, many items and few."""
    table = {"a": [*range(20_000)], "b": TEXTS}
    for n in (5, 200):
        items = [(table, i) for i in range(n)]
        found = parallel_map(once.look_up, items, backend=backend, out="list", progress=False)
        assert found == [once.look_up(item) for item in items]


def test_an_error_still_names_the_item():
    """An item that cannot be sent is named, also after items with a common object."""
    items = [(TEXTS, i) for i in range(N)]
    items[30] = (TEXTS, threading.Lock())
    with pytest.raises(TypeError, match="item 30 cannot be sent"):
        placed(items)


def test_plan_packs_some_of_the_items():
    """The bytes of many items are those of some, times their number."""
    items = [once.Counted([i] * 1000) for i in range(2000)]
    found = plan(once.look_up, items)
    assert sum(item.n_pickled > 0 for item in items) < 100
    assert found.input_bytes == pytest.approx(placed(items), rel=0.2)


def test_memory_that_was_changed_here_is_sent_with_the_change():
    """A buffer in shared memory is not copied, until this process writes to its private view."""
    segment = segment_of(nbshare.share(np.zeros(9000)))[0].again("c")
    segment.was_sent = True
    lenders[id(segment)] = segment
    memory = View(segment).root
    for value in 0, 1, 1:
        memory[:8] = value
        arena = Arena()
        packed = arena.pack(pickle.PickleBuffer(memory), "it")
        assert (arena.nbytes > memory.nbytes) == bool(value)
    inputs = Inputs([View(arena.all_contents(), is_read_only=True)])
    assert bytes(inputs.load(packed)) == bytes(memory)


def test_broadcast_arrays_are_sent_without_a_warning():
    """NumPy warns of them when something asks whether they can be written to."""
    for array in np.broadcast_arrays(np.arange(3000.0), np.zeros((4, 1))):
        found = parallel_map(functools.partial(np.add, array), [1.0, 2.0])
        assert [each.tolist() for each in found] == [(array + x).tolist() for x in (1.0, 2.0)]
