"""Results of every kind, for a run that is compared with the plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbshare import MISSING


def kinds() -> dict[str, Any]:
    """Return by name what makes a result of that kind for item `i`."""
    return {
        "float": lambda i: i / 3,
        "int": lambda i: 7 * i,
        "huge int": lambda i: 1 << (60 + i % 9),
        "half": lambda i: np.float16(i / 7),
        "row": lambda i: np.full((2, 3), i, np.float32),
        "other row": lambda i: np.arange(1 + i % 4),
        "text": lambda i: f"item {i}",
        "none": lambda i: None,
        "dict": lambda i: {"i": i, "half": i / 2},
        "nested": lambda i: {"i": [i, {"j": (i,)}]},
        "tuple": lambda i: (i, f"{i}"),
        "bytes": lambda i: bytearray(b"%d" % i),
        "large": lambda i: {"image": np.full(3000, i)},
        "failure": None,
    }


def result(i: int, names: list[str]) -> Any:
    """Return the result of an item. Its kind is one of `names`."""
    make = kinds()[names[i % len(names)]]
    if make is None:
        raise ValueError(f"item {i} has none")
    return make(i)


def expected(items: list[int], names: list[str]) -> list[Any]:
    """Return what the plain loop gives."""

    def outcome(i: int) -> Any:
        try:
            return result(i, names)
        except ValueError as error:
            return error

    return [outcome(i) for i in items]


def are_same(found: Any, wanted: Any) -> bool:
    """Whether a result is the one of the loop. As an element of an array it has another class."""
    if isinstance(wanted, ValueError):
        if isinstance(found, np.ma.MaskedArray):  # a number, or a row of them
            return bool(found.mask.all())
        return type(found) is ValueError and found.args == wanted.args
    if isinstance(wanted, dict | list | tuple):
        if type(found) is not type(wanted) or len(found) != len(wanted):
            return False
        keys = wanted if isinstance(wanted, dict) else range(len(wanted))
        return all(are_same(found[key], wanted[key]) for key in keys)
    if isinstance(wanted, int | float | np.generic | np.ndarray):
        return bool(np.array_equal(found, wanted))
    return type(found) is type(wanted) and bool(found == wanted)


def is_missing(found: Any) -> bool:
    """Whether it is a gap in partial or stored results."""
    is_masked = isinstance(found, np.ma.MaskedArray) and found.size > 0 and bool(found.mask.all())
    return found is MISSING or is_masked
