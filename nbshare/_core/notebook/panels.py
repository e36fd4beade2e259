"""Small panels of one plot, for the further axes of a grid and for the parts of results."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot, names_of
from nbshare._core.notebook.pointer import Cells
from nbshare._core.notebook.reading import named_parts
from nbshare._core.notebook.values import GREY, Painter, first_of, points, span

_MAX_PANELS = 12  # in a figure, as smaller ones could not be read
_COLUMNS, _ROWS = 4, 3


@dataclass(frozen=True)
class Panel:
    """One of the panels: the text above it, its items, and the part of each result."""

    title: str
    items: NDArray[np.intp]
    part: str | None


@dataclass(frozen=True)
class Panels:
    """The panels of a plot, the number of columns, and a remark on those that are left out."""

    panels: list[Panel]
    columns: int
    remark: str


def panels_of(plot: LivePlot, partial: Any, present: NDArray[np.bool_]) -> Panels | None:
    """Return the panels that a plot needs, or None if it needs none.

    A grid of more than two axes needs one for each value of the further axes. Parts with names
    that are no lines of one plot need one each.
    """
    coords = list(plot._coords.items())
    if plot.kind == "hist" and isinstance(partial, np.ndarray) and not partial.dtype.names:
        return None
    if plot.x is not None or plot.y is not None:
        return None
    first, reader = first_of(plot, partial, present)
    shape, names = first.shape[1:], reader.names
    if len(names) > 1 and (plot.kind == "hist" or _is_split(plot, shape, len(coords))):
        numbers = np.arange(len(present))
        return Panels([Panel(name, numbers, name) for name in names[:_MAX_PANELS]], _COLUMNS, "")
    if shape or len(coords) < 3 or plot.kind == "hist":
        return None
    return _of_grid(coords, len(present))


def _is_split(plot: LivePlot, shape: tuple[int, ...], n_coords: int) -> bool:
    """Whether an image shows one part of each result only."""
    return plot.kind == "image" and (len(shape) > 1 or n_coords > 1)


def _of_grid(coords: list[tuple[str, NDArray[Any]]], n: int) -> Panels | None:
    """Return panels of the first two axes of a grid, for each value of the others."""
    further = coords[2:]
    if len(further) > 2:
        shown = " × ".join(name for name, _ in coords)
        raise CannotDrawError(
            f"A plot shows grids of up to 4 axes. This one has {len(coords)}: {shown}. The run "
            "continues without it. xarray's .plot() draws a part of the results."
        )
    most = [_MAX_PANELS] if len(further) == 1 else [_COLUMNS, _ROWS]
    chosen = [_some(len(values), k) for (_, values), k in zip(further, most, strict=True)]
    numbers: Any = np.arange(n).reshape([len(values) for _, values in coords])
    texts = [[f"{name} = {text}" for text in names_of(values)] for name, values in further]
    panels = [
        Panel(
            ", ".join(text[k] for text, k in zip(texts, places[::-1], strict=True)),
            numbers[(slice(None), slice(None), *places[::-1])].ravel(),
            None,
        )
        for places in itertools.product(*chosen[::-1])
    ]
    remark = "".join(
        f", {len(some)} of {len(values)} values of {name}"
        for (name, values), some in zip(further, chosen, strict=True)
        if len(some) < len(values)
    )
    is_table = len(further) == 2
    columns = len(chosen[0]) if is_table else min(_COLUMNS, math.ceil(math.sqrt(len(panels))))
    return Panels(panels, columns, remark)


def _some(n: int, most: int) -> list[int]:
    """Return up to some of the first n numbers, evenly spaced, with both ends."""
    places = np.linspace(0, n - 1, min(n, most)).round().astype(int)
    return [*map(int, np.unique(places))]


class PanelsPainter:
    """Draws one of nbshare's kinds in several axes, of one scale unless they have other parts.

    Parameters
    ----------
    figure
        An empty figure.
    kind
        What draws a panel.
    plot, inputs, partial, present
        As of a `Painter`.
    panels
        What `panels_of` returns.
    is_anew
        As of `values.first_of`.
    """

    def __init__(
        self,
        figure: Any,
        kind: Callable[..., Painter],
        plot: LivePlot,
        inputs: Any,
        partial: Any,
        present: NDArray[np.bool_],
        panels: Panels,
        *,
        is_anew: bool,
    ) -> None:
        self._panels, self._n = panels, len(present)
        n, columns = len(panels.panels), min(panels.columns, len(panels.panels))
        self.n_rows = math.ceil(n / columns)
        axes = figure.subplots(self.n_rows, columns, squeeze=False).ravel()
        for unused in axes[n:]:
            unused.remove()
        self._has_one_scale = panels.panels[0].part is None
        self._painters: list[Painter] = []
        for panel, place in zip(panels.panels, axes, strict=False):
            own = _plot_of(plot, panel)
            own._is_keyed = not self._has_one_scale
            like = first_of(own, partial, present, is_anew=is_anew)
            nothing = np.zeros(len(panel.items), np.bool_)
            own_inputs = None if self._has_one_scale else inputs
            painter = kind(place, own, own_inputs, None, nothing, like=like)
            place.set_title(panel.title, loc="left", fontsize=points(9), color=GREY)
            place.tick_params(labelsize=points(8))
            if self._has_one_scale:
                place.label_outer()
            self._painters.append(painter)
        if self._has_one_scale:
            self._painters[0].draw_key_of_all(figure, list(axes[:n]))

    @property
    def problem(self) -> Exception | None:
        """An error of the user's ``value=`` for some result, or None."""
        return next(filter(None, (painter.problem for painter in self._painters)), None)

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Update the panels. Return the number of results shown, and a text with ``{}`` for it."""
        is_shown = present.copy()  # also those of values that have no panel
        for panel, painter in zip(self._panels.panels, self._painters, strict=True):
            items = panel.items
            is_array = isinstance(partial, np.ndarray)
            own = partial[items] if is_array else [partial[i] for i in items.tolist()]
            painter.take_in(own, present[items], final=final)
            is_shown[items] &= painter.taken
        ends = np.array([painter.ends for painter in self._painters])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        for painter in self._painters:
            if self._has_one_scale and low <= high:
                painter.limits = span(np.array([low, high]))
            painter.show(final=final)
        return int(np.count_nonzero(is_shown)), "{}" + self._panels.remark

    def cells(self) -> list[Cells]:
        """Return what all panels show, for the pointer on a page."""
        return [cells for painter in self._painters for cells in painter.cells()]

    def say(self, remark: str) -> None:
        """Leave out a remark on one of several plots, as each panel has its own title."""

    def show_done(self) -> None:
        """Leave the panels as they are, as all have the same axes."""


def _plot_of(plot: LivePlot, panel: Panel) -> LivePlot:
    """Return the plot of a panel, that of the first axes of a grid, or of a part of each result."""
    own = copy.copy(plot)
    if panel.part is None:
        own._coords = dict(itertools.islice(plot._coords.items(), 2))
        return own
    value, part = plot.value, panel.part

    def value_of_part(result: Any) -> Any:
        whole = result if value is None else value(result)
        named = named_parts(whole)
        return None if named is None else named.get(part)

    own.value = value_of_part
    return own
