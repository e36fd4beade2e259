"""The arguments of a pipeline, checked before anything starts: what was wrong, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from nbshare.functions import bind_arguments, label_of, resolve
from nbshare.worker.stages import n_arguments

__all__ = [
    "check_functions",
    "functions_of",
    "is_list_of_dtypes",
    "is_list_of_shapes",
    "one_each",
    "refuse",
    "taken_by",
]

INSTEAD = {
    "max_workers": "say workers=, one number for all stages or one for each",
    "chunksize": "the loader decides how large a block is, shape= how large it may be",
    "out": "write to an array or file in the last stage",
    "on_error": "catch the error in the stage, and return what stands for such a block",
    "retries": "try again in the stage itself",
    "seed": "let the loader give a number with each block, and the stage begin from that",
    "initializer": "prepare things where a stage first needs them, in a functools.cache",
    "initargs": "give constants in shared=",
    "checkpoint": "write to a file in the last stage, and let the loader begin where that ends",
    "backend": "for the debugger, call the stages in a loop over load()",
}


def refuse(name: str) -> NoReturn:
    """Say what to do instead of giving an argument that a pipeline has not."""
    if name not in INSTEAD:
        raise TypeError(f"pipeline() got an unexpected keyword argument {name!r}")
    raise TypeError(f"pipeline() has no {name}=: {INSTEAD[name]}")


def functions_of(load: Any, stages: Sequence[Any]) -> list[Callable[..., Any]]:
    """Return the functions that a user means; raise TypeError for what is none."""
    if not callable(load) and isinstance(load, Iterable) and not isinstance(load, str):
        raise TypeError(
            f"the first argument is a {type(load).__name__}; it must be a function without "
            "arguments that yields the blocks: pipeline(load, ...), not pipeline(load(), ...)"
        )
    for func in (load, *stages):
        if not callable(func) and not isinstance(func, str):
            raise TypeError(
                f"pipeline() takes functions or 'file.py:name', not {type(func).__name__}; what "
                "else it is to know goes by name, as in shape="
            )
    return [resolve(func) for func in (load, *stages)]


def taken_by(
    functions: Sequence[Callable[..., Any]], shared: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return for each function those of the shared objects that it has parameters for."""
    taken = [{name: shared[name] for name in shared if _takes(f, name)} for f in functions]
    left_over = shared.keys() - {name for each in taken for name in each}
    if left_over:
        raise TypeError(
            f"shared={sorted(left_over)}: neither {' nor '.join(map(label_of, functions))} has a "
            "parameter of that name"
        )
    return taken


def _takes(func: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # some functions in C have none
        return False
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return (name in parameters and parameters[name].kind in named) or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )


def check_functions(
    functions: Sequence[Callable[..., Any]], keywords: Sequence[Mapping[str, Any]]
) -> None:
    """Raise TypeError if one cannot be called as a loader, or as a stage."""
    if len(functions) < 2:
        raise TypeError("pipeline(load, stage, ..., shape=) needs one stage or more")
    for k, (func, shared) in enumerate(zip(functions, keywords, strict=True)):
        n = n_arguments(partial(func, **shared))
        if k == 0 and n > 1:
            raise TypeError(f"{label_of(func)} must take no argument, or one: the slots to fill")
        if k > 0 and n not in ((1,) if k == len(functions) - 1 else (1, 2)):
            how = "stage(block)" if k == len(functions) - 1 else "stage(block) or stage(block, out)"
            raise TypeError(
                f"{label_of(func)}, stage {k}, takes {n} positional arguments; it is called as "
                f"{how}. Give others by shared={{name: value}}."
            )
        bind_arguments(func, n, shared)


def one_each(name: str, value: Any, n: int, is_list: bool) -> list[Any]:
    """Return a value for each stage: the one there is, or those of a list."""
    if not is_list:
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{name}={value!r} has {len(value)} entries for {n} stages (without load)")
    return list(value)


def is_list_of_shapes(shape: Any) -> bool:
    """Whether it is a list with a shape per stage: [(1000, 2), (501, 2)], or [1000, 501]."""
    return isinstance(shape, list)


def is_list_of_dtypes(dtype: Any) -> bool:
    """Whether it is a list of dtypes, and not that of a structured dtype's fields."""
    return isinstance(dtype, list) and not all(isinstance(each, tuple) for each in dtype)
