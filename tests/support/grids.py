"""Grids of parameters, of which the quick suite runs a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def thinned(n: int, *axes: Iterable[Any], soak: bool = False) -> list[Any]:
    """Return all combinations. All but each `n`-th, taken along diagonals, are slow.

    So each value of each axis is in the quick suite, if another axis has `n` values. With `soak`
    as many are slow as are quick, those halfway between them, and the rest is for the soak.
    """
    combinations = itertools.product(*map(enumerate, axes))
    return [_param(n, soak, *zip(*combination, strict=True)) for combination in combinations]


def _param(n: int, soak: bool, places: tuple[int, ...], values: tuple[Any, ...]) -> Any:
    marks = []
    if place := sum(places) % n:
        marks = [pytest.mark.soak if soak and place != n // 2 else pytest.mark.slow]
    return pytest.param(*values, marks=marks, id="-".join(map(_name, values)))


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", getattr(value, "id", value)))
