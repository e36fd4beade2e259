"""The promises of a SharedArray by its class: shared memory, NumPy's methods and docstrings."""

from __future__ import annotations

import numpy as np
import pytest

import nbshare
from nbshare import SharedArray

ELSEWHERE = {
    "constructor": lambda: SharedArray((1000,)),
    "view": lambda: np.zeros(3).view(SharedArray),
    "view of a copy": lambda: np.asarray(nbshare.ones(3)).copy().view(SharedArray),
    "ndarray.__new__": lambda: np.ndarray.__new__(SharedArray, (3,)),
}


@pytest.mark.parametrize("make", ELSEWHERE.values(), ids=ELSEWHERE)
def test_no_shared_array_is_in_memory_of_its_own(make):
    """The error names the call to use instead."""
    with pytest.raises(TypeError, match=r"nbshare\.empty.*nbshare\.share"):
        make()


def test_views_of_shared_memory_may_be_shared_arrays():
    """A view that became a plain ndarray turns into a SharedArray again, without a copy."""
    array = nbshare.ones((2, 3))
    again = np.asarray(array)[1].view(SharedArray)
    again[:] = 5
    assert array[1].tolist() == [5, 5, 5]


def test_masked_arrays_of_shared_arrays_compute():
    """Their results have data of their own."""
    array = nbshare.share(np.arange(4.0))
    doubled = np.ma.masked_where(array > 2, array) * 2
    assert doubled.filled(-1).tolist() == [0, 2, 4, -1]
    assert np.array_equal(np.asarray(doubled.data)[:3], [0, 2, 4])


@pytest.mark.parametrize("name", ["mean", "sum", "reshape", "astype", "copy", "max", "std"])
def test_methods_have_numpy_s_docstrings(name):
    """Shift-Tab on a result of `parallel_map` shows what NumPy says."""
    ours, theirs = getattr(SharedArray, name).__doc__, getattr(np.ndarray, name).__doc__
    assert ours
    assert theirs.startswith(ours)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "i8", "complex64", "M8[s]", [("a", "i4")]])
def test_filled_arrays_are_those_of_numpy(dtype, order):
    """`ones`, `full`, `ones_like` and `full_like` give NumPy's values, dtypes and layouts."""
    like = np.zeros((2, 3), dtype, order)
    if like.dtype.kind in "fic":
        assert_same(nbshare.ones((2, 3), dtype, order), np.ones((2, 3), dtype, order))
        assert_same(nbshare.ones_like(like), np.ones_like(like))
    value = np.ones((), "i8").astype(like.dtype)
    assert_same(nbshare.full_like(like, value), np.full_like(like, value))
    assert_same(nbshare.full_like(like, value, shape=3), np.full_like(like, value, shape=3))


def assert_same(ours, theirs):
    assert type(ours) is SharedArray
    assert (ours.dtype, ours.shape, ours.strides) == (theirs.dtype, theirs.shape, theirs.strides)
    assert np.array_equal(ours, theirs)
