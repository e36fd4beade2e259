"""Grids of parameters, of which the quick suite runs a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def thinned(n: int, *axes: Iterable[Any]) -> list[Any]:
    """Return all combinations; all but each `n`-th, taken along diagonals, are slow.

    So each value of each axis is in the quick suite, if another axis has `n` values.
    """
    combinations = itertools.product(*map(enumerate, axes))
    return [_param(n, *zip(*combination, strict=True)) for combination in combinations]


def _param(n: int, places: tuple[int, ...], values: tuple[Any, ...]) -> Any:
    marks = [pytest.mark.slow] if sum(places) % n else []
    return pytest.param(*values, marks=marks, id="-".join(map(_name, values)))


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", getattr(value, "id", value)))
