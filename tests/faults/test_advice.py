"""Errors come with advice if their cause is known, and others do not.

The causes are writes to read-only arrays, and what only the calling process has registered.
"""

from __future__ import annotations

import codecs
import io
import operator
import statistics
import struct
import sys

import numpy as np
import pytest

from nbshare import parallel_map
from nbshare._core.wire.failures import READ_ONLY, REGISTERED, UNSENT, describe

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


class Lazy:
    """A class whose objects look up attributes themselves."""

    @property
    def missing(self):
        """Fail, as the class has no such attribute."""
        return self.hidden

    def __getattr__(self, name):
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("function", "item"),
    [
        (lambda data: data.decode("ascii", "added"), b"\xf5"),
        (lambda _: statistics.added, 0),
        (lambda cls: cls.added, statistics.NormalDist),
        (lambda normal: normal.added(), statistics.NormalDist()),
    ],
    ids=["error handler", "module", "class", "object"],
)
def test_what_is_registered_here_only_is_told(function, item, monkeypatch):
    """What is added to a class of a library, such as an accessor, too."""
    codecs.register_error("added", lambda error: ("?", error.end))
    monkeypatch.setattr(statistics, "added", 1, raising=False)
    monkeypatch.setattr(statistics.NormalDist, "added", abs, raising=False)
    with pytest.raises((AttributeError, LookupError)) as caught:
        parallel_map(function, [item])
    assert caught.value.__notes__[-1] == REGISTERED


@pytest.mark.parametrize("backend", [None, "serial"])
@pytest.mark.parametrize(
    "function",
    [
        lambda _: {}["key"],
        lambda _: statistics.missing,
        lambda _: statistics.NormalDist().missing,
        lambda _: Lazy().missing,
    ],
    ids=["key", "module", "object", "lazy"],
)
def test_what_is_missing_here_too_is_not(function, backend):
    with pytest.raises((AttributeError, KeyError)) as caught:
        parallel_map(function, [0], backend=backend)
    assert REGISTERED not in caught.value.__notes__


# As libraries say it: Matplotlib, astropy, pint, codecs, and others.
@pytest.mark.parametrize(
    "text",
    [
        "'mine' is not a valid value for colormap",
        "'myu' did not parse as unit: myu is not a valid unit",
        "'dog_year' is not defined in the unit registry",
        "unknown encoding: mine",
        "no model is registered under the name 'mine'",
    ],
)
def test_texts_of_registries_are_known(text):
    """If a worker raised the error."""
    failure = describe(ValueError(text), 0, "")
    assert REGISTERED in failure.as_error("item 0", 1).__notes__
    assert REGISTERED not in failure.as_error("item 0", None).__notes__


def test_a_variable_that_only_a_text_names_is_told(monkeypatch):
    """If the script has it. The loop would find it."""
    monkeypatch.setattr(sys.modules["__main__"], "threshold", 1, raising=False)
    with pytest.raises(NameError) as caught:
        parallel_map(lambda _: eval("threshold"), [0])
    assert caught.value.__notes__[-1] == UNSENT.format("threshold")
    with pytest.raises(NameError) as caught:
        parallel_map(lambda _: eval("another"), [0])
    assert "Workers do not have" not in str(caught.value.__notes__)


def evaluated(name):
    """Look up a variable as numexpr does."""
    global_dict = globals()
    return global_dict[name]


def test_a_variable_in_an_expression_of_numexpr_is_told(monkeypatch):
    """Unlike a missing key of another dict, which may have the name of a variable."""
    monkeypatch.setattr(sys.modules["__main__"], "threshold", 1, raising=False)
    with pytest.raises(KeyError) as caught:
        parallel_map(evaluated, ["threshold"])
    assert caught.value.__notes__[-1] == UNSENT.format("threshold")
    with pytest.raises(KeyError) as caught:
        parallel_map(operator.itemgetter("threshold"), [{}])
    assert UNSENT.format("threshold") not in caught.value.__notes__


# As libraries say it: pandas, patsy, DuckDB, polars, pickle, and toolz.
@pytest.mark.parametrize(
    "text",
    [
        "name \"local variable 'threshold' is not defined\" is not defined",
        "Error evaluating factor: NameError: name 'threshold' is not defined",
        "Catalog Error: Table with name threshold does not exist!",
        "relation 'threshold' was not found",
        "Can't get attribute 'threshold' on <module '__main__' (built-in)>",
        "module '__main__' has no attribute 'threshold'",
    ],
)
def test_texts_about_variables_are_known(text, monkeypatch):
    """If a worker raised the error, and the script has the variable."""
    failure = describe(ValueError(text), 0, "")
    note = UNSENT.format("threshold")
    assert note not in failure.as_error("item 0", 1).__notes__
    monkeypatch.setattr(sys.modules["__main__"], "threshold", 1, raising=False)
    assert note in failure.as_error("item 0", 1).__notes__
    assert note not in failure.as_error("item 0", None).__notes__


def test_an_object_of_a_notebook_that_cannot_be_loaded_is_told():
    """Its class may work from a file, as those of msgspec do."""

    class Unloadable:
        __module__ = "__main__"

        def __reduce__(self):
            return type(self), (1,)

    with pytest.raises(TypeError) as caught:
        parallel_map(abs, [Unloadable()])
    assert "Define its class in a .py file" in str(caught.value.__notes__)
