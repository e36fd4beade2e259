"""Odd objects in `sys.modules`. Whoever asks one for an attribute is told in `ASKED`."""

from __future__ import annotations

import pathlib
import types
from importlib.machinery import SourceFileLoader
from importlib.util import LazyLoader, module_from_spec, spec_from_file_location
from typing import Any

ASKED: list[str] = []  # what was asked of them


class Stop(BaseException):
    """What no `except Exception` catches, as of pytest."""


def raising(error: type[BaseException], base: type = object) -> Any:
    """Return a class whose objects raise when they are asked for anything."""

    def refuse(self: Any, *args: Any) -> Any:
        ASKED.append(f"{error.__name__} {args}")
        raise error("odd")

    names = ["__getattribute__", "__eq__", "__bool__", "__len__", "__iter__", "__fspath__"]
    return type("Odd", (base,), {**dict.fromkeys(names, refuse), "__hash__": object.__hash__})


class Answering:
    """A proxy that gives itself as any attribute."""

    def __getattr__(self, name: str) -> Any:
        ASKED.append(name)
        return self

    __call__ = __getattr__


class Properties(types.ModuleType):
    """A module whose own attributes are properties."""

    @property
    def __file__(self) -> Any:
        ASKED.append("__file__")
        raise KeyError("__file__")

    __dict__ = property(lambda self: ASKED.append("__dict__") or {"__file__": "/odd/x.py"})  # type: ignore[assignment]
    __class__ = property(lambda self: ASKED.append("__class__") or int)  # type: ignore[assignment]


def _module(name: str, **variables: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(variables)
    return module


def _refusing(name: str, error: type[BaseException]) -> types.ModuleType:
    def __getattr__(asked: str) -> Any:
        ASKED.append(asked)
        raise error(asked)

    return _module(name, __getattr__=__getattr__)


def _lazy(folder: pathlib.Path, name: str) -> types.ModuleType:
    """Return a module that is loaded when it is asked for anything, in the documented way."""
    path = folder / f"{name}.py"
    if not path.exists():  # workers have the same folder
        path.write_text(
            f"from {__name__} import ASKED\nASKED.append('loaded')\nimport not_installed\n"
        )
    loader = LazyLoader(SourceFileLoader(name, str(path)))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def odd_modules(folder: pathlib.Path) -> dict[str, Any]:
    """Return odd objects by their names in `sys.modules`."""
    empty = _module("odd_empty")
    vars(empty).clear()
    files = {
        "path": pathlib.Path("/odd/plug.py"), "bytes": b"/odd/plug.py", "int": 3, "list": [],
        "relative": "odd_plug.py", "empty": "", "zero": "/odd/\0.py", "surrogate": "/odd/\ud800.py",
        "gone": "/odd/gone.py", "folder": str(folder), "long": "/" + "odd" * 5000 + ".py",
        "proxy": Answering(), "trap": raising(Stop)(), "text": "<string>", "none": None,
        "unhashable": {}, "other": __file__,
    }  # fmt: skip
    errors: list[type[BaseException]] = [RuntimeError, ImportError, KeyError, Stop, SystemExit]
    return {
        **{f"odd_file_{name}": _module(f"odd_{name}", __file__=x) for name, x in files.items()},
        **{f"odd_{error.__name__}": _refusing("odd", error) for error in errors},
        **{f"odd_trap_{error.__name__}": raising(error)() for error in errors},
        **{f"odd_{e.__name__}_module": raising(e, types.ModuleType)("odd") for e in errors},
        "odd_properties": Properties("odd_properties"),
        "odd_proxy": Answering(),
        "odd_lazy": _lazy(folder, "odd_lazy"),
        "odd_empty": empty,
        "odd_spec": _module("odd_spec", __spec__=3, __loader__=raising(Stop)(), __name__=None),
        "odd_builtins": _module("odd_builtins", __builtins__=3, __spec__=Answering()),
        "odd.package": _module("other", __path__=3, __file__="_package.py"),
        "odd_none": None,
        "odd_number": 5,
        "": _module(""),
        ".": _module("."),
        "json.odd": _module("json.odd", __file__="_odd.py"),  # as torch.ops
        "numpy.odd": _refusing("numpy.odd", RuntimeError),  # as torch.classes
    }


def fill(folder: str) -> None:
    """Put all of them into `sys.modules`, in a worker too."""
    import sys

    sys.modules.update(odd_modules(pathlib.Path(folder)))
    ASKED.clear()


def filled(x: float) -> float:
    """Use packages whose modules are odd."""
    import json

    import numpy as np

    return float(np.sqrt(json.loads(str(x))))


def asked(x: object) -> list[str]:
    """Return what was asked here."""
    return [*ASKED]
