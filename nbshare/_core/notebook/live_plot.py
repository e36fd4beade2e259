"""LivePlot, the user's description of a plot of the results of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nbshare._core.functions.reference import check_called
from nbshare._core.messages import one_of
from nbshare._core.tracebacks import shown_from_its_calls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import FigureBase
else:  # for typing.get_type_hints, without Matplotlib
    Axes = Colormap = FigureBase = Any

KINDS = ("line", "image", "hist")
SCALES = ("linear", "log")
REDUCTIONS = ("mean", "sum", "min", "max", "last")
MAX_PLOTS = 6  # in two columns, as more do not fit on a screen

Draw: TypeAlias = Callable[[Any, Any], object]


class CannotDrawError(Exception):
    """Results do not suit the plot. The message says which results do."""


class NothingYetError(CannotDrawError):
    """A plot has nothing to draw, because all results so far are missing."""


@shown_from_its_calls
class LivePlot:
    """Describe a plot that shows the results of a run while they arrive.

    Pass it as ``plot=``. ``plot="line"`` is short for ``plot=LivePlot("line")``. A table in
    ``notebooks/details.md`` shows how each kind draws results of each shape. `explore` shows one
    result at a time.

    Examples
    --------
    A line with a name and a unit, on a logarithmic scale:

    >>> from nbshare import LivePlot, grid, parallel_map
    >>> plot = LivePlot("line", label="height", unit="m", scale="log")
    >>> heights = parallel_map(abs, [-1.0, 4.0, 9.0], plot=plot)

    An image over a grid, of one number from each result:

    >>> plot = LivePlot("image", value=lambda result: result.imag, xunit="s")
    >>> results = parallel_map(complex, grid(real=[1, 2, 3], imag=[4, 5]), plot=plot)

    A plot drawn by a function of your own:

    >>> plot = LivePlot(lambda ax, partial: ax.plot(partial, "o"), title="heights")

    Parameters
    ----------
    kind : {"line", "image", "hist"} or callable, default "line"
        The kind of plot, or a function ``f(ax, partial)`` that draws the results so far into
        matplotlib Axes.
    x, y : array_like, optional
        Coordinates: `x` for the items of a line or the columns of an image, `y` for its rows.
    title, label, unit, xlabel, xunit, ylabel, yunit : str, optional
        Title of the plot, name and unit of the results, and names and units of the axes. At the
        axis of the results, `label` comes first.
    value : callable, optional
        ``value(result)`` returns the part of a result to draw.
    reduction : {"mean", "sum", "min", "max", "last"}, default "mean"
        How several images, or many values, are combined into one.
    limits : (low, high) or "robust", optional
        Range of the results or of their colours. ``"robust"`` omits 2 % at each end. Default: all
        finite results.
    scale : {"linear", "log"}, default "linear"
        Scale of the results.
    threshold : float, optional
        A value to mark in a plot of lines, such as the one that ``until=`` waits for.
    cmap : str or matplotlib Colormap, optional
        Colours of an image.
    bins : int, optional
        Number of bars of a histogram, 1 to 1000.
    interval_s : float, default 0.25
        Minimum time between two frames, in seconds. Drawing takes at most 15 % of the time.
    """

    __module__ = "nbshare"

    _items: object = None  # None for a run of another process
    # Axes of a grid of items, by name.
    _coords = cast("Mapping[str, npt.NDArray[Any]]", MappingProxyType({}))
    _is_keyed = True  # it has a colour bar or legend of its own
    _of = ""  # the part of a result that a panel shows
    _axes = cast("Sequence[Any]", ())  # axes of one element, if a line shows its elements

    def __init__(
        self,
        kind: Literal["line", "image", "hist"] | Callable[[Axes, Any], object] = "line",
        *,
        x: npt.ArrayLike | None = None,
        y: npt.ArrayLike | None = None,
        title: str = "",
        label: str = "",
        unit: str = "",
        xlabel: str = "",
        xunit: str = "",
        ylabel: str = "",
        yunit: str = "",
        value: Callable[[Any], Any] | None = None,
        reduction: Literal["mean", "sum", "min", "max", "last"] = "mean",
        limits: tuple[Any, Any] | Literal["robust"] | None = None,
        scale: Literal["linear", "log"] = "linear",
        threshold: float | None = None,
        cmap: str | Colormap | None = None,
        bins: int | None = None,
        interval_s: float = 0.25,
    ) -> None:
        self.kind = _checked_kind(kind)
        self.x, self.y = _checked_axis("x", x), _checked_axis("y", y)
        if kind == "line":  # the results are along y
            label, unit = label or ylabel, unit or yunit
        elif kind == "hist":
            label, unit = label or xlabel, unit or xunit
        self.title, self.label, self.unit = title, label, unit
        self.xlabel, self.xunit = xlabel, xunit
        self.ylabel, self.yunit = ylabel, yunit
        if value is not None:
            check_called("value", value, "result")
        self.value = value
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction={reduction!r} is not allowed: pass {one_of(REDUCTIONS)}")
        self.reduction = reduction
        self.limits = _checked_limits(limits)
        if scale not in SCALES:
            raise ValueError(f"scale={scale!r} is not allowed: pass 'linear' or 'log'")
        if scale == "log" and isinstance(self.limits, tuple) and not self.limits[0] > 0:
            raise ValueError(f"limits={limits!r} is not allowed with scale='log': pass low > 0")
        self.scale = scale
        self.threshold = None if threshold is None else _checked_threshold(threshold, self)
        if not (cmap is None or isinstance(cmap, str) or callable(cmap)):
            raise TypeError(f"cmap={cmap!r} is not allowed: pass the name of a colour map")
        self.cmap = cmap
        if bins is not None and not (isinstance(bins, int) and 1 <= bins <= 1000):
            raise ValueError(f"bins={bins!r} is not allowed: pass a number from 1 to 1000")
        self.bins = bins
        if not (isinstance(interval_s, int | float) and 0 < interval_s < math.inf):
            raise ValueError(
                f"interval_s={interval_s!r} is not allowed: pass a number of seconds above 0"
            )
        self.interval_s = float(interval_s)

    def __repr__(self) -> str:
        parts = {name: repr(value) for name, value in vars(self).items()}
        default = {name: repr(value) for name, value in vars(LivePlot()).items()}
        kind = parts.pop("kind", "")
        given = [f"{k}={part}" for k, part in parts.items() if part != default.get(k)]
        return f"{type(self).__name__}({', '.join([kind, *given])})"

    def make_axes(self, figure: FigureBase) -> Any:
        """Make the axes, once, before the first frame.

        Examples
        --------
        Two axes side by side, of which the left one is wider:

        >>> from nbshare import LivePlot
        >>> class Wide(LivePlot):
        ...     def make_axes(self, figure):
        ...         return figure.subplots(1, 2, width_ratios=[3, 1])

        Axes for directions:

        >>> class Compass(LivePlot):
        ...     def make_axes(self, figure):
        ...         return figure.add_subplot(projection="polar")
        >>> from matplotlib.figure import Figure
        >>> Compass().make_axes(Figure()).name
        'polar'

        Parameters
        ----------
        figure : matplotlib Figure or SubFigure
            An empty figure, 760 × 440 pixels at 100 dots per inch if there is only one plot.

        Returns
        -------
        Axes, array or dict of Axes
            Passed to `draw`.
        """
        return figure.add_subplot()

    def draw(self, axes: Any, partial: Any) -> None:
        """Draw one frame. Override this method to draw your own.

        Examples
        --------
        Points instead of a line:

        >>> from nbshare import LivePlot
        >>> class Points(LivePlot):
        ...     def draw(self, axes, partial):
        ...         axes.plot(partial, "o", markersize=3)
        ...         axes.set(xlabel="run", ylabel="energy (J)")

        Results with an error bar, ``(mean, std)`` for each item:

        >>> class ErrorBars(LivePlot):
        ...     def draw(self, axes, partial):
        ...         axes.errorbar(range(len(partial)), partial[:, 0], partial[:, 1], fmt=".")
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> plot, figure = ErrorBars(), Figure()
        >>> plot.draw(figure.subplots(), np.ma.masked_invalid([[1.0, 0.1], [np.nan, np.nan]]))

        Parameters
        ----------
        axes : Axes, array or dict of Axes
            The axes that `make_axes` returned, cleared.
        partial : numpy.ma.MaskedArray or list
            The results so far: an array of shape ``(n, *shape)``, masked where results are missing,
            or a list with `nbshare.MISSING` in its gaps.
        """
        cast(Draw, self.kind)(axes, partial)

    @property
    def _is_drawn_by_user(self) -> bool:
        """Whether the user's code draws the plot (bool), and not one of nbshare's kinds."""
        return callable(self.kind) or type(self).draw is not LivePlot.draw


OnePlot: TypeAlias = Literal["line", "image", "hist"] | LivePlot | Callable[..., Any]
Plot: TypeAlias = OnePlot | Sequence[OnePlot] | None


def as_plots(plot: Any) -> list[LivePlot]:
    """Return one LivePlot for each plot of ``plot=``.

    Raises
    ------
    TypeError, ValueError
        If ``plot=`` has another type or value.
    """
    if isinstance(plot, list | tuple):
        if not 1 <= len(plot) <= MAX_PLOTS:
            raise ValueError(f"plot= takes 1 to {MAX_PLOTS} plots in a list, not {len(plot)}")
    else:
        plot = [] if plot is None else [plot]
    return [each if isinstance(each, LivePlot) else LivePlot(each) for each in plot]


def _checked_kind(kind: Any) -> str | Draw:
    if callable(kind) and not isinstance(kind, type):
        check_called("plot", kind, "ax", "partial")
    if kind in KINDS if isinstance(kind, str) else callable(kind) and not isinstance(kind, type):
        return cast("str | Draw", kind)
    error = ValueError if isinstance(kind, str) else TypeError
    hint = f". Did you mean {kind.__name__}()?" if isinstance(kind, type) else ""
    raise error(
        f"plot={kind!r} is not allowed: pass 'line', 'image', 'hist', a LivePlot, a callable(ax, "
        f"partial), a list of these, or None{hint}"
    )


def _checked_limits(limits: Any) -> Any:
    if limits is None or (isinstance(limits, str) and limits == "robust"):
        return limits
    try:
        ends = np.asarray(limits)
        fits = ends.shape == (2,) and ends.dtype.kind in "iufMm" and np.isfinite(ends).all()
    except ValueError:  # lists of several lengths
        fits = False
    if not (fits and ends[0] < ends[1]):
        raise ValueError(
            f"limits={limits!r} is not allowed: pass (low, high), two finite numbers or dates with "
            "low < high, or 'robust', or None for all finite results"
        )
    return tuple(ends)


def _checked_threshold(threshold: Any, plot: LivePlot) -> float:
    if plot.kind != "line":
        raise ValueError(
            f"threshold={threshold!r} is not allowed with kind={plot.kind!r}: only plots of lines "
            "show it"
        )
    low, high = plot.limits if isinstance(plot.limits, tuple) else (-math.inf, math.inf)
    try:
        is_shown = math.isfinite(threshold) and low <= threshold <= high
        is_shown &= threshold > 0 or plot.scale != "log"
    except TypeError:  # not a number, or limits that are dates
        is_shown = False
    if not is_shown:
        raise ValueError(
            f"threshold={threshold!r} is not allowed: pass a finite number, within limits= and "
            "above 0 with scale='log', if these are given"
        )
    return float(threshold)


def _checked_axis(name: str, values: Any) -> npt.NDArray[Any] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biufMm":
        raise TypeError(
            f"{name}= must be a one-dimensional array of numbers or dates (numpy.datetime64), not "
            f"an array of shape {array.shape} and dtype {array.dtype}"
        )
    return array
