"""Any object in shared memory is equal, of its type, and its buffers copied once."""

from __future__ import annotations

import copy
import gc
import multiprocessing.resource_tracker
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.arrays.arena import Arena
from nbshare._core.memory import segment_of
from nbshare.errors import UnsendableError
from tests.support import objects
from tests.support.objects import OBJECTS, equal, is_shared

# By its class, because a tree copies the arrays that it is loaded from.
COPYING = "scikit-learn forest"
NEEDS = {COPYING: "sklearn", "Arrow table": "pyarrow"}


@pytest.fixture(scope="module")
def stranger(no_helpers_left):
    """Return a pool that is not nbshare's."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


@pytest.fixture(params=OBJECTS)
def name(request):
    pytest.importorskip(NEEDS.get(request.param, "numpy"))
    return request.param


def test_share_keeps_type_and_values(name):
    """Every object comes back as one of its type, equal, with its buffers in shared memory."""
    shared = nbshare.share(OBJECTS[name]())
    assert equal(shared, OBJECTS[name]())
    assert is_shared(shared)
    assert not is_shared(OBJECTS[name]()) or name == COPYING


def test_a_wrapped_object_goes_through_any_pool(stranger, name):
    """A wrapped object arrives in a spawned process of another pool without its buffers."""
    wrapped = nbshare.share(OBJECTS[name](), wrap=True)
    assert len(ForkingPickler.dumps(wrapped)) < 500
    assert stranger.submit(objects.check, wrapped, name).result() == (True, True)


def test_a_wrapped_object_goes_through_our_calls(name):
    """A wrapped object is an item like any other, and its buffers stay where they are."""
    wrapped = nbshare.share(OBJECTS[name](), wrap=True)
    assert parallel_map(objects.check, [wrapped], [name], out="list") == [(True, True)]
    arena = Arena()
    arena.pack(wrapped, "it")
    assert arena.contents()[0] < 1000


def test_a_shared_object_goes_through_our_calls(name):
    """An object that was shared before, or was not, arrives equal and in shared memory."""
    obj = OBJECTS[name]()
    for given in (obj, nbshare.share(obj)):
        results = parallel_map(objects.check_item, [name], shared={"obj": given}, out="list")
        assert results == [(True, True)]


@pytest.mark.parametrize("name", [n for n in OBJECTS if n != COPYING], indirect=True)
def test_a_shared_object_is_not_copied_again(name):
    """A call sends a short pickle for an object that was shared before, whatever its size."""
    arena = Arena()
    arena.pack(nbshare.share(OBJECTS[name]()), "it")
    assert arena.contents()[0] < 2000


def test_arrays_in_objects_cannot_be_written():
    """Arrays of shared objects are read-only, by NumPy's flag and, behind it, the kernel's."""
    values = nbshare.share({"a": np.arange(5.0)})["a"]
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        values.flags.writeable = True


@pytest.mark.parametrize("dtype", [float, object])
def test_a_private_copy_can_be_written(dtype, stranger):
    """In mode "c" every process may write, and no other sees it."""
    wrapped = nbshare.share({"a": np.arange(5.0).astype(dtype)}, mode="c", wrap=True)
    assert stranger.submit(objects.write, wrapped).result() == -5
    assert wrapped.get()["a"][0] == 0
    wrapped.get()["a"][1] = 7
    assert parallel_map(objects.write, [wrapped]) == [-5]
    assert wrapped.get()["a"].tolist() == [0, 7, 2, 3, 4]


def test_get_builds_the_object_once(stranger):
    """Within a process `get` gives the same object each time."""
    wrapped = nbshare.share([np.arange(5.0)], wrap=True)
    assert objects.is_same_twice(wrapped)
    assert stranger.submit(objects.is_same_twice, wrapped).result()


def test_a_wrapped_object_comes_back(stranger):
    """An object from another process is on the same memory, also one that it has made."""
    wrapped = nbshare.share({"a": np.arange(5.0)}, wrap=True)
    back = stranger.submit(objects.give_back, wrapped).result()
    assert segment_of(back.get()["a"])[0] is segment_of(wrapped.get()["a"])[0]
    made = stranger.submit(objects.make, 0).result()
    assert np.array_equal(made.get()["a"], np.arange(1000.0))
    (made,) = parallel_map(objects.make, [0], out="list")
    assert np.array_equal(made.get()["a"], np.arange(1000.0))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_plain_pickle_stores_values(copied):
    """A deep copy or a plain pickle of a wrapper has memory of its own."""
    wrapped = nbshare.share({"a": np.arange(5.0)}, wrap=True)
    other = copied(wrapped)
    assert other.get()["a"].tolist() == [0, 1, 2, 3, 4]
    assert segment_of(other.get()["a"])[0] is not segment_of(wrapped.get()["a"])[0]
    values = pickle.loads(pickle.dumps(nbshare.share({"a": np.arange(5.0)})))["a"]
    assert segment_of(values) is None


def test_shared_arrays_in_an_object_are_not_copied():
    """A SharedArray inside a shared object stays where it is, and is read-only there."""
    array = nbshare.zeros(1000)
    shared = nbshare.share({"a": array, "b": array[::2]})
    array[2] = 3
    assert shared["a"][2] == shared["b"][1] == 3
    assert not shared["a"].flags.writeable


def test_memory_that_an_object_looks_at_is_not_used_again():
    """The memory of a SharedArray inside a shared object outlives the array, and later calls."""
    array = nbshare.share(np.full(1 << 20, 7.0))
    shared = nbshare.share({"a": array})
    del array
    gc.collect()
    later = [nbshare.share(np.full(1 << 20, float(i))) for i in range(4)]
    assert (shared["a"] == 7).all()
    assert len(later) == 4


def test_an_array_that_occurs_twice_is_stored_once():
    """Objects keep their inner identities, and take memory once."""
    values = np.ones(100_000)
    wrapped = nbshare.share([values, values], wrap=True)
    assert wrapped.nbytes < 1.1 * values.nbytes
    first, second = wrapped.get()
    assert first is second


def test_objects_of_the_main_module_keep_their_class(script):
    """A class that only a script has comes back as itself, here and in other processes."""
    out = script("""
import dataclasses, numpy as np, nbshare
@dataclasses.dataclass
class Point:
    xyz: np.ndarray
p = nbshare.share(Point(np.arange(3.0)))
print(type(p) is Point, p.xyz.flags.writeable)
def total(_, p):
    return type(p).__name__, float(p.xyz.sum())
print(nbshare.parallel_map(total, [0], shared={"p": p}, out="list", progress=False))
""")
    assert out.split("\n")[:2] == ["True False", "[('Point', 3.0)]"]


def test_what_cannot_be_pickled_is_refused():
    """The error names the type."""
    with pytest.raises(UnsendableError, match="lock"):
        nbshare.share({"a": threading.Lock()})
    with pytest.raises(TypeError):
        nbshare.share(threading.Lock(), wrap=True)


@pytest.mark.parametrize("obj", [None, 3, "text", [1, 2], {"a": 1}, np.float16(2.5), b"x" * 10_000])
def test_small_objects_are_objects_too(obj):
    """Anything that can be pickled can be shared. Without buffers it is a plain copy."""
    shared = nbshare.share(obj)
    assert shared == obj
    assert type(shared) is type(obj)
    assert nbshare.share(obj, wrap=True).get() == obj


def test_mode_is_checked():
    """An unknown mode is refused for objects too."""
    with pytest.raises(ValueError, match="mode='w'"):
        nbshare.share({"a": 1}, mode="w")


def test_memory_goes_with_the_object(memory_in_use):
    """When the object and its arrays are deleted, its memory is freed."""
    before = memory_in_use()
    shared = nbshare.share({"a": np.ones(1 << 20)})
    assert memory_in_use() >= before + (8 << 20)
    kept = shared["a"][:10]
    del shared
    assert memory_in_use() >= before + (8 << 20)
    assert kept.sum() == 10
    del kept
    assert memory_in_use() <= before


@pytest.fixture
def memory_in_use():
    """Return a function that gives the bytes of all segments that this process maps."""

    def measure() -> int:
        gc.collect()
        with open("/proc/self/maps") as file:
            spans = [line.split()[0].split("-") for line in file if "nbshare-" in line]
        return sum(int(b, 16) - int(a, 16) for a, b in spans)

    nbshare.shutdown()
    return measure


def test_libraries_are_not_imported(script):
    """Sharing an object imports none of the libraries that objects may come from."""
    script("""
import sys, nbshare, numpy as np
nbshare.share({"a": np.arange(3)}, wrap=True).get()
assert not {"pandas", "pyarrow", "scipy", "sklearn", "multiprocessing.pool"} & set(sys.modules)
""")
