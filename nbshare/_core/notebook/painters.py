"""The painter of each plot: the user's function, or one of nbshare's kinds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.text import Text
from numpy.typing import NDArray

from nbshare._core.engine.results import MISSING
from nbshare._core.notebook.axes import GREY, dress, named
from nbshare._core.notebook.image import ImagePainter, MosaicPainter
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.panels import PAINTERS, PanelsPainter, panels_of
from nbshare._core.notebook.reading import (
    Reader,
    ResultAxis,
    axes_of,
    described,
    parts_of,
    unmasked,
)
from nbshare._core.notebook.values import AnyPainter, first_of
from nbshare._core.shapes.tiles import Mosaic, Tiles


class FunctionPainter(AnyPainter):
    """Draws with the user's ``callable(ax, partial)`` or `LivePlot.draw`."""

    def __init__(self, figure: Any, plot: LivePlot, *, is_styled: bool) -> None:
        self._figure, self._plot, self._is_styled = figure, plot, is_styled
        self._axes = plot.make_axes(figure)
        self._own = _all_axes(self._axes)

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:  # noqa: ARG002
        """Clear the axes and call the function."""
        for other in set(self._figure.axes).difference(self._own):
            other.remove()
        for axes in self._own:
            axes.clear()
            if self._is_styled:
                dress(axes)
        self._plot.draw(self._axes, _masked(partial) if isinstance(partial, list) else partial)
        if isinstance(self._axes, Axes):
            self._label(self._axes)
        if self._is_styled and mpl.rcParams["text.color"] != GREY:
            self._dress_drawn(mpl.rcParams["text.color"])
        return int(np.count_nonzero(present)), "{}"

    def _dress_drawn(self, default: Any) -> None:
        """Colour texts that a function has drawn in the background, without the style."""
        for axes in set(self._figure.axes).difference(self._own):
            dress(axes)  # a colour bar's
        for text in self._figure.findobj(Text):
            if text.get_color() == default:
                text.set_color(GREY)
        for legend in self._figure.findobj(Legend):
            legend.set_frame_on(False)

    def _label(self, axes: Axes) -> None:
        """Set labels of the plot that the function has not set."""
        plot = self._plot
        if not axes.get_xlabel():
            axes.set_xlabel(named(plot.xlabel, plot.xunit))
        if not axes.get_ylabel():
            axes.set_ylabel(named(plot.label or plot.ylabel, plot.unit or plot.yunit))


def _masked(results: list[Any]) -> Any:
    """Return numbers, or tuples of one length, as a masked array, and other results unchanged."""
    places = [i for i, result in enumerate(results) if result is not MISSING]
    there = [results[i] for i in places]
    if not {*map(type, there)} <= {tuple, float, int, bool, complex}:
        return results
    try:
        rows = np.asarray(there)
    except ValueError:  # tuples of several lengths
        return results
    if rows.dtype.kind not in "biufc":
        return results
    whole = np.ma.zeros((len(results), *rows.shape[1:]), rows.dtype)
    whole[:] = np.ma.masked
    whole[places] = rows
    return whole


def _all_axes(made: Any) -> list[Axes]:
    """Return the Axes that `LivePlot.make_axes` returned, as a list."""
    axes = list(made.values() if isinstance(made, Mapping) else np.ravel(made))
    if not axes or not all(isinstance(each, Axes) for each in axes):
        raise TypeError(
            f"LivePlot.make_axes must return Axes, or an array or dict of them, not {made!r}"
        )
    return axes


def painter_of(
    figure: Any,
    plot: LivePlot,
    inputs: Any,
    partial: Any,
    present: NDArray[np.bool_],
    *,
    is_anew: bool,
) -> AnyPainter:
    """Return the painter of a plot of one of nbshare's kinds."""
    kind = PAINTERS[plot.kind]
    like: tuple[NDArray[Any], Reader] | None
    if isinstance(partial, Mosaic):
        if kind is ImagePainter:
            return MosaicPainter(figure.add_subplot(), plot, inputs, partial, present)
        plot, inputs = _of_tiles(plot) if _shows_tiles(plot, partial) else of_elements(plot)
        partial, present = rows_of(plot, partial, present)
        like = first_of(plot, partial, present, is_anew=is_anew)
        return kind(figure.add_subplot(), plot, inputs, len(present), like)
    if isinstance(inputs, Tiles):
        raise CannotDrawError(
            f"plot={plot.kind!r} needs results of tiles that form one array. These results differ "
            "in dtype or in their further axes. The run continues without this plot."
        )
    panels, like = panels_of(plot, partial, present, is_anew=is_anew)
    if panels is None:
        return kind(figure.add_subplot(), plot, inputs, len(present), like)
    given = (figure, inputs, partial, present, panels)
    return PanelsPainter(*given, is_anew=is_anew, like=like)


def _shows_tiles(plot: LivePlot, partial: Mosaic) -> bool:
    """Return whether a plot shows one number for each tile, not the elements of the whole array."""
    is_line = plot.kind == "line" and not plot._is_drawn_by_user
    return is_line and len(partial.layout.whole) > 1


def _of_tiles(plot: LivePlot) -> tuple[LivePlot, None]:
    """Return a line plot of one number for each tile, which have no coordinates."""
    own = copy.copy(plot)
    own.xlabel, own._of = plot.xlabel or "tile", "tile"
    return own, None


def rows_of(
    plot: LivePlot, partial: Any, present: NDArray[np.bool_]
) -> tuple[Any, NDArray[np.bool_]]:
    """Return the rows of results that a plot draws, and flags of those that are complete.

    They are the results themselves, except for tiles.
    """
    is_image = plot.kind == "image" and not plot._is_drawn_by_user
    if is_image or not isinstance(partial, Mosaic):
        return partial, present
    if _shows_tiles(plot, partial):
        return [partial[i] for i in range(len(partial))], present
    whole = partial.image()
    mask: Any = np.ma.getmaskarray(whole).reshape(len(whole), -1)
    return whole, ~mask.any(axis=1)


def of_elements(plot: LivePlot, whole: Any = None) -> tuple[LivePlot, Any]:
    """Return a copy of a plot, for the elements of one result, and their coordinates, if any."""
    plot = copy.copy(plot)
    if plot.kind != "line":
        return plot, None
    axis, *plot._axes = axes_of(whole) or [ResultAxis("", "", None)]
    name, unit = described(whole)
    is_row = getattr(whole, "ndim", 0) > 1 and all(each.values is None for each in plot._axes)
    plot._of, plot.unit = name or ("row" if is_row else ""), plot.unit or unit
    plot.xlabel, plot.xunit = plot.xlabel or axis.name or "element", plot.xunit or axis.unit
    return plot, axis.values


def rows_of_one(plot: LivePlot, value: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return one result as the only row, or its elements as rows, for lines.

    The user's function gets the result itself.
    """
    if plot._is_drawn_by_user:
        return value, np.ones(1, np.bool_)
    rows: Any = [value]
    if plot.kind == "line" and plot.value is None and parts_of(value) is None and np.ndim(value):
        rows = np.asarray(unmasked(value))
    return rows, np.ones(len(rows), np.bool_)
