"""Pictures that the user's own code draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from matplotlib.axes import Axes

from nbshare.notebook.axes import named

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase
    from numpy.typing import NDArray

    from nbshare.notebook.live_plot import LivePlot


class FunctionPainter:
    """The user's ``callable(ax, partial)`` or `LivePlot.draw`, in the user's own style."""

    style: str | None = None
    layout: Literal["constrained", "compressed"] = "constrained"
    palette = None

    def __init__(self, figure: FigureBase, plot: LivePlot) -> None:
        self._figure, self._plot = figure, plot
        self._axes = plot.make_axes(figure)
        self._own = _all_axes(self._axes)

    @property
    def n_axes(self) -> int:
        """How many axes the user has asked for."""
        return len(self._own)

    @property
    def made_more(self) -> bool:
        """Whether the last frame made further axes, such as a colour bar."""
        return len(self._all()) > len(self._own)

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:  # noqa: ARG002
        """Clear the axes and call the function."""
        for other in set(self._all()).difference(self._own):
            other.remove()
        for axes in self._own:
            axes.clear()
        self._plot.draw(self._axes, partial)
        if isinstance(self._axes, Axes):
            self._label(self._axes)
        return int(np.count_nonzero(present)), "{}"

    def _all(self) -> list[Axes]:
        return list(cast(Any, self._figure).axes)

    def _label(self, axes: Axes) -> None:
        """Write the plot's labels where the function has written none."""
        plot = self._plot
        if not axes.get_xlabel():
            axes.set_xlabel(named(plot.xlabel, plot.xunit))
        if not axes.get_ylabel():
            axes.set_ylabel(named(plot.label or plot.ylabel, plot.unit or plot.yunit))


def _all_axes(made: Any) -> list[Axes]:
    """Return the Axes in what `LivePlot.make_axes` has returned."""
    axes = list(made.values() if isinstance(made, Mapping) else np.ravel(made))
    if not axes or not all(isinstance(each, Axes) for each in axes):
        raise TypeError(
            f"LivePlot.make_axes has to return Axes, or an array or dict of them, not {made!r}"
        )
    return axes
