"""Finds, checks and names the function of a call, and those of options, before anything starts."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import _lru_cache_wrapper
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from nbshare._core.functions.annotations import signature_of, text_of
from nbshare._core.functions.files import import_file
from nbshare._core.messages import cut

# The last call that fitted each function, because a check by `inspect` takes 50 µs.
_fitting: WeakKeyDictionary[Callable[..., Any], tuple[Any, ...]] = WeakKeyDictionary()


def resolve(func: Any) -> Callable[..., Any]:
    """Return the function that is passed, or named by a string such as ``"workers.py:horizon"``.

    Raises
    ------
    TypeError
        If the function is not callable, or is asynchronous.
    ValueError, FileNotFoundError, AttributeError
        If the string names no file, or no function in a file.
    """
    if isinstance(func, str):
        func = _from_file(func)
    if not callable(func):
        raise TypeError(
            f"func must be callable or 'file.py:name', not {type(func).__name__}. Pass the "
            "function itself, f, not its result, f(...). The order is parallel_map(function, "
            "items), as in the built-in map."
        )
    if (library := _delaying(func)) is not None:
        raise TypeError(
            f"func is {library}'s delayed({label_of(func)}), which only records a call and runs "
            f"nothing. Pass the function itself: parallel_map({label_of(func)}, items)."
        )
    refuse_async(func)
    return func  # type: ignore[no-any-return]


_AROUND = functools.partial, _lru_cache_wrapper
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # flags of code


def refuse_async(func: Any) -> None:
    """Raise TypeError for an asynchronous function, because a plain call does not run it."""
    inner = func
    while isinstance(inner, _AROUND):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__wrapped__
    if type(inner) is MethodType:
        inner = inner.__func__
    called = inner if type(inner) is FunctionType else getattr(type(inner), "__call__", None)  # noqa: B004
    if type(called) is not FunctionType:  # code in C, or a class
        return
    flags = called.__code__.co_flags
    is_marked = bool(vars(called)) and inspect.iscoroutinefunction(called)  # by a decorator
    if not flags & _ASYNC and not is_marked:
        return
    call = f"{getattr(inner, '__name__', 'func')}(item)"
    advice = f"def run(item): return asyncio.run({call})"
    if flags & inspect.CO_ASYNC_GENERATOR:
        advice = (
            "async def collect(values): return [x async for x in values], and "
            f"def run(item): return asyncio.run(collect({call}))"
        )
    raise TypeError(
        f"{label_of(func)} is asynchronous (async def), so calling it runs nothing. Pass a "
        f"function that runs it: {advice}. If the function mostly waits, for example for a "
        "network, use asyncio.gather without nbshare."
    )


def _delaying(func: Any) -> str | None:
    """Return the library whose ``delayed`` made a function, or None."""
    kind = type(func)
    if kind is FunctionType and func.__code__.co_name == "delayed_function":
        library = str(func.__globals__.get("__name__")).partition(".")[0]
        return library if library in ("joblib", "sklearn") else None
    return "dask" if kind.__module__ == "dask.delayed" else None


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
            from nbshare._core.names import closest  # late, because few calls fail

            names = sorted(k for k, v in vars(found).items() if callable(v) and k[0] != "_")
            close = closest(part, names)
            advice = f"did you mean {close!r}?" if close else f"it has {', '.join(names[:10])}"
            advice = advice if names else "it has no function"
            raise AttributeError(f"{path} has no {part!r}; {advice}") from None
    if not callable(found):
        raise TypeError(f"{reference!r} is not callable: it is of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def bind_arguments(
    func: Callable[..., Any],
    arguments: Sequence[Any],
    shared: Mapping[str, Any],
    extra: Sequence[str] = (),
    of_grid: Sequence[str] = (),
) -> None:
    """Check that ``func(item, ..., **shared)`` fits the function's signature.

    Parameters
    ----------
    func
        The function.
    arguments
        The iterables that supply the positional arguments.
    shared, extra, of_grid
        Names of the keyword arguments from ``shared=``, from nbshare, and from a grid.

    Raises
    ------
    TypeError
        If the call does not fit the signature. This is raised before any worker starts.
    """
    if is_plain := type(func) is FunctionType and not vars(func):  # decorators set __signature__
        optional = len(func.__defaults__ or ()), *(func.__kwdefaults__ or ())
        call = func.__code__, optional, len(arguments), *shared, None, *extra, None, *of_grid
        if _fitting.get(func) == call:
            return
    try:
        signature = signature_of(func)
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
    keywords = [*of_grid, *shared, *extra]
    names = [*["item"] * len(arguments), *(f"{name}=..." for name in keywords)]
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        from nbshare._core.names import closest  # late, because few calls fail

        called = f"{label_of(func)}({', '.join(names)})"
        cures = [*_cures(signature, arguments, {**dict.fromkeys(of_grid), **shared}, extra)]
        parameters = signature.parameters.values()
        strange = [name for name in of_grid if name not in signature.parameters]
        if strange and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            cures = [f"A grid passes its values by name: there is no parameter {strange[0]!r}."]
            if close := closest(strange[0], signature.parameters):
                cures += [f"Did you mean {close!r}?"]
        raise TypeError(
            f"{label_of(func)}{text_of(signature)} cannot be called as {called}: {error}. "
            f"{' '.join(cures)}"
        ) from None
    if is_plain:
        _fitting[func] = call


def needed_by(func: Callable[..., Any]) -> list[str]:
    """Return the names of a function's required positional parameters, or [""] if unknown."""
    try:
        parameters = signature_of(func).parameters.values()
    except (TypeError, ValueError):  # some functions in C have none
        return [""]
    return [p.name for p in parameters if p.kind < p.VAR_POSITIONAL and p.default is p.empty]


def _cures(
    signature: inspect.Signature,
    arguments: Sequence[Any],
    shared: Mapping[str, Any],
    extra: Sequence[str],
) -> Iterator[str]:
    """Yield advice for arguments that do not fit a signature."""
    parameters, n = signature.parameters, len(arguments)
    positional = [k for k, p in parameters.items() if p.kind < p.VAR_POSITIONAL]
    named = positional[n:] + [k for k, p in parameters.items() if p.kind == p.KEYWORD_ONLY]
    missing = [k for k in named if parameters[k].default is inspect.Parameter.empty]
    missing = [name for name in missing if name not in {*shared, *extra}]
    unknown = [name for name in shared if name not in parameters]
    first = arguments[0][0] if n and isinstance(arguments[0], Sequence) and arguments[0] else None
    yield "Each iterable supplies one positional argument, and shared= the keyword arguments."
    if any(name not in parameters for name in extra):
        yield "seed= passes rng=, a numpy.random.Generator: add a parameter rng, or drop seed="
    elif twice := [name for name in positional[:n] if name in shared]:
        yield f"{twice[0]!r} is given twice: by an iterable, and in shared=. If the function does"
        yield f"not use the item, add a parameter for the item before {twice[0]!r}."
    elif unknown:
        from nbshare._core.names import closest

        meant = closest(unknown[0], named)
        advice = f"did you mean {meant!r}?" if meant else "drop it, or add that parameter"
        yield f"The function has no parameter {unknown[0]!r} for shared=: {advice}"
    elif "rng" in missing:
        yield "For rng, pass seed=1, or another integer: each call gets its own generator."
    elif missing and n == 1 and {*positional} <= {*getattr(first, "_fields", ())}:
        parts = ", ".join(f"item.{name}" for name in positional)
        yield f"To pass parts of the items, use parallel_map(lambda item: func({parts}), items)."
    elif missing and n == 1 and type(first) is tuple and len(first) == len(missing) + 1:
        yield "The items are tuples: to pass their parts, use parallel_map(func, *zip(*items))."
    elif missing and n == 1 and isinstance(first, dict) and first.keys() >= {*missing}:
        yield "The items are dicts: to pass their parts, use"
        yield "parallel_map(lambda item: func(**item), items)."
    elif missing:
        name = missing[0]
        yield f"For an argument that is the same in every call, pass shared={{{name!r}: ...}}."
        if n == 1 and not isinstance(arguments[0], Sequence):
            yield "If the items are tuples of arguments, use parallel_map(func, *zip(*items))."
            yield "For all combinations of values, use nbshare.grid."


def with_keywords(func: Callable[..., Any], keywords: Mapping[str, Any]) -> Callable[..., Any]:
    """Bind keyword arguments to a function.

    A partial keeps its class: from Python 3.14 on, a `functools.partial` around it would not call
    the function as that class does.
    """
    if isinstance(func, functools.partial):
        return type(func)(func.func, *func.args, **{**func.keywords, **keywords})
    return functools.partial(func, **keywords)


def label_of(func: Any) -> str:
    """Return the name of a function for messages and the progress display."""
    while isinstance(func, functools.partial):
        func = func.func
    return str(getattr(func, "__name__", None) or type(func).__name__)


# Second parameters of functions that take all results, such as numpy.sum, torch.max, sum and
# sorted.
_OF_ALL = ("axis", "dim", "dtype", "key", "start", "weights")
_OF_TWO = ("a", "b")  # the arguments of reduce=
_INSTEAD: dict[tuple[str, ...], str] = {
    _OF_TWO: " Pass a function of two results, such as numpy.add, numpy.maximum or max. For a "
    "function of all results, leave reduce= out: sum(parallel_map(func, items))",
    ("ax", "partial"): " Pass a function that draws on these Axes: "
    "plot=lambda ax, partial: ax.plot(partial).",
}


def check_called(option: str, func: Any, *given: str) -> None:
    """Raise TypeError if a function does not accept the arguments that its option passes.

    Parameters
    ----------
    option
        Name of the option.
    func
        The user's function.
    *given
        Names of the positional arguments.
    """
    call = f"{option}({', '.join(given)})"
    if not callable(func):
        said = f"{option}={cut(repr(func))} is not allowed"
        raise TypeError(f"{said}: pass a function, called as {call}")
    refuse_async(func)
    try:
        signature = signature_of(func)
    except Exception:  # noqa: BLE001 - some functions in C lack one, annotations may raise
        return
    instead = _INSTEAD.get(given, "")
    how = f"{option}= calls {call}"
    try:
        signature.bind(*given)
    except TypeError as error:
        shown = f"{label_of(func)}{text_of(signature)}"
        raise TypeError(f"{how}, which {shown} does not take: {error}.{instead}") from None
    names = [*signature.parameters]
    if given == _OF_TWO and len(names) > 1 and names[1] in _OF_ALL:
        raise TypeError(
            f"{how} for two results, but {label_of(func)} takes all results in one "
            f"argument.{instead}"
        )
    module = str(getattr(func, "__module__", ""))
    if option == "plot" and (module == "matplotlib.pyplot" or _is_of_axes(func)):
        raise TypeError(
            f"{how} with the Axes to draw on, but {label_of(func)} has its own.{instead}"
        )


def _is_of_axes(func: Any) -> bool:
    """Return whether a function is a method of existing Axes."""
    return type(func) is MethodType and type(func.__self__).__module__.startswith("matplotlib.")
