"""Calls actions on modules that nbshare does not import itself, once they are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import ClassVar


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call an action on a module, now or as soon as its import is done."""
    if (module := sys.modules.get(name)) is not None:
        action(module)
        return
    _Watcher.actions[name] = action
    _watch()


@cache
def _watch() -> None:
    sys.meta_path.insert(0, _Watcher)


class _Watcher:
    """Finds modules as Python does, and makes their loaders call the actions."""

    actions: ClassVar[dict[str, Callable[[ModuleType], object]]] = {}

    @classmethod
    def find_spec(
        cls,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG003 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG003
    ) -> ModuleSpec | None:
        if (action := cls.actions.pop(name, None)) is None:
            return None  # the search below calls this method again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                if module.__name__ == name:  # the loader of a zip file loads other modules, too
                    action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
