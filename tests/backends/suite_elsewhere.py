"""The parts that work and are refused on a system that is not Linux, run by `test_elsewhere`."""

from __future__ import annotations

import multiprocessing.reduction
import pickle
import sys

import numpy as np
import pytest

import nbshare
from nbshare._core.memory import segment_of
from nbshare.errors import NotBuiltYetError
from tests.support import duties
from tests.support.contract import BackendContract

LACKING = frozenset({"timeout", "checkpoint"})


class TestThreads(BackendContract):
    """Threads of this process."""

    lacks = LACKING

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "threads"


class TestSerial(BackendContract):
    """One item after the other."""

    lacks = LACKING | {"background"}

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "serial"


def test_this_is_not_linux():
    """The library's own question says so."""
    assert sys.platform == "elsewhere"
    assert "fcntl" not in {name for name, module in sys.modules.items() if module is not None}


def test_arrays_are_made_as_on_linux():
    """They are SharedArrays, in memory of this process."""
    source = np.arange(6.0).reshape(2, 3)
    for array in (nbshare.share(source), nbshare.full_like(source, 2), nbshare.zeros((2, 3))):
        assert isinstance(array, nbshare.SharedArray)
        assert segment_of(array)[0].is_private
    assert nbshare.share({"a": source})["a"].tolist() == source.tolist()
    large = nbshare.share(np.ones(1 << 20))
    assert large.sum() == 1 << 20


def test_modes_are_kept():
    """An array of mode "r" cannot be made writable. Mode "c" gives a copy."""
    source = np.ones(3)
    fixed, copy = nbshare.share(source, mode="r"), nbshare.share(source, mode="c")
    with pytest.raises(ValueError, match="WRITEABLE"):
        fixed.flags.writeable = True
    copy[0] = 7
    assert (copy[0], source[0], fixed[0]) == (7, 1, 1)


@pytest.mark.parametrize("make", [nbshare.zeros, lambda n: nbshare.share(np.zeros(n), mode="r")])
def test_arrays_go_to_other_processes_by_value(make):
    """Nothing that is pickled leads to this process's memory."""
    array = make(3)
    for data in (pickle.dumps(array), multiprocessing.reduction.ForkingPickler.dumps(array)):
        found = pickle.loads(data)
        assert type(found) is np.ndarray
        assert segment_of(found) is None
        assert found.tolist() == [0, 0, 0]
    wrapped = nbshare.share({"a": np.zeros(3)}, wrap=True)
    data = multiprocessing.reduction.ForkingPickler.dumps(wrapped)
    assert pickle.loads(data).get()["a"].tolist() == [0, 0, 0]


REFUSED = {
    "parallel_map": lambda: nbshare.parallel_map(abs, [1]),
    "map_async": lambda: nbshare.map_async(abs, [1]),
    "Executor": lambda: nbshare.Executor(1).submit(abs, 1).result(),
    "pipeline": lambda: nbshare.pipeline(list, abs, shape=(), dtype=float),
    "SharedLock": nbshare.SharedLock,
    "SharedBuffer": lambda: nbshare.SharedBuffer(64),
    "RingBuffer": lambda: nbshare.RingBuffer(2, (3,), float),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_linux_is_refused_with_the_remedy(name):
    """In one sentence or two, before anything starts."""
    with pytest.raises(NotBuiltYetError, match=r"(?i)needs? .*Linux.*(thread|return|queue)"):
        REFUSED[name]()


def test_a_nested_call_is_debugged():
    """It runs here, as within the run."""
    job = nbshare.map_async(duties.nest, [3, 4], backend="threads")
    assert job.result().tolist() == [3, 6]
    assert job.debug(1) == 6


def test_the_doctor_says_what_works_here():
    """Its report names what is missing and what to do."""
    report = " ".join(str(nbshare.doctor()).split())
    assert "arrays are in private memory" in report
    assert "worker processes need Linux, macOS or Windows" in report
    assert 'Use backend="threads" or "serial"' in report
    assert "memory not known: this system does not report it" in report
    assert "attribute" not in report
