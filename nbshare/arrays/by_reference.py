"""Arrays in shared memory travel by reference through other people's pools and queues.

The picklers of `multiprocessing` and of loky (joblib) are told how; plain `pickle` is not, since
what it writes may be read in another year.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.memory import Handle, handle_of, open_handle, segment_of

__all__ = ["ByReference", "Reduced", "reducers", "register"]

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

_told: list[Callable[..., Any]] = []  # how one registers with the modules that have picklers


class ByReference:
    """Base of what travels by reference but is no array: made of SharedArrays and small values.

    Instances of its direct subclasses do; of users' own, more would have to be told.

    Attributes
    ----------
    is_tool : bool
        Whether workers may write to its memory even where it is given in ``shared=``: a lock that
        nobody can take would be none.
    """

    is_tool = False

    def __init_subclass__(cls) -> None:
        """Tell those who know of the others."""
        if ByReference in cls.__bases__:
            for add in _told:
                add(cls, cls._reduce_by_reference)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = next(cls for cls in type(self).__mro__ if ByReference in cls.__bases__)
        if type(self) is not kind:
            raise TypeError(
                f"a {type(self).__name__} cannot travel: only a {kind.__name__} itself does, not "
                "what is derived from it. Let your class have one as an attribute instead."
            )
        raise TypeError(
            f"a {kind.__name__} can be neither pickled nor copied by value. It travels by "
            "reference: as an argument of nbshare's calls, and through the pools, queues and "
            "Process arguments of multiprocessing and joblib. In this process use the object "
            "itself; to store values, store its arrays."
        )

    def _reduce_by_reference(self) -> Reduced:
        """Return a function of a module and its arguments, as ``__reduce__`` does.

        Arrays among the arguments travel by reference.
        """
        raise NotImplementedError


def _reduce(array: npt.NDArray[Any]) -> Any:
    found = segment_of(array)
    if found is None:
        return np.asarray(array).__reduce_ex__(4)
    segment, offset = found
    shared = type(array) is SharedArray
    place = (offset, array.shape, array.strides, array.dtype, array.flags.writeable, shared)
    return _arrive, (tuple(handle_of(segment)), *place)


def _arrive(
    handle: tuple[Any, ...],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    writeable: bool,
    shared: bool,
) -> npt.NDArray[Any]:
    array = open_handle(Handle(*handle)).array(dtype, shape, offset, strides)
    if not writeable:
        array.flags.writeable = False
    return shared_view(array) if shared else array


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Return what a pickler needs in its ``dispatch_table`` for all this to go by reference."""
    tools = {cls: cls._reduce_by_reference for cls in ByReference.__subclasses__()}
    return {SharedArray: _reduce, np.ndarray: _reduce, **tools}


def _tell(module: ModuleType) -> None:
    """Register with a module that has picklers."""
    add: Callable[..., Any] = getattr(module, "ForkingPickler", module).register
    _told.append(add)
    for cls, reduce in reducers().items():
        # joblib has an own way with plain ndarrays, which may be views of shared ones.
        if cls is not np.ndarray or module.__name__ == "multiprocessing.reduction":
            add(cls, reduce)


class _Watcher:
    """Tells a module as soon as somebody imports it: nbshare imports no pool of its own accord."""

    waiting: ClassVar = {
        "multiprocessing.reduction",
        "loky.backend.reduction",
        "joblib.externals.loky.backend.reduction",
    }

    @classmethod
    def find_spec(
        cls,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG003 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG003
    ) -> ModuleSpec | None:
        if name not in cls.waiting:
            return None
        cls.waiting.discard(name)  # the search below comes here again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _TellingLoader(spec.loader)  # type: ignore[assignment]
        return spec


class _TellingLoader:  # not importlib.abc's: that imports tempfile and more
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _tell(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def register() -> None:
    """Tell the modules that are there already, and those that come later."""
    for name in _Watcher.waiting & sys.modules.keys():
        _Watcher.waiting.discard(name)
        _tell(sys.modules[name])
    sys.meta_path.insert(0, _Watcher)
