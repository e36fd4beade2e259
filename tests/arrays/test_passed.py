"""Which arrays can be written in a worker, and that what is written there stays there."""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import sys

import numpy as np
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.memory import Segment, View
from nbshare._core.system import processes, sections
from nbshare._core.worker.process import Mappings
from tests.support import passed
from tests.support.passed import Model, arrays_in

SIZES = 3, 300, 3_000, 40_000  # in the pickle, in the message, and in segments

WAYS = {
    "shared": lambda f, x, **o: parallel_map(f, [0], shared={"obj": x}, out="list", **o),
    "item": lambda f, x, **o: parallel_map(f, [0], [x], out="list", **o),
    "generated": lambda f, x, **o: parallel_map(f, [0], iter([x]), out="list", **o),
    "share()d": lambda f, x, **o: parallel_map(
        f, [0], shared={"obj": nbshare.share(x)}, out="list", **o
    ),
    "serial": lambda f, x, **o: parallel_map(f, [0], [x], out="list", backend="serial", **o),
    "threads": lambda f, x, **o: parallel_map(f, [0], [x], out="list", backend="threads", **o),
}


@pytest.fixture(params=WAYS)
def way(request):
    """Return a way to a worker."""
    return WAYS[request.param]


def objects(n):
    a = np.arange(float(n))
    return {
        "alone": (a, [False]),
        "in containers": ({"a": [a, (a[::2], {"b": a})]}, [False, False, False]),
        "structs": (np.zeros(n, "i4, f8"), [False]),
        "in slots": (passed.Record(a), [False]),
        "of classes with pickles of their own": (
            [a.view(passed.Noted), a.view(passed.Rebuilt)],
            [False, False],
        ),
        "an object's own": (Model(n), [True, True, True]),
        "both": ([model := Model(n), model.buffer], [False, True, True, False]),
        "an object in a list": ([Model(n), a], [True, True, True, False]),
        "of objects": (np.array([None, "b"], object), [True]),
        "in an array of objects": (np.array([a, None], object), [True, False]),
    }


@pytest.mark.parametrize("n", SIZES)
def test_what_the_user_passed_keeps_its_flag(way, n):
    """Arrays in containers are read-only, those inside other objects and of objects are not."""
    for name, (obj, expected) in objects(n).items():
        if way is WAYS["share()d"] and isinstance(obj, np.ndarray):
            continue  # a SharedArray, which holds no objects
        if way is WAYS["generated"] and name == "both":
            continue  # the array in the list was copied when it came
        assert way(passed.may_write, obj) == [expected], name


def nested(chance, depth, n):
    """Return a random object, and which of its arrays may be written."""
    kind = chance.choice(["array", "objects", "model", "list", "dict", "tuple"])
    if depth == 0 or kind == "array":
        return np.full(n, chance.random()), [False]
    if kind == "objects":
        return np.array([None, 1], object), [True]
    if kind == "model":
        model = Model(n)
        model.inner, flags = nested(chance, depth - 1, n)
        return model, [True, True, *[True for _ in flags]]
    parts = [nested(chance, depth - 1, n) for _ in range(3)]
    values, flags = [value for value, _ in parts], [x for _, found in parts for x in found]
    kinds = {"list": list, "tuple": tuple, "dict": lambda x: dict(enumerate(x))}
    return kinds[kind](values), flags


@pytest.mark.parametrize("seed", range(3))
def test_any_nesting(seed):
    """A container in an object belongs to the object, and an object in a container to itself."""
    chance = random.Random(seed)
    found = [nested(chance, 4, n) for n in (5, 600, 5_000) for _ in range(8)]
    for way in ("shared", "item", "generated"):
        for obj, flags in found:
            assert WAYS[way](passed.may_write, obj) == [flags]


def test_columns_of_tables_are_read_only(way):
    """All of them, also those of objects, and the parts of a class that is derived from one."""
    pandas = pytest.importorskip("pandas")

    class Survey(pandas.DataFrame):
        @property
        def _constructor(self):
            return Survey

    def write(_, obj):
        for name in ("numbers", "objects"):
            with pytest.raises(ValueError, match="read-only"):
                obj.loc[0, name] = 7
        return True

    columns = {"numbers": np.zeros(5_000), "objects": pandas.Series([[1]] * 5_000, dtype=object)}
    for table in (pandas.DataFrame(columns), Survey(columns)):
        assert way(write, table) == [True]


def test_an_object_in_a_table_is_not_a_table():
    """A model that holds a table may work with it."""
    pandas = pytest.importorskip("pandas")
    model = Model(10)
    model.table = pandas.DataFrame({"a": np.zeros(5_000)})

    def write(_, obj):
        obj.table.loc[0, "a"] = 7
        return float(obj.table["a"].sum())

    assert WAYS["shared"](write, model) == [7]
    assert not model.table["a"].any()


# --------------------------------------------------------------------- writes stay where they are

SAME = {
    "list": lambda f, items: parallel_map(f, items, max_workers=1).tolist(),
    "generator": lambda f, items: parallel_map(f, iter(items), max_workers=1).tolist(),
    "serial": lambda f, items: parallel_map(f, items, backend="serial").tolist(),
}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("same", SAME)
def test_an_item_sees_nothing_that_earlier_ones_wrote(same, n):
    """Though all items have the same object, of which they have copies."""
    model = Model(n)
    assert SAME[same](passed.count, [(model, k) for k in range(1, 7)]) == [0] * 6
    assert not model.buffer.any()


@pytest.mark.parametrize("n", SIZES)
def test_a_task_sees_nothing_that_earlier_ones_wrote(n):
    """Also if they get the same object of shared memory."""
    shared = nbshare.share(Model(n))
    with nbshare.Executor(1) as executor:
        for model in (Model(n), shared):
            tasks = [executor.submit(passed.count, (model, k)) for k in range(1, 5)]
            assert [task.result() for task in tasks] == [0] * 4


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_of_libraries_reach_no_later_item(seed):
    """Of tensors, sparse matrices, models and arrays of objects that several items have."""
    chance = random.Random(seed)
    table = passed.LIBRARIES
    there = [kind for kind in table if importlib.util.find_spec(table[kind].package)]
    kinds = chance.choices(there, k=8)
    objs = [table[kind].make(chance.choice(SIZES)) for kind in kinds]
    objs[:2] = nbshare.share(objs[:2])
    before = [table[kind].value(obj) for kind, obj in zip(kinds, objs, strict=True)]
    places = chance.choices(range(len(objs)), k=40)
    items = [kinds[place] for place in places], [objs[place] for place in places]
    options = {"max_workers": chance.choice([1, 2]), "out": "list"}
    found = [parallel_map(passed.change, *items, **options)]
    found += [parallel_map(passed.change, *map(iter, items), **options)]
    found += [parallel_map(passed.change, *items, backend="serial", out="list")]
    with nbshare.Executor(options["max_workers"]) as executor:
        found += [[*executor.map(passed.change, *items)]]
    assert found == [[before[place] for place in places]] * len(found)
    assert [table[kind].value(obj) for kind, obj in zip(kinds, objs, strict=True)] == before


@pytest.mark.parametrize("n", SIZES)
def test_later_items_of_a_worker_see_what_was_written_to_a_shared_object(n):
    """As they see what was done to its attributes. A later call does not."""
    shared = {"model": nbshare.share(Model(n))}
    for _ in range(2):
        found = parallel_map(passed.count_shared, [1, 2, 3], shared=shared, max_workers=1)
        assert found.tolist() == [0, n, 3 * n]


@pytest.mark.parametrize("n", [3_000, 40_000])
def test_an_object_goes_as_it_is_now(n, way):
    """A shared object that has changed its arrays here arrives with the changes."""
    model = nbshare.share(Model(n))
    model.buffer[:] = 1
    found = way(lambda _, obj: float(obj.buffer.sum()), model)
    assert found == [n]


def test_a_matrix_that_sorts_itself_is_right_everywhere():
    """One that was shared unsorted, and was sorted here, or is sorted by each worker."""
    sparse = pytest.importorskip("scipy.sparse")
    unsorted = sparse.csr_array((np.arange(1.0, 5.0), [3, 1, 2, 0], [0, 2, 4]), shape=(2, 4))
    assert not unsorted.has_sorted_indices
    expected = passed.sum_of(0, copy.deepcopy(unsorted))
    shared = nbshare.share(unsorted)
    for _ in range(2):
        found = parallel_map(passed.sum_of, range(2), shared={"matrix": shared})
        assert found.tolist() == [expected] * 2
        assert passed.sum_of(0, shared) == expected


def inputs(n):
    """Return one object of each kind, whose arrays compiled code may write to."""
    a = np.arange(float(n))
    return {
        "array": a,
        "Fortran": np.asfortranarray(np.ones((n // 2 + 1, 2))),
        "reversed": a[::-2],
        "window": np.lib.stride_tricks.sliding_window_view(a, 2),
        "structs": np.ones((n, 2))[:, 0],
        "list": [a, a[1:]],
        "model": Model(n),
        "shared": nbshare.share(a),
        "shared for reading": nbshare.share(a, mode="r"),
        "shared privately": nbshare.share(a, mode="c"),
        "shared object": nbshare.share({"a": a, "model": Model(n)}),
    }


IN_PLACE = "shared"  # an item that workers write to on purpose


@pytest.mark.parametrize("n", SIZES)
def test_compiled_writes_reach_nobody(n):
    """No worker crashes, no later item, no other worker and not the caller sees the writes."""
    for name, obj in inputs(n).items():
        before = [float(array.sum()) for array in arrays_in(obj) if array.dtype != object]
        runs = [
            lambda obj=obj: parallel_map(
                passed.sum_and_force_shared, range(1), shared={"obj": obj}, out="list"
            )
        ] * 2
        if name != IN_PLACE:
            runs += [
                lambda obj=obj: parallel_map(passed.sum_and_force, [obj] * 5, out="list"),
                lambda obj=obj: parallel_map(passed.sum_and_force, iter([obj] * 5), out="list"),
            ]
        for run in runs:
            for sums in run():
                assert sums[0] == before[0], name
        after = [float(array.sum()) for array in arrays_in(obj) if array.dtype != object]
        assert after == before, name


def sums_of(obj):
    return [float(x.sum()) for x in arrays_in(obj) if x.dtype != object]


@pytest.mark.parametrize("seed", range(4))
def test_random_compiled_writes_reach_nobody(seed):
    """Of BLAS, LAPACK, FFT, ctypes and stride tricks, into any object on any way to a worker."""
    chance = random.Random(seed)
    objs = [nested(chance, 3, chance.choice([2, 7, 500, 2_000, 30_000]))[0] for _ in range(10)]
    objs += [nbshare.share([obj], mode=mode) for obj in objs[:3] for mode in ("r", "c")]
    items = [chance.choice(objs) for _ in range(30)]
    expected = [sums_of(obj) for obj in items]
    keys = range(30)
    found = parallel_map(passed.force_somehow, keys, items, max_workers=2, out="list")
    assert found == expected
    generated = parallel_map(passed.force_somehow, iter(keys), iter(items), out="list")
    assert generated == expected
    with nbshare.Executor(2) as executor:
        assert [*executor.map(passed.force_somehow, keys, items)] == expected
    for k in range(4):
        shared = {"item": items[k]}
        assert parallel_map(passed.force_somehow, [k], shared=shared, out="list") == [expected[k]]
    assert [sums_of(obj) for obj in items] == expected


@pytest.mark.parametrize("order", "CF")
def test_overwriting_solvers_of_scipy_are_right(order):
    """Their options that overwrite arguments ignore flags, and each item has its own argument."""
    linalg = pytest.importorskip("scipy.linalg")
    chance = np.random.default_rng(0)
    matrices = [chance.random((40, 40)) + 40 * np.eye(40) for _ in range(2)] * 3
    matrices = [np.array(matrix, order=order) for matrix in matrices]

    def solve(matrix):
        lu = linalg.lu_factor(matrix, overwrite_a=True)
        return linalg.lu_solve(lu, np.ones(len(matrix)), overwrite_b=True)

    expected = [solve(matrix.copy(order)) for matrix in matrices]
    same = [matrices[0]] * 6
    np.testing.assert_array_equal(parallel_map(solve, matrices, max_workers=2), expected)
    np.testing.assert_array_equal(parallel_map(solve, same, max_workers=1), [expected[0]] * 6)


# ------------------------------------------------------------------------------------ the mapping


def sent(nbytes):
    segment = Segment.filled(nbytes, [(0, np.ones(nbytes, "u1"))])
    return segment, View(Segment.sent(segment.read_only()))


def test_a_private_mapping_tells_what_was_written():
    """Reading leaves no trace, a write to one of its pages does, and a new mapping has none."""
    segment, view = sent(1 << 20)
    assert view.root.sum() == 1 << 20
    unknown = sections.is_written(0, 1)  # as where the system does not tell
    assert view.is_written(0, 1 << 20) == unknown
    view.root[300_000] = 7
    assert view.is_written(0, 1 << 20)
    assert view.is_written(299_000, 2_000)
    assert view.is_written(0, 4096) == unknown
    assert View(segment).root.max() == view.again().root.max() == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no count of faults")
def test_a_worker_looks_for_writes_only_after_page_faults_of_items(monkeypatch):
    """Its own page faults do not count, because the look would take 15 ms per GB in each call."""
    segment, _ = sent(1 << 20)
    mappings = Mappings()
    mappings.segment(os.dup(segment.fd), "c")
    mappings.end_call()
    looks, counts = [], iter([5, 5, 9, 9, 9, 10])
    monkeypatch.setattr(processes, "n_faults", lambda: next(counts))
    monkeypatch.setattr(View, "is_written", lambda *part: looks.append(part))
    mappings.drop_written()
    assert len(looks) == 1
    with mappings.own_faults():  # from 5 to 9
        pass
    mappings.drop_written()
    assert len(looks) == 1
    mappings.drop_written()
    mappings.drop_written()  # 10
    assert len(looks) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no count of faults")
def test_reading_a_private_mapping_faults_no_more_pages():
    """Than a read-only one, since pages are copied when they are written."""
    segment = Segment.filled(16 << 20, [(0, np.ones(2 << 20))])
    faults = {}
    for mode in ("r", "c"):
        root = View(Segment.open(segment.read_only(), mode)).root
        before = processes.n_faults()
        root[::4096].sum()
        faults[mode] = processes.n_faults() - before
    assert 0 < faults["c"] <= 1.02 * faults["r"] + 5


def test_memory_that_cannot_be_private_is_read_only(monkeypatch):
    """Where the system counts promised memory, say. Arrays inside objects are copies then."""
    shared = nbshare.share({"a": np.arange(5_000.0), "model": Model(5_000)}, wrap=True)
    mapping = sections.mapping

    def refuse(fd, nbytes, mode):
        if mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return mapping(fd, nbytes, mode)

    monkeypatch.setattr(sections, "mapping", refuse)
    segments = [Segment.sent(segment.read_only()) for segment in shared._segments]
    assert [segment.mode for segment in segments] == ["r"]
    obj = type(shared)(segments, shared._packed, "dict").get()
    assert passed.may_write(0, obj) == [False, True, True, True]
    obj["model"].buffer[:] = 1
    assert not shared.get()["model"].buffer.any()
