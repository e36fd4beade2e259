"""Errors of writes to read-only arrays come with advice, whoever raises them, and no others."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from nbshare import parallel_map
from nbshare._core.wire.failures import READ_ONLY, describe

# As libraries say it: NumPy, Cython, SciPy, Numba (two), OpenCV, h5py, ctypes, CPython, xarray.
TEXTS = [
    "assignment destination is read-only",
    "cannot set WRITEABLE flag to True of this array",
    "cannot resize this array: it does not own its data",
    "buffer source array is read-only",
    "WRITEBACKIFCOPY base is read-only",
    "No matching definition for argument type(s) readonly array(float64, 2d, C)",
    "Cannot modify readonly array of type: readonly array(float64, 1d, C)",
    "> Layout of the output array dst is incompatible: dst marked as readonly",
    "Array must be C-contiguous and writable",
    "underlying buffer is not writable",
    "argument must be read-write bytes-like object, not numpy.ndarray",
    "cannot modify read-only memory",
    "Assignment destination is a view.  Do you want to .copy() array first?",
]
OTHERS = [
    OSError(30, "Read-only file system"),
    PermissionError("the directory is not writable"),
    ValueError("store is a read-only store"),
    RuntimeError("attempt to write a readonly database"),
    AttributeError("readonly attribute"),
    ValueError("the truth value of an array with more than one element is ambiguous"),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", [ValueError, TypeError, EOFError])
def test_each_text_is_known(text, kind):
    """Whatever the class of the error."""
    assert describe(kind(text), 0, "").advice == READ_ONLY


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_others_get_no_such_advice(error):
    """Files, databases and attributes can be read-only, too."""
    assert not describe(error, 0, "").advice


def wrapped(array):
    try:
        array[0] = 1
    except ValueError as error:
        raise RuntimeError("the simulation failed") from error


def in_an_except(array):
    try:
        array[0] = 1
    except ValueError:
        raise KeyError("state") from None


def read_into(array):
    io.BytesIO(b"1" * 80).readinto(array)


def pack_into(array):
    struct.pack_into("d", array, 0, 1.0)


@pytest.mark.parametrize("backend", [None, "serial"])
@pytest.mark.parametrize(
    ("function", "error"), [(wrapped, RuntimeError), (read_into, TypeError), (pack_into, TypeError)]
)
def test_the_note_comes_last_and_once(function, error, backend):
    """Also where the error that the user sees was caused by it."""
    with pytest.raises(error) as caught:
        parallel_map(function, [np.zeros(10)], backend=backend)
    assert caught.value.__notes__[-1] == READ_ONLY
    assert caught.value.__notes__.count(READ_ONLY) == 1


def test_an_error_that_hides_its_cause_is_not_explained():
    """Since ``from None`` says that it is another one."""
    with pytest.raises(KeyError) as caught:
        parallel_map(in_an_except, [np.zeros(10)])
    assert READ_ONLY not in caught.value.__notes__
