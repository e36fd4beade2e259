"""The function of a call: found, checked and named before anything starts."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from nbshare.functions.files import import_file

# Functions that fit what they were called with last, which `inspect` takes 50 µs to tell.
_fitting: WeakKeyDictionary[Callable[..., Any], tuple[Any, ...]] = WeakKeyDictionary()


def resolve(func: Any) -> Callable[..., Any]:
    """Return the function that a user means: a callable, or ``"workers.py:horizon"``.

    Raises
    ------
    TypeError
        It is not callable.
    ValueError, FileNotFoundError, AttributeError
        The string names no file, or no function in it.
    """
    if isinstance(func, str):
        return _from_file(func)
    if not callable(func):
        raise TypeError(
            f"func must be callable or 'file.py:name', not {type(func).__name__}. "
            "The order is parallel_map(function, items), as in the built-in map."
        )
    return func  # type: ignore[no-any-return]


def _from_file(reference: str) -> Callable[..., Any]:
    path, _, name = reference.rpartition(":")
    if not path or not name:
        raise ValueError(
            f"func={reference!r}: a string must name a file and a function: 'workers.py:horizon'"
        )
    found: Any = import_file(path)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = sorted(k for k, v in vars(found).items() if callable(v) and k[0] != "_")
            raise AttributeError(
                f"{path} has no {part!r}; it has {', '.join(names[:10]) or 'no function'}"
            ) from None
    if not callable(found):
        raise TypeError(f"{reference!r} is a {type(found).__name__} and cannot be called")
    return found  # type: ignore[no-any-return]


def bind_arguments(
    func: Callable[..., Any],
    n_iterables: int,
    shared: Mapping[str, Any],
    extra: Sequence[str] = (),
    of_grid: Sequence[str] = (),
) -> None:
    """Check that ``func(item, ..., **shared)`` fits the function's signature.

    Raises
    ------
    TypeError
        It does not; raised before any worker starts.
    """
    if is_plain := type(func) is FunctionType and not vars(func):  # decorators may tell another
        optional = len(func.__defaults__ or ()), *(func.__kwdefaults__ or ())
        call = func.__code__, optional, n_iterables, *shared, None, *extra, None, *of_grid
        if _fitting.get(func) == call:
            return
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # some functions in C have none
        return
    preset = func.keywords if isinstance(func, functools.partial) else {}
    sources = {
        "the functools.partial": preset,
        "shared=": shared,
        "seed=": extra,
        "grid()": of_grid,
    }
    for (first, names), (second, others) in itertools.combinations(sources.items(), 2):
        for name in others:
            if name in names:
                raise TypeError(f"{name!r} is given twice: in {first} and in {second}")
    names = [*["item"] * n_iterables, *(f"{name}=..." for name in [*of_grid, *shared, *extra])]
    try:
        signature.bind(*[None] * n_iterables, **dict.fromkeys([*of_grid, *shared, *extra]))
    except TypeError as error:
        called = f"{label_of(func)}({', '.join(names)})"
        cure = _cure(signature, n_iterables, shared, extra)
        if strange := [name for name in of_grid if name not in signature.parameters]:
            cure = f"A grid passes its values by name, and there is no parameter {strange[0]!r}."
        raise TypeError(
            f"{label_of(func)}{signature} cannot be called as {called}: {error}. {cure}"
        ) from None
    if is_plain:
        _fitting[func] = call


def _cure(
    signature: inspect.Signature, n_iterables: int, shared: Mapping[str, Any], extra: Sequence[str]
) -> str:
    """Return advice for arguments that do not fit a signature."""
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    twice = [p.name for p in positional[:n_iterables] if p.name in shared]
    missing = [p for p in positional[n_iterables:] if p.default is p.empty and p.name not in shared]
    if any(name not in signature.parameters for name in extra):
        return "seed= passes rng=, a numpy.random.Generator: add a parameter rng, or drop seed="
    if twice:
        return f"{twice[0]!r} is given twice: by an iterable, and in shared="
    if missing and n_iterables == 1:
        return (
            "Each iterable gives one positional argument, shared= the keyword arguments. If the "
            "items are tuples of arguments, use parallel_map(func, *zip(*items))."
        )
    return (
        "Each iterable, or block of a pipeline, gives one positional argument, shared= the keyword "
        "arguments."
    )


def assigned_around(func: Any) -> str | None:
    """Return a variable that a function assigns, and that belongs to the function around it."""
    code = getattr(func, "__code__", None)
    if code is None or not code.co_freevars:
        return None
    import dis  # late: few initializers are such functions

    stored = (i.argval for i in dis.get_instructions(code) if i.opname == "STORE_DEREF")
    return next((name for name in stored if name in code.co_freevars), None)


def label_of(func: Any) -> str:
    """Return the name for progress display and messages."""
    while isinstance(func, functools.partial):
        func = func.func
    return str(getattr(func, "__name__", None) or type(func).__name__)
