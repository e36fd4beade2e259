"""Draws the plots of the user's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.text import Text
from numpy.typing import NDArray

from nbshare._core.engine.results import MISSING
from nbshare._core.notebook.live_plot import LivePlot
from nbshare._core.notebook.values import GREY, AnyPainter, dress, named


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
