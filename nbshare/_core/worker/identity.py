"""How `multiprocessing` calls a worker: a process with a number and a parent.

Code that asks it for a worker's number, or whether it is in the main process, gets an answer like
that in a pool's process. The module takes 5 ms to import, so it is told when something imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NamedTuple

_PROCESS = "multiprocessing.process"


class Owner(NamedTuple):
    """The process that a worker belongs to."""

    pid: int
    name: str  # for `multiprocessing`
    fd: int  # becomes readable when it ends


def introduce(index: int, owner: Owner) -> None:
    """Tell `multiprocessing` of this worker, now or when it is imported."""
    if (module := sys.modules.get(_PROCESS)) is not None:
        _tell(module, index, owner)
    sys.meta_path.insert(0, _Finder(index, owner))


def _tell(module: Any, index: int, owner: Owner) -> None:
    here = module.current_process()  # no daemon, as those may not have children
    here.__class__ = module.BaseProcess  # not that of the main process
    here.name, here._identity = f"nbshare-worker-{index + 1}", (index + 1,)
    here._parent_pid = owner.pid
    module._parent_process = module._ParentProcess(owner.name, owner.pid, owner.fd)


class _Finder:
    """Finds the module as Python does, and tells it."""

    def __init__(self, *told: Any) -> None:
        self._told = told

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _PROCESS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            told: Any = _Loader(spec.loader, self._told)
            spec.loader = told
        return spec


class _Loader:
    """Another loader, whose module is told when it has been executed."""

    def __init__(self, loader: Any, told: tuple[Any, ...]) -> None:
        self._loader, self._told = loader, told

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _tell(module, *self._told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
