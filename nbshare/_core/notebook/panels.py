"""Small panels of one plot, for further axes of a grid, parts of results, or slices of volumes."""

from __future__ import annotations

import copy
import itertools
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbshare._core.messages import cut
from nbshare._core.notebook.axes import GREY, points, room_of
from nbshare._core.notebook.charts import MAX_LINES, HistPainter, LinePainter, n_lines
from nbshare._core.notebook.image import ImagePainter
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.pointer import Cells
from nbshare._core.notebook.reading import Reader, is_missing, names_of, parts_of
from nbshare._core.notebook.values import AnyPainter, Painter, first_of

PAINTERS: dict[Any, Callable[..., Painter]] = {
    "line": LinePainter,
    "hist": HistPainter,
    "image": ImagePainter,
}
_MAX_PANELS = 12  # in a figure, as smaller ones would be illegible
_COLUMNS, _ROWS = 4, 3
_TITLE = 0.75  # share of a panel's width, as a legend or colour bar takes some
_MAX_NAME = 16  # characters at the axis of a panel, whose title has the whole name


@dataclass(frozen=True)
class Panel:
    """One of the panels: the text above it, its items, and its plot."""

    title: str
    items: NDArray[np.intp]
    plot: LivePlot


@dataclass(frozen=True)
class Panels:
    """The panels of a plot, the number of columns, and a remark on panels that are omitted.

    All panels have the same scale and one colour bar or legend, unless they show unlike parts.
    """

    panels: list[Panel]
    columns: int
    remark: str
    are_alike: bool = True


def panels_of(
    plot: LivePlot, partial: Any, present: NDArray[np.bool_], *, is_anew: bool
) -> tuple[Panels | None, tuple[NDArray[Any], Reader] | None]:
    """Return the panels of a plot, or None if it has one, and the first result and its reader.

    None stands for these if each panel has its own.
    """
    n = len(present)
    parts = part_panels(plot, partial, present, is_anew=is_anew)
    if parts is not None:
        firsts = [first_of(each.plot, partial, present, is_anew=is_anew) for each in parts.panels]
        return _with_further(parts, firsts, n), None
    like = first_of(plot, partial, present, is_anew=is_anew)
    if (panels := slice_panels(plot, like, n)) is not None:
        return panels, None
    return grid_panels(plot, like, n), like


def _with_further(parts: Panels, firsts: list[tuple[NDArray[Any], Reader]], n: int) -> Panels:
    """Return panels of parts, each split if it needs panels itself."""
    most = max(1, _MAX_PANELS // len(parts.panels))
    split = [
        slice_panels(panel.plot, like, n, most) or grid_panels(panel.plot, like, n, most)
        for panel, like in zip(parts.panels, firsts, strict=True)
    ]
    panels: list[Panel] = []
    for panel, further in zip(parts.panels, split, strict=True):
        panels += [panel] if further is None else further.panels
    for panel in panels:
        panel.plot._is_keyed = True
    remarks = dict.fromkeys([parts.remark, *(each.remark for each in split if each)])
    sizes = {len(each.panels) if each else 1 for each in split}
    columns = max(sizes) if len(sizes) == 1 < max(sizes) <= _COLUMNS else _columns(len(panels))
    return Panels(panels, columns, "".join(remarks), are_alike=False)


def part_panels(
    plot: LivePlot, partial: Any, present: NDArray[np.bool_], *, is_anew: bool
) -> Panels | None:
    """Return a panel for each part of a result, or None if one plot shows all parts.

    The parts are those of the first result, or of all results so far.
    """
    if isinstance(partial, np.ndarray) and plot.value is None and not partial.dtype.names:
        return None
    reader = Reader(plot.value)
    shown = (reader.shown(partial[i]) for i in np.flatnonzero(present).tolist())
    results = (result for result in shown if result is not None)
    parts = _parts(plot, list(results) if is_anew else [*islice(results, 1)])
    return None if parts is None else _of_parts(plot, parts, len(present))


def grid_panels(
    plot: LivePlot, like: tuple[NDArray[Any], Reader], n: int, most: int = _MAX_PANELS
) -> Panels | None:
    """Return a panel for each value of the axes of a grid that a plot does not show, or None.

    Parameters
    ----------
    plot
        The plot of the whole.
    like
        The first result and its reader, from `values.first_of`.
    n, most
        Number of items, and of panels at most.
    """
    shape, n_coords = like[0].shape[1:], len(plot._coords)
    if plot.kind == "hist":
        return None
    if plot.kind == "line":
        n_shown, has_own = 2 if n_lines(shape, like[1].names) == 1 else 1, plot.x is not None
    else:
        n_shown, has_own = max(2 - len(shape), 0), plot.y is not None and len(shape) < 2
        has_own |= plot.x is not None and not shape
        has_own |= plot.reduction != "mean" and n_shown == 0  # the user combines the images
    if has_own or n_coords <= n_shown:
        return None
    return _of_grid(plot, n_shown, n, most)


def slice_panels(
    plot: LivePlot, like: tuple[NDArray[Any], Reader], n: int, most: int = _MAX_PANELS
) -> Panels | None:
    """Return a panel for each slice of volumes, or None if the results are not volumes."""
    shape = like[0].shape[1:]
    if plot.kind != "image" or len(shape) != 3 or shape[2] in (3, 4):
        return None
    chosen, panels = _some(shape[0], most), []
    for k in chosen:
        own = copy.copy(plot)
        own.value, own._coords, own._is_keyed = _value_of_slice(plot.value, k), {}, False
        panels.append(Panel(f"{plot._of or 'result'}[{k}]", np.arange(n), own))
    remark = f", {len(chosen)} of {shape[0]} slices" if len(chosen) < shape[0] else ""
    return Panels(panels, _columns(len(panels)), remark)


def _value_of_slice(value: Callable[[Any], Any] | None, k: int) -> Callable[[Any], Any]:
    return lambda result: (result if value is None else value(result))[k]


def _parts(plot: LivePlot, results: list[Any]) -> dict[str, tuple[Any, ...] | None] | None:
    """Return the parts of results that need a panel each, or None if no panels are needed.

    The shape, kind and unit of each part are returned, or None for a part that cannot be drawn.
    """
    named: dict[str, Any] = {}
    for result in results:
        parts = parts_of(result)
        if parts is None:
            return None
        named |= {name: part for name, part in parts.items() if is_missing(named.get(name))}
    if len(named) < 2:
        return None
    kinds = {name: _kind_of(part) for name, part in named.items() if not is_missing(part)}
    if plot.kind == "hist" or len(set(kinds.values())) > 1:
        return kinds
    if plot.kind == "line":
        return kinds if len(named) > MAX_LINES or len(plot._coords) > 3 else None
    are_arrays = any(kind is not None and kind[0] for kind in kinds.values())
    return kinds if are_arrays or len(plot._coords) > 1 else None


def _kind_of(part: Any) -> tuple[Any, ...] | None:
    """Return the shape, kind and unit of a part of a result, or None if it cannot be drawn."""
    reader = Reader(None)
    try:
        read = reader.read([part])
    except (TypeError, ValueError, CannotDrawError):
        return None
    kind = "texts" if reader.texts else "numbers" if read.dtype.kind in "iufc" else read.dtype.kind
    return read.shape[1:], kind, reader.unit


def _of_parts(plot: LivePlot, parts: dict[str, tuple[Any, ...] | None], n: int) -> Panels | None:
    """Return a panel for each part that can be drawn, or None if there is no such part."""
    drawn = [name for name, kind in parts.items() if kind is not None][:_MAX_PANELS]
    left_out = [name for name in parts if name not in drawn]
    remark = f", without {', '.join(left_out)}" if left_out else ""
    panels = []
    for name in drawn:
        own, kind = copy.copy(plot), parts[name]
        own.value, own._of = _value_of_part(plot.value, name), cut(name, _MAX_NAME)
        if plot.kind == "image" and kind is not None and not (kind[0] or plot._coords):
            own.kind = "line"  # a number next to images
        panels.append(Panel(name, np.arange(n), own))
    return Panels(panels, _columns(len(panels)), remark, are_alike=False) if panels else None


def _value_of_part(value: Callable[[Any], Any] | None, name: str) -> Callable[[Any], Any]:
    def value_of_part(result: Any) -> Any:
        parts = parts_of(result if value is None else value(result))
        return None if parts is None else parts.get(name)

    return value_of_part


def _of_grid(plot: LivePlot, n_shown: int, n: int, most: int) -> Panels:
    """Return a panel of the first axes of a grid for each value of the further axes."""
    coords = [*plot._coords.items()]
    further = coords[n_shown:]
    lengths = [len(values) for _, values in further]
    limits = [_COLUMNS, _ROWS] if len(further) == 2 else [most] * len(further)
    sides = _sides([*map(min, lengths, limits)], most)
    chosen = [_some(*each) for each in zip(lengths, sides, strict=True)]
    numbers: Any = np.arange(n).reshape([len(values) for _, values in coords])
    texts = [[f"{name} = {text}" for text in names_of(values)] for name, values in further]
    own, of = copy.copy(plot), [plot._of] if plot._of else []
    own._coords, own._is_keyed = dict(coords[:n_shown]), False
    panels = [
        Panel(
            ", ".join([*of, *(text[k] for text, k in zip(texts, places[::-1], strict=True))]),
            numbers[(*[slice(None)] * n_shown, *places[::-1])].ravel(),
            own,
        )
        for places in itertools.product(*chosen[::-1])
    ]
    remark = "".join(
        f", {len(some)} of {len(values)} values of {name}"
        for (name, values), some in zip(further, chosen, strict=True)
        if len(some) < len(values)
    )
    columns, n_panels = len(chosen[0]), len(panels)
    is_table = len(further) > 1 and n_panels <= _COLUMNS * columns
    return Panels(panels, columns if is_table else _columns(n_panels), remark)


def _sides(lengths: list[int], most: int) -> list[int]:
    """Return the number of values to show of each axis, of which at most so many panels result."""
    sides = [1] * len(lengths)
    while True:
        can_grow = [
            k
            for k, side in enumerate(sides)
            if side < lengths[k] and math.prod(sides) // side * (side + 1) <= most
        ]
        if not can_grow:
            return sides
        sides[min(can_grow, key=lambda k: sides[k])] += 1


def _columns(n: int) -> int:
    return min(_COLUMNS, math.ceil(math.sqrt(n)))


def _some(n: int, most: int) -> list[int]:
    """Return at most so many of the first n numbers, evenly spaced, with both ends."""
    places = np.linspace(0, n - 1, min(n, most)).round().astype(int)
    return [*map(int, np.unique(places))]


class PanelsPainter(AnyPainter):
    """Draws one of nbshare's kinds of plots in several axes, on one scale if these are alike.

    Parameters
    ----------
    figure
        An empty figure.
    inputs, partial, present
        As in `Painter`.
    panels
        The panels.
    is_anew
        As in `values.first_of`.
    like
        The first result and its reader, for panels of a grid, which share the numbers of texts.
    """

    def __init__(
        self,
        figure: Any,
        inputs: Any,
        partial: Any,
        present: NDArray[np.bool_],
        panels: Panels,
        *,
        is_anew: bool,
        like: tuple[NDArray[Any], Reader] | None = None,
    ) -> None:
        self._panels, self._n = panels, len(present)
        self._limits: tuple[float, float] | None = None
        n, columns = len(panels.panels), min(panels.columns, len(panels.panels))
        self.n_rows = math.ceil(n / columns)
        axes = figure.subplots(self.n_rows, columns, squeeze=False).ravel()
        for unused in axes[n:]:
            unused.remove()
        self._painters: list[Painter] = []
        for panel, place in zip(panels.panels, axes, strict=False):
            own = like or first_of(panel.plot, partial, present, is_anew=is_anew)
            own_inputs = inputs if len(panel.items) == self._n and not panels.are_alike else None
            kind = PAINTERS[panel.plot.kind]
            painter = kind(place, panel.plot, own_inputs, len(panel.items), own)
            unbroken = panel.title.replace(" = ", "\xa0=\xa0")
            title = textwrap.fill(unbroken, int(_TITLE * room_of(place.xaxis))).replace("\xa0", " ")
            place.set_title(title, loc="left", fontsize=points(9), color=GREY)
            place.tick_params(labelsize=points(8))
            if panels.are_alike:
                place.label_outer()
            self._painters.append(painter)
        if panels.are_alike:
            self._painters[0].draw_key_of_all(list(axes[:n]))

    @property
    def problem(self) -> Exception | None:
        """An error that the user's ``value=`` raised for a result, or None."""
        return next(filter(None, (painter.problem for painter in self._painters)), None)

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Update the panels. Return the number of results shown, and a text with ``{}`` for it."""
        is_shown = present.copy()  # results without a panel count as shown
        for panel, painter in zip(self._panels.panels, self._painters, strict=True):
            items = panel.items
            is_array = isinstance(partial, np.ndarray)
            own = partial[items] if is_array else [partial[i] for i in items.tolist()]
            painter.take_in(own, present[items], final=final)
            is_shown[items] &= painter.cursor.taken
        ends = np.array([painter.ends for painter in self._painters])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        for painter in self._painters:
            if self._panels.are_alike and low <= high:
                painter.limits = self._limits or (low, high)
            painter.show(final=final)
        return int(np.count_nonzero(is_shown)), "{}" + self._panels.remark

    def cells(self) -> list[Cells]:
        """Return the values of all panels, for the pointer on a page."""
        return [cells for painter in self._painters for cells in painter.cells()]

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Prepare to read all results again, and show them on scales with these limits."""
        self._limits = limits
        for painter in self._painters:
            painter.begin_anew(limits)
