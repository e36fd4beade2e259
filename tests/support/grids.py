"""Grids of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def combined(*axes: Iterable[Any], soak: bool = False) -> list[Any]:
    """Return all combinations. With `soak`, each second one, off the diagonals, is for the soak."""
    combinations = itertools.product(*map(enumerate, axes))
    return [_param(soak, *zip(*combination, strict=True)) for combination in combinations]


def _param(soak: bool, places: tuple[int, ...], values: tuple[Any, ...]) -> Any:
    marks = [pytest.mark.soak] if soak and sum(places) % 2 else []
    return pytest.param(*values, marks=marks, id="-".join(map(_name, values)))


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", getattr(value, "id", value)))
