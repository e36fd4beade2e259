"""The reducers of types whose memory is sent next to the pickle.

A reducer splits an object, so that its arrays and buffers are sent by reference, in the segment of
a call or the log of a worker, and not in the pickle. Users and libraries register reducers, and
`known_types` has more. Picklers use them through their ``dispatch_table``, at no cost for objects
of other types.
"""

from __future__ import annotations

import copyreg
import pickle
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import methodcaller
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nbshare._core.arrays.by_reference import ByReference
from nbshare._core.arrays.known_types import PACKAGES
from nbshare._core.arrays.marks import by_users_variable, by_variable, variables_with
from nbshare._core.functions.pickling import by_home, value_pickler
from nbshare._core.functions.reference import check_called
from nbshare._core.tracebacks import shown_from_the_call

T = TypeVar("T")

Reduce = Callable[[Any], Any]


class Entry(NamedTuple):
    """The reducer of a class."""

    reduce: Reduce
    serves_subclasses: bool


_entries: dict[type, Entry] = {
    np.ufunc: Entry(by_home, False),
    object: Entry(by_users_variable, False),
}
_waiting = dict(PACKAGES)  # packages whose types are not registered yet
_found: weakref.WeakKeyDictionary[type, Reduce | None] = weakref.WeakKeyDictionary()

# Types that pickle handles itself.
_BY_PICKLE = {type(None), bool, int, float, str, bytes, bytearray, pickle.PickleBuffer}
_BY_PICKLE |= {list, tuple, dict, set, frozenset, type, FunctionType, BuiltinFunctionType}

# Attributes that define how objects of a class are pickled.
_WAYS = ["__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"]
_WAYS += ["__getnewargs_ex__", "__getnewargs__"]


@shown_from_the_call
def register_type(cls: type[T], reduce: Callable[[T], Any], /, *, subclasses: bool = False) -> None:
    """Register how to send objects of a type, so that their memory is held once.

    Examples
    --------
    The pickle of this class contains its data as bytes, so each worker would hold a copy:

    >>> import numpy as np
    >>> import nbshare
    >>> class Spectrum:
    ...     def __init__(self, flux):
    ...         self.flux = flux
    ...     def __reduce__(self):
    ...         return Spectrum.read, (self.flux.tobytes(),)
    ...     @classmethod
    ...     def read(cls, data):
    ...         return cls(np.frombuffer(data))

    With a registration, all workers see the same memory:

    >>> nbshare.register_type(Spectrum, lambda spectrum: (Spectrum, (spectrum.flux,)))
    >>> def total(scale, spectrum):
    ...     return scale * spectrum.flux.sum()
    >>> spectrum = Spectrum(np.ones(1_000_000))
    >>> nbshare.parallel_map(total, [1, 2], shared={"spectrum": spectrum})
    SharedArray([1000000., 2000000.])

    Parameters
    ----------
    cls : type
        The type. A second registration replaces the first.
    reduce : callable
        ``reduce(obj)`` returns a value of `object.__reduce__`, such as a tuple of a callable and
        its arguments, which rebuild the object. Arrays, Arrow tables, `pickle.PickleBuffer` and
        objects of registered types among the arguments are not copied into the pickle. If it
        returns ``NotImplemented``, the object is pickled as if its type were not registered.
    subclasses : bool, default False
        Whether `reduce` also serves subclasses, except those that define how they are pickled, for
        example by ``__reduce__`` or ``__getstate__``. It should then use ``type(obj)``, and keep
        added attributes.

    Raises
    ------
    TypeError
        If `cls` is not a class, or is handled by pickle itself, such as list and str, or by nbshare
        itself, such as ndarray. Or if `reduce` is not callable.

    See Also
    --------
    share : copy an object to shared memory.
    copyreg.pickle : the same for all pickles.

    Notes
    -----
    This applies to arguments and results of nbshare's workers, and to `share`. Plain `pickle` does
    not change. For results, the type must be registered in the worker too. Call this in the module
    that defines the class, or in ``initializer=`` for a class of a notebook.

    nbshare registers subclasses of ndarray, masked arrays, memoryview, tensors and modules of
    PyTorch on the CPU, frames and series of polars (if pyarrow is installed), Arrow columns of
    pandas, and Quantity, Column, Table and QTable of astropy. No package is imported for that. Any
    thread may call this.
    """
    if not isinstance(cls, type):
        raise TypeError(f"cls={cls!r} is not allowed: pass a class, such as type(obj)")
    if cls in _BY_PICKLE or issubclass(cls, type):
        raise TypeError(
            f"cls={cls.__name__} is not allowed: pickle handles objects of this type itself. Put "
            "them into an object of your own class, and register that class."
        )
    if cls is np.ndarray or issubclass(cls, ByReference):
        raise TypeError(
            f"cls={cls.__name__} is not allowed: nbshare sends objects of this type itself"
        )
    check_called("reduce", reduce, "obj")
    _entries[cls] = Entry(reduce, subclasses)
    _found.clear()


def reducer_of(cls: type) -> Reduce | None:
    """Return the reducer of a class, or None to leave its objects to pickle."""
    try:
        return _found[cls]
    except KeyError:
        _register_packages(cls)
        _found[cls] = found = _look_up(cls)
        return found


def _look_up(cls: type) -> Reduce | None:
    for base in cls.__mro__:
        entry = _entries.get(base)
        if entry is not None and (base is cls or (entry.serves_subclasses and _alike(cls, base))):
            return entry.reduce
    variables = None if issubclass(cls, type) else variables_with(cls)
    return partial(by_variable, variables) if variables else None


def _register_packages(cls: type) -> None:
    """Register the types of the packages that a class and its bases are from."""
    for package, types in [*_waiting.items()]:
        if any(f"{base.__module__}.".startswith(f"{package}.") for base in cls.__mro__):
            with suppress(ImportError, AttributeError):  # versions of the package differ
                for known, reduce, serves_subclasses in types():
                    _entries.setdefault(known, Entry(reduce, serves_subclasses))
            _waiting.pop(package, None)  # last, because other threads check it first


def _alike(cls: type, base: type) -> bool:
    """Return whether objects of a class are pickled in the same way as objects of a base class."""
    return all(getattr(cls, way, None) == getattr(base, way, None) for way in _WAYS)


by_itself: Reduce = methodcaller("__reduce_ex__", 5)


class DispatchTable(dict[type, Reduce]):
    """The ``dispatch_table`` of a pickler, which looks up reducers when it needs them.

    Parameters
    ----------
    own : mapping
        The reducers of this pickler.
    others : mapping
        The table that pickle or cloudpickle would use.

    Notes
    -----
    Use a table for a single pickle, because it keeps classes alive.
    """

    def __init__(self, own: Mapping[type, Reduce], others: Mapping[type, Reduce]) -> None:
        super().__init__(own)
        self._others = others

    def __missing__(self, cls: type) -> Reduce:
        """Look up the reducer of a type."""
        reduce, other = reducer_of(cls), self._others.get(cls)
        found = other or by_itself
        if reduce is not None and (other is None or cls in _entries):
            found = partial(_reduced, reduce, found)
        elif other is None and issubclass(cls, type):
            raise KeyError(cls)  # so that pickle looks for the name of the class
        self[cls] = found
        return found


def _reduced(reduce: Reduce, otherwise: Reduce, obj: Any) -> Any:
    reduced = reduce(obj)
    return otherwise(obj) if reduced is NotImplemented else reduced


class DispatchTables(dict[bool, DispatchTable]):
    """The tables of picklers, by reference (False) and by value (True), created when needed.

    Parameters
    ----------
    own : mapping
        The reducers of these picklers.
    """

    def __init__(self, own: Mapping[type, Reduce]) -> None:
        super().__init__()
        self._own = own

    def __missing__(self, by_value: bool) -> DispatchTable:
        others = value_pickler().dispatch_table if by_value else copyreg.dispatch_table
        self[by_value] = table = DispatchTable(self._own, others)
        return table
