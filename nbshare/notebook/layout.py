"""How results of one shape become one image, and what its axes show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbshare.notebook.base import CannotDrawError
from nbshare.notebook.values import as_floats

if TYPE_CHECKING:
    from nbshare.notebook.live_plot import LivePlot

_MAX_SIDE = 1024  # no picture has more pixels a side than a screen shows of it
_MAX_SCALARS = 2**16


@dataclass(frozen=True)
class Layout:
    """How results of one shape become one picture.

    Attributes
    ----------
    n_cells
        The results are reduced to this many, each of a run of consecutive items.
    sample
        Index into one result: every k-th pixel of what is larger than a screen.
    extent, aspect, xlabel, ylabel
        Of the axes, in items and elements, or in the user's coordinates.
    columns
        Cells side by side, for scalars; 0 for others.
    coloured
        The last axis is RGB or RGBA.
    """

    n_cells: int
    sample: tuple[slice, ...]
    extent: tuple[float, float, float, float]
    aspect: float | Literal["auto", "equal"]
    xlabel: str
    ylabel: str
    columns: int = 0
    coloured: bool = False


def choose_layout(n: int, shape: tuple[int, ...], plot: LivePlot | None = None) -> Layout:
    """Choose the picture for n results of a shape; CannotDrawError if there is none."""
    x, y = (plot.x, plot.y) if plot is not None else (None, None)
    coloured = len(shape) == 3 and shape[2] in (3, 4)
    if math.prod(shape) > 0:
        if len(shape) == 0 and x is not None and y is not None:
            if len(x) * len(y) != n:
                raise CannotDrawError(
                    f"LivePlot(x=..., y=...) has {len(x)} columns and {len(y)} rows, which does "
                    f"not make {n} items. The map goes on without the picture."
                )
            return Layout(n, (), _extent(x, y, len(y), len(x)), "auto", "x", "y", len(x))
        if len(shape) == 0:
            cells = min(n, _MAX_SCALARS)
            columns = math.ceil(math.sqrt(cells))
            rows = math.ceil(cells / columns)
            per_row = columns * n / cells
            extent = (0.0, per_row, rows * per_row, 0.0)
            return Layout(cells, (), extent, 1 / columns, "items, row by row", "", columns)
        if len(shape) == 1:
            extent = _extent(x, y, n, shape[0])
            cells = min(n, _MAX_SIDE)
            return Layout(cells, _sampled(shape), extent, "auto", "element", "item")
        if len(shape) == 2 or coloured:
            extent = _extent(x, y, *shape[:2])
            aspect: Literal["auto", "equal"] = "equal" if x is None and y is None else "auto"
            return Layout(1, _sampled(shape[:2]), extent, aspect, "", "", coloured=coloured)
    raise CannotDrawError(
        f"plot='image' draws results that are numbers, rows (k,), images (H, W) or colour images "
        f"(H, W, 3 or 4); these have the shape {shape}. The map goes on without the picture; "
        "plot=callable(ax, partial) draws anything."
    )


def _extent(x: Any, y: Any, height: int, width: int) -> tuple[float, float, float, float]:
    """Return the left, right, lower and upper edge of an image whose first row is on top."""
    left, right = _edges("x", x, width)
    top, bottom = _edges("y", y, height)
    return left, right, bottom, top


def _edges(name: str, coordinates: Any, size: int) -> tuple[float, float]:
    """Return where the first pixel begins and the last one ends."""
    if coordinates is None:
        return -0.5, size - 0.5
    places = as_floats(coordinates)
    steps = np.diff(places)
    step = float(steps[0]) if steps.size else 1.0
    if len(places) != size or not np.allclose(steps, step, rtol=1e-3) or not step:
        raise CannotDrawError(
            f"LivePlot({name}=...) of an image needs {size} evenly spaced coordinates; it has "
            f"{len(places)}, {places.min():g} to {places.max():g}. The map goes on without the "
            "picture."
        )
    return float(places[0]) - step / 2, float(places[-1]) + step / 2


def _sampled(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None, None, math.ceil(side / _MAX_SIDE)) for side in shape)
