"""Finds items that define the form of their results, in a call and in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbshare._core.shapes.grid import Grid
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.shapes.tables import groups_of, is_grouped
from nbshare._core.shapes.tiles import Tiles


def shaped_among(iterables: Sequence[Any]) -> ShapedItems | None:
    """Return the `ShapedItems` of a call, or None. Raise TypeError if it has other items too."""
    shaped = [x for x in iterables if isinstance(x, ShapedItems) or is_grouped(x)]
    if not shaped:
        return None
    if len(iterables) > 1:
        raise TypeError(
            f"a {type(shaped[0]).__name__} supplies all arguments that vary: pass it without other "
            "iterables, and arguments of all calls in shared="
        )
    return shaped[0] if isinstance(shaped[0], ShapedItems) else groups_of(shaped[0])


def shaped_from(stored: Mapping[str, Any]) -> ShapedItems | None:
    """Return the items that `ShapedItems.as_json` stored in a checkpoint, or None."""
    if stored.get("grid"):
        return Grid.from_json(stored)
    return Tiles.from_json(stored) if "tiles" in stored else None
