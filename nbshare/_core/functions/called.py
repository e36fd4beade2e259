"""Checks that the functions passed as options accept the arguments of nbshare's calls."""

from __future__ import annotations

from types import MethodType
from typing import Any

from nbshare._core.functions.annotations import signature_of, text_of
from nbshare._core.functions.reference import label_of, refuse_async
from nbshare._core.messages import cut

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
