"""Signatures and annotations, including names that exist only for type checkers.

From Python 3.14 on, annotations are evaluated on access.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

from nbshare.errors import UnsendableError

if sys.version_info >= (3, 14):
    from annotationlib import Format, call_evaluate_function, get_annotations

    def _value_of(alias: Any) -> Any:
        """Return the value of a type alias."""
        return call_evaluate_function(alias.evaluate_value, Format.FORWARDREF, owner=alias)

else:
    from inspect import get_annotations

    def _value_of(alias: Any) -> Any:
        """Return the value of a type alias, or a reference if it cannot be evaluated."""
        try:
            return alias.__value__
        except Exception:  # noqa: BLE001 - it may call anything
            return typing.ForwardRef(alias.__name__)


Alias: Any = getattr(typing, "TypeAliasType", ())  # since Python 3.12
# Objects of annotations that are pickled by name.
NAMED = tuple(
    kind
    for name in ("NewType", "TypeAliasType", "ParamSpec", "TypeVarTuple", "TypeVar")
    if (kind := getattr(typing, name, None)) is not None
)
# With others, which cannot be pickled, or only with all names of their module.
OF_ANNOTATIONS = *NAMED, typing.ForwardRef, typing.ParamSpecArgs, typing.ParamSpecKwargs
OF_VARIABLES = "bound", "covariant", "contravariant", "infer_variance"


def signature_of(func: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, with unevaluated annotations as texts.

    Raises
    ------
    ValueError
        If the function has no signature, like some functions in C, or if its annotations cannot be
        evaluated.
    """
    try:
        if sys.version_info >= (3, 14):
            return inspect.signature(func, annotation_format=Format.STRING)
        return inspect.signature(func)
    except Exception as error:
        # Annotations may call anything, and CPython 3.11 fails if another thread is parsing.
        raise ValueError(f"no signature: {error!r}") from error


def text_of(signature: inspect.Signature) -> str:
    """Return a signature as text for a message."""
    if sys.version_info >= (3, 14):
        return signature.format(quote_annotation_strings=False)
    return str(signature)


def annotations_of(obj: Any) -> dict[str, Any]:
    """Return the annotations of a function or class, with references in place of unknown names.

    Those that cannot be evaluated are texts, or left out if even that fails.
    """
    if sys.version_info >= (3, 14):
        for form in Format.FORWARDREF, Format.STRING:
            with suppress(Exception):
                return get_annotations(obj, format=form)
        return {}
    return get_annotations(obj)


def parts_of(obj: Any) -> tuple[str, Any, dict[str, Any]]:
    """Return the name, value and options of an object of one of the types `OF_ANNOTATIONS`."""
    if isinstance(obj, typing.ForwardRef):
        return obj.__forward_arg__, None, {}
    if isinstance(obj, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return "", obj.__origin__, {}
    if isinstance(obj, typing.NewType):
        return obj.__name__, obj.__supertype__, {}
    if isinstance(obj, Alias):
        return obj.__name__, _value_of(obj), {"type_params": obj.__type_params__}
    options = {name: getattr(obj, f"__{name}__", None) for name in OF_VARIABLES}
    if getattr(obj, "has_default", bool)():
        options["default"] = obj.__default__
    options = {name: value for name, value in options.items() if value}
    return obj.__name__, getattr(obj, "__constraints__", ()), options


def with_references(func: FunctionType) -> FunctionType:
    """Return a copy of a function with references in place of unknown names in annotations."""
    copy = FunctionType(
        func.__code__, func.__globals__, func.__name__, func.__defaults__, func.__closure__
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
        setattr(copy, name, getattr(func, name))
    vars(copy).update(vars(func))
    copy.__annotations__ = annotations_of(func)
    return copy


def reduced_annotation(obj: Any) -> tuple[Any, ...]:
    """Return how to send an object of one of the types `OF_ANNOTATIONS` by value."""
    name, value, options = parts_of(obj)
    if isinstance(obj, typing.ForwardRef):
        return typing.ForwardRef, (name,)
    if isinstance(obj, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return type(obj), (value,)
    if isinstance(obj, typing.NewType):  # the value may refer to the object itself
        return typing.NewType, (name, None), {**vars(obj), "__supertype__": value}
    if not isinstance(obj, Alias):
        return _variable, (type(obj), name, value, options)
    if options["type_params"]:
        if _leads_to(obj, value):
            raise UnsendableError(
                f"the type alias {name} has parameters and names itself: define it in a .py file, "
                "and import it from there"
            )
        return _generic_alias, (name, value, options)
    names: dict[str, Any] = {"__name__": obj.__module__}
    return _alias, (name, names), (names, value), None, None, _define


def _leads_to(obj: Any, value: Any) -> bool:
    """Return whether a type contains an object, at any depth."""
    parts = typing.get_origin(value), *typing.get_args(value)
    return any(part is obj or (part is not None and _leads_to(obj, part)) for part in parts)


def _variable(kind: Any, name: str, constraints: Any, options: dict[str, Any]) -> Any:
    return kind(name, *constraints, **options)


def _generic_alias(name: str, value: Any, options: dict[str, Any]) -> Any:
    return Alias(name, value, **options)


def _alias(name: str, names: dict[str, Any]) -> Any:
    """Create an alias whose value, ``names["value"]``, may refer to the alias itself."""
    exec(f"type {name} = value", names)  # noqa: S102 - a statement that Python 3.11 lacks
    return names[name]


def _define(_alias: Any, state: tuple[dict[str, Any], Any]) -> None:
    names, value = state
    names["value"] = value
