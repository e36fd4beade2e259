"""Advice on large inputs, for `nbshare.plan` and the progress display."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.arena import Arena
from nbshare._core.engine.request import Request
from nbshare._core.memory.budget import rounded

LARGE = 100_000_000  # smallest size of an input to mention, in bytes
MOST_KEPT = 16  # arrays that are remembered

# The large arrays that earlier calls have copied. Any thread may replace this tuple.
_copied: tuple[weakref.ref[npt.NDArray[Any]], ...] = ()


def hints_of(request: Request, arena: Arena) -> list[str]:
    """Return advice on each large input of a call, packed in an arena.

    Python objects take memory in each worker. Plain arrays are copied by each call, and are
    mentioned from the second copy on.
    """
    hints = [
        f"{what}: about {rounded(nbytes)} of Python objects in each worker; a DataFrame (with "
        "strings of dtype str), an array or Arrow would be held once"
        for what, nbytes in arena.pickled.items()
        if nbytes >= LARGE
    ]
    inputs = [(f"shared[{name!r}]", name, value) for name, value in request.shared.items()]
    inputs += [("the items", "items", value) for value in request.iterables]
    for what, name, value in inputs:
        is_array = isinstance(value, np.ndarray) and value.nbytes >= LARGE
        if is_array and not arena.refers_to(value) and _was_copied(value):
            hints.append(
                f"{what}: {rounded(value.nbytes)} are copied at each call; with "
                f"{name} = nbshare.share({name}), they are copied once"
            )
    return hints


def _was_copied(array: npt.NDArray[Any]) -> bool:
    """Return whether an earlier call has copied an array, and record this copy."""
    global _copied
    while isinstance(array.base, np.ndarray):
        array = array.base
    if any(ref() is array for ref in _copied):
        return True
    _copied = (*_copied[1 - MOST_KEPT :], weakref.ref(array))
    return False
