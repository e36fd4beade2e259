"""Objects that are sent by reference: arrays in shared memory, and objects that consist of them.

References are used in nbshare's calls and, through functions registered with the picklers of
`multiprocessing` and loky (joblib), in other pools and queues. Nothing is registered with plain
`pickle`, because its files may outlive the shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.inputs import load_reference, reference_to
from nbshare._core.arrays.shared_array import SharedArray, unchanged_segment_of
from nbshare._core.functions.modules import when_imported
from nbshare._core.memory import Mode, handle_of

# Classes whose arrays are sent as arrays. A `numpy.memmap` arrives as a plain array.
PLAIN = (np.ndarray, SharedArray, np.memmap)

# Modules with picklers.
PICKLING = (
    "multiprocessing.reduction",
    "loky.backend.reduction",
    "joblib.externals.loky.backend.reduction",
)

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

_told: list[Callable[..., Any]] = []  # functions that register a class with a pickler


class ByReference:
    """Base of classes whose objects are sent by reference: SharedArrays and small values.

    This applies to instances of its direct subclasses. Users' subclasses are not registered.

    Attributes
    ----------
    _is_tool : bool
        Whether workers may write to its memory even in ``shared=``, because a lock that cannot be
        acquired would be useless.
    """

    _is_tool = False

    def __init_subclass__(cls) -> None:
        """Register a new subclass with the picklers that know earlier subclasses."""
        if ByReference in cls.__bases__:
            for add in _told:
                add(cls, cls._reduce_by_reference)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = next(cls for cls in type(self).__mro__ if ByReference in cls.__bases__)
        if type(self) is not kind:
            raise TypeError(
                f"{type(self).__name__} cannot be sent to workers, because it subclasses "
                f"{kind.__name__}. Store a {kind.__name__} in an attribute instead."
            )
        raise TypeError(
            f"a {kind.__name__} can be neither pickled nor copied by value. It is sent by "
            "reference: as an argument of nbshare's calls, and through the pools, queues and "
            "Process arguments of multiprocessing and joblib. In this process use the object "
            "itself. To store values, store its arrays."
        )

    def _reduce_by_reference(self) -> Reduced:
        return _arrive, (type(self), *self._parts())

    def _parts(self) -> tuple[Any, ...]:
        """Return the arguments of `_attach`. Arrays among them are sent by reference."""
        raise NotImplementedError

    def _attach(self, *parts: Any) -> None:
        """Attach this object to these parts."""
        raise NotImplementedError


def _arrive(cls: type[ByReference], *parts: Any) -> ByReference:
    arrived = cls.__new__(cls)
    arrived._attach(*parts)
    return arrived


def _reduce(array: npt.NDArray[Any]) -> Any:
    found = unchanged_segment_of(array)
    if found is None or found[0].is_private:
        return np.asarray(array).__reduce_ex__(4)
    mode: Mode = found[0].mode if array.flags.writeable else "r"
    return load_reference, tuple(reference_to(array, handle_of(found[0]), found[1], mode))


def is_masked(value: Any) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    """Return whether a value is a masked array."""
    # A reference to the class by NumPy would load it: 15 ms and 3 MB in each worker.
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


# ------------------------------------------------------------------- other people's picklers


def _tell(module: ModuleType) -> None:
    """Register shared arrays and `ByReference` with the pickler of a module."""
    add: Callable[..., Any] = getattr(module, "ForkingPickler", module).register
    _told.append(add)
    add(SharedArray, _reduce)
    # joblib has its own rules for plain ndarrays, which may be views of shared ones.
    if module.__name__ == "multiprocessing.reduction":
        add(np.ndarray, _reduce)
    for cls in ByReference.__subclasses__():
        add(cls, cls._reduce_by_reference)


def register() -> None:
    """Register with the picklers that are loaded, and with others when they are imported."""
    for name in PICKLING:
        when_imported(name, _tell)
