"""Pickles that mean the same in another process.

A worker runs the current version of a function or class of a module file:

- The definition that its name refers to is sent by name.
- An old version, from before the module was loaded again, is sent by name, too, and the new version
  runs in its place.
- Another definition, such as the original of a decorated function, is sent by value as long as its
  code in the file is unchanged, and refused otherwise.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper, cache, lru_cache, singledispatch
from importlib import import_module
from importlib.machinery import SourceFileLoader
from operator import mul
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from nbshare._core.functions.annotations import (
    NAMED,
    OF_ANNOTATIONS,
    annotations_of,
    reduced_annotation,
    with_references,
)
from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import (
    MAINS,
    SPAWNED_MAIN,
    by_value,
    file_of,
    find_named,
    home_of,
    is_module,
    loader_of,
    variables_of,
)
from nbshare._core.functions.namespaces import SentVariables, shared_state
from nbshare._core.messages import noted
from nbshare.errors import UnsendableError


def dumps(value: Any) -> bytes:
    """Pickle an object by reference, or by value if ``__main__`` or no module defines it.

    A class of ``__main__`` that was sent by value is restored as itself, because cloudpickle
    recognises it.
    """
    try:
        data = pickle.dumps(value, 5)
    except Exception:  # noqa: BLE001 - an object's __reduce__ may raise anything
        data = _MAINS
    if _needs_value(data):
        value_pickler()(file := io.BytesIO(), 5).dump(value)
        data = file.getvalue()
    return data


# Modules of classes whose objects hold the number of a descriptor, or write a file when they are
# deleted. Pickled copies would close descriptors of the worker, and overwrite files.
_OPEN = {name: name.encode() for name in ("multiprocessing.connection", "shelve", "dbm.dumb")}
_DEFINED = FunctionType, MethodType, staticmethod, classmethod, type
_MAINS = b"_main__"  # the end of all names of the script, as one search of a long pickle is faster

Keep = Callable[[pickle.PickleBuffer], bool]  # returns whether the pickle holds a buffer itself


def _pickler(by_value: bool, file: io.BytesIO, keep: Keep) -> Any:
    return (value_pickler() if by_value else pickle.Pickler)(file, 5, buffer_callback=keep)


def dumps_apart(
    value: Any, threshold: int, make: Callable[[bool, io.BytesIO, Keep], Any] = _pickler
) -> tuple[bytes, list[memoryview]]:
    """Pickle an object as `dumps` does, but without its buffers of `threshold` bytes and more.

    `make` returns a pickler. The first pickler pickles by reference. If that fails, or if the
    pickle may name objects that workers cannot import, the second one pickles by value, which works
    for objects of such modules or without a name, but takes longer.
    """
    buffers: list[memoryview] = []

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= threshold:
            buffers.append(raw)
        return raw.nbytes < threshold

    def attempt(by_value: bool) -> bytes:
        buffers.clear()  # the buffers of the first attempt
        make(by_value, file := io.BytesIO(), is_in_band).dump(value)
        return file.getvalue()

    try:
        data = attempt(False)
    except Exception:  # noqa: BLE001 - likewise
        data = _MAINS
    if _needs_value(data):
        data = attempt(True)
    return data, buffers


def may_name_unknown(data: bytes) -> bool:
    """Return whether a pickle may name objects that workers cannot import, as in ``__main__``."""
    if _MAINS in data:
        return True
    names = by_value()
    return bool(names) and any(name.encode() in data for name in names)


def _needs_value(data: bytes) -> bool:
    """Return whether a pickle may name objects that must be sent by value, or refused."""
    if may_name_unknown(data):
        return True
    names = _OPEN.keys() & sys.modules.keys()
    return bool(names) and any(_OPEN[name] in data for name in names)


OF_IMPORT = {"__builtins__", "__cached__", "__loader__", "__spec__"}  # variables of a module
# The modules of functions that every pickle by value names.
_LOADERS = "cloudpickle.cloudpickle", SentVariables.__module__, __name__


@cache
def value_pickler() -> Any:
    """Return the class of picklers that send by value the objects that workers cannot import."""
    from cloudpickle import Pickler  # imported late: it takes 15 ms

    class ValuePickler(Pickler):  # type: ignore[misc]
        def dump(self, obj: Any) -> None:
            _tell_cloudpickle()
            super().dump(obj)

        def reducer_override(self, obj: Any) -> Any:
            if obj is sys.stdout or obj is sys.stderr:
                return getattr, (sys, "stdout" if obj is sys.stdout else "stderr")
            if type(obj) is io.TextIOWrapper or type(obj).__module__ in _OPEN:
                # cloudpickle would send the file's text, and each worker would have its own
                # position.
                raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
            if type(obj) is FunctionType and obj.__module__ in _LOADERS:
                return NotImplemented  # by name (the check takes 10 µs)
            if type(obj) is _lru_cache_wrapper and is_by_value(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if type(obj) is FunctionType and is_by_value(obj) and is_dispatching(obj):
                return _dispatching(obj)
            if type(obj) is CodeType:  # cloudpickle omits the file, which tracebacks name
                return _in_file, (obj.co_filename, self.dispatch_table[CodeType](obj)[1])
            if is_module(obj):
                return _reduced_module(obj)
            if _is_array_type(obj):
                return mul, (obj._type_, obj._length_)
            if isinstance(obj, OF_ANNOTATIONS):
                return reduced_annotation(obj) if _is_of_unknown(obj) else NotImplemented
            if isinstance(obj, _DEFINED) and not issubclass(type(obj), _DEFINED):
                return _of_proxy(obj)
            reduced = _by_name(obj)
            if reduced is NotImplemented:
                if type(obj) is FunctionType and id(obj.__globals__) not in self.globals_ref:
                    self.globals_ref[id(obj.__globals__)] = SentVariables(obj.__globals__)
                reduced = shared_state(obj, self._by_value(obj))
            return reduced

        def _by_value(self, obj: Any) -> Any:
            """Return how cloudpickle sends an object, even if annotations name unknown objects."""
            try:
                reduced = super().reducer_override(obj)
            except Exception:  # on Python 3.14 and later
                if type(obj) is not FunctionType:
                    raise
                return super().reducer_override(with_references(obj))
            if issubclass(type(obj), type) and isinstance(reduced, tuple) and len(reduced) == 6:
                members = reduced[2][0]
                members.pop("__annotations_cache__", None)  # missing before the first access
                members.pop("__classdictcell__", None)  # for later accesses
                if found := annotations_of(obj):
                    members["__annotations__"] = found
            return reduced

    return ValuePickler


def _is_array_type(obj: Any) -> bool:
    """Return whether an object is a type such as ``c_double * 3``, which no module defines."""
    ctypes: Any = sys.modules.get("_ctypes")
    return (
        ctypes is not None
        and type(obj) is type(ctypes.Array)
        and obj is not ctypes.Array
        and obj is obj._type_ * obj._length_
    )


def _is_of_unknown(obj: Any) -> bool:
    """Return whether workers cannot import an object of annotations, such as a `typing.NewType`."""
    module, name = getattr(obj, "__module__", None), getattr(obj, "__name__", "")
    if isinstance(obj, NAMED) and module and module not in (*MAINS, *by_value()):
        with suppress(Exception):  # its module may raise anything
            return _named(module, getattr(obj, "__qualname__", name)) is not obj
    return not isinstance(obj, TypeVar)  # cloudpickle sends those by value


def _cached(func: Any, parameters: dict[str, Any]) -> Any:
    """Wrap a function with a new cache, as `functools.lru_cache` and `functools.cache` do."""
    return lru_cache(**parameters)(func)


def is_dispatching(func: FunctionType) -> bool:
    """Return whether a function dispatches by type, as `functools.singledispatch` makes it."""
    return vars(func).keys() >= {"registry", "dispatch", "register", "__wrapped__"}


def _dispatching(func: Any) -> tuple[Any, ...]:
    registered = [*func.registry.items()]
    return singledispatch, (func.__wrapped__,), registered, None, None, _register


def _register(func: Any, registered: list[tuple[type, Callable[..., Any]]]) -> None:
    for cls, implementation in registered:
        func.register(cls, implementation)


def _of_proxy(obj: Any) -> Any:
    """Return how to send an object that poses as a function, as decorators by wrapt make them.

    cloudpickle would send only what it wraps.
    """
    kind: Any = type(obj)
    if isinstance(obj, MethodType):
        return getattr, (obj.__self__, obj.__name__)
    if not is_by_value(obj) and find_named(obj.__module__, obj.__qualname__) is obj:
        return _named, (obj.__module__, obj.__qualname__)
    if kind.__name__ != "FunctionWrapper":
        return obj.__reduce_ex__(5)
    return kind, (obj.__wrapped__, obj._self_wrapper, obj._self_enabled)


def _in_file(path: str, parts: tuple[Any, ...]) -> CodeType:
    return CodeType(*parts).replace(co_filename=path)


_told: set[str] = set()  # modules whose definitions cloudpickle sends by value


def _tell_cloudpickle() -> None:
    """Make cloudpickle send definitions by value that workers cannot import."""
    global _told
    from cloudpickle import register_pickle_by_value, unregister_pickle_by_value

    names = {*by_value(), SPAWNED_MAIN} & sys.modules.keys()
    for name in names - _told:
        register_pickle_by_value(ModuleType(name))  # only the name counts
    for name in _told - names:  # a file has replaced the module
        with suppress(ValueError):  # other code has done this
            unregister_pickle_by_value(ModuleType(name))
    _told = names


def sent_variables(module: ModuleType) -> dict[str, Any]:
    """Return the variables that are sent with a module that workers cannot import."""
    return {name: x for name, x in variables_of(module).items() if name not in OF_IMPORT}


def _reduced_module(module: ModuleType) -> Any:
    """Return how to send a module: by name, or by value if the name means another module."""
    name: Any = variables_of(module).get("__name__")
    found = sys.modules.get(name)
    if name in by_value() or (found is not None and file_of(found) != file_of(module)):
        return _module, (name, sent_variables(module))
    return (import_module, (name,)) if found is module else NotImplemented


def _module(name: str, variables: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(variables)
    return module


def is_by_value(obj: Any) -> bool:
    """Return whether workers cannot import a function or class, of ``__main__`` or local."""
    module: str = obj.__module__
    return module in MAINS or "<" in obj.__qualname__ or module in by_value()


def _by_name(obj: Any) -> Any:
    """Return how to send a function or class by name if its file was loaded again.

    Raises
    ------
    UnsendableError
        If the file has changed, and the current version of the object cannot be identified.
    """
    if not issubclass(type(obj), (type, FunctionType, _lru_cache_wrapper)):
        return NotImplemented
    name, qualname = obj.__module__, obj.__qualname__
    if isinstance(obj, type) and name not in sys.modules:  # in C, such as that of wrapt
        return by_home(obj)
    loader = loader_of(sys.modules.get(name))
    if is_by_value(obj) or not isinstance(loader, SourceFileLoader):
        return NotImplemented
    found, path = _named(name, qualname), loader.path
    if found is obj or is_installed(path):
        return NotImplemented
    in_file = _codes_in(loader.get_data(path), loader)
    form, codes = _definition(obj, path)
    if not codes and _has_methods(obj):  # from another file
        return NotImplemented
    new_form, new_codes = _definition(found, path)
    is_loaded_again = not any(code is new for code in codes for new in new_codes)
    # With several definitions, the right one is unknown.
    is_only = [code.co_qualname for code in in_file].count(qualname) == 1
    if form == new_form and is_loaded_again and is_only and (codes or isinstance(obj, type)):
        return _named, (name, qualname)
    if all(code in in_file for code in codes):
        return NotImplemented
    raise UnsendableError(
        f"the file {path!r} has changed since {qualname!r} was imported, and the new version of "
        f"{qualname!r} cannot be identified. Import the module again and use the new one."
    )


def by_home(value: Any) -> Any:
    """Return how to send an object that has no module, such as a ufunc of SciPy.

    Pickle would search all modules for the name, which loads lazy modules, and would fail if one of
    them raises.
    """
    home = home_of(value, value.__name__)
    return NotImplemented if home is None else (_named, (home, value.__name__))


def _named(name: str, qualname: str) -> Any:
    """Return the object that a name means in a module, or None if there is none."""
    if name not in sys.modules:
        import_module(name)
    found = find_named(name, qualname)
    return getattr(found, "__func__", found)  # a class method has its function there


def _definition(obj: Any, path: str) -> tuple[Any, list[CodeType]]:
    """Return a key that all versions of a definition share, and its code in the file."""
    wrappers: list[Any] = []
    inner = inspect.unwrap(obj, stop=wrappers.append)
    form = len(wrappers), isinstance(inner, type), getattr(inner, "__qualname__", None)
    members = vars(inner).values() if isinstance(inner, type) else [inner]
    codes = [member.__code__ for member in members if isinstance(member, FunctionType)]
    return form, [c for c in codes if os.path.realpath(c.co_filename) == os.path.realpath(path)]


def _has_methods(obj: Any) -> bool:
    """Return whether the body of a class defines functions, other than generated ones."""
    members = vars(obj).values() if isinstance(obj, type) else ()
    return any(
        member.__qualname__.startswith(f"{obj.__qualname__}.")
        and not member.__code__.co_filename.startswith("<")
        for member in members
        if isinstance(member, FunctionType)
    )


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of the functions and classes within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


@lru_cache(8)
def _codes_in(source: bytes, loader: SourceFileLoader) -> list[CodeType]:
    """Return the code objects of all functions and classes in a file."""
    return [*codes_in(loader.source_to_code(source, loader.path))]


TOO_DEEP = (
    "Its parts are nested deeper than the recursion limit allows: raise that with "
    "sys.setrecursionlimit(100_000). If this does not help, send the parts in a list, each with "
    "the indices of those that it refers to."
)


def is_too_deep(error: BaseException | None) -> bool:
    """Return whether the recursion limit caused an error of pickling."""
    while error is not None and not isinstance(error, RecursionError):
        error = error.__cause__ or error.__context__
    return error is not None


def note_on_result(error: BaseException, value: Any) -> None:
    """Add a note to an error that a result cannot be sent, with advice on a replacement."""
    advice = "return numbers, arrays, or other objects that can be pickled"
    if hasattr(value, "send"):
        advice = "return its values, list(...) of it"
        if hasattr(value, "__await__"):
            advice = "run it, and return the result of asyncio.run(...)"
    noted(error, f"its result, a {type(value).__name__}, cannot be sent: {advice}")
    if is_too_deep(error):
        noted(error, TOO_DEEP)
