"""LivePlot: what is drawn of a map's results while they come in, in the user's terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nbshare.tracebacks import shown_from_the_call

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

__all__ = ["KINDS", "REDUCTIONS", "CannotDrawError", "LivePlot", "Plot", "as_plots"]

KINDS = ("line", "image", "hist")
REDUCTIONS = ("mean", "sum", "min", "max", "last")
MAX_PLOTS = 6  # in two columns: more do not fit on a screen

Draw: TypeAlias = Callable[[Any, Any], object]


class CannotDrawError(Exception):
    """These results do not suit the plot; the message tells the user what would."""


class LivePlot:
    """What is drawn of a map's results while they come in.

    Given to `parallel_map` as ``plot=``; ``plot="line"`` is short for ``plot=LivePlot("line")``.
    To draw something else, subclass it: override `draw`, and `make_axes` for several axes.

    Parameters
    ----------
    kind : {"line", "image", "hist"} or callable, default "line"
        ``"line"``: results against the items, if those are numbers or dates, else against their
        index; open where results are still missing. Results of up to 8 elements make a line each.
        ``"image"``: an image for results that are images (H, W) or colour images (H, W, 3 or 4),
        brought together by `reduction`; rows below each other for results (k,); numbers as pixels.
        ``"hist"``: how often which value has come.
        ``callable(ax, partial)``: draws into matplotlib Axes, cleared before each frame, the
        results so far: a masked array of shape ``(n, *shape)``, or a list with `nbshare.MISSING`.
    x : array_like, shape (n,), optional
        Numbers or dates. Of a line, what the results are drawn against: one value per item. Of an
        image, the coordinates of its columns, evenly spaced.
    y : array_like, optional
        Coordinates of an image's rows, evenly spaced. Results that are numbers make an image of
        ``len(y)`` rows of ``len(x)`` items. If `xunit` and `yunit` are the same, both axes have
        the same scale, unless that would make a strip.
    title : str, optional
        Above a plot that stands alone. Default: the label of the progress display.
    label, unit : str, optional
        What the results are, and their unit: at the y axis of a line, the x axis of a histogram,
        the colour bar of an image.
    xlabel, xunit : str, optional
        Of the x axis of a line or image.
    ylabel, yunit : str, optional
        Of the y axis of an image.
    value : callable, optional
        ``value(result)`` gives what is drawn of one result, a number or an array: ``np.angle``,
        or ``lambda result: result["energy"]``. Called here, once per result.
    reduction : {"mean", "sum", "min", "max", "last"}, default "mean"
        How a stack of images becomes one; how results of more than 8 elements become one number
        of a line.
    bins : int, optional
        Bars of a histogram. Default: as ``bins="auto"`` of NumPy, at most 100.
    interval : float, default 0.25
        Seconds from one frame to the next at least. Frames are further apart where drawing would
        take more than 15 % of the time, or 5 % where workers fill all CPUs.

    Raises
    ------
    TypeError, ValueError
        An argument is not as described.

    See Also
    --------
    parallel_map

    Notes
    -----
    Of complex results the magnitude is drawn, of timedeltas the seconds, of bools 0 and 1.
    nbshare's own plots have no background, in greys that are readable in light and dark themes. A
    function of yours draws on white in the same style, or in yours if you have changed
    ``matplotlib.rcParams``.
    All drawing happens in the thread that waits for the map, with matplotlib's Agg and without
    pyplot. One LivePlot may be given to several maps, also at once: what belongs to a picture is
    kept elsewhere. `draw` should not change `self`.

    Examples
    --------
    >>> import math
    >>> from nbshare import LivePlot, parallel_map
    >>> plot = LivePlot("line", label="height", unit="m", xlabel="time", xunit="s")
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], plot=plot)
    SharedArray([1., 2., 3.])

    Axes of one's own:

    >>> class MeanAndSpread(LivePlot):
    ...     def make_axes(self, figure):
    ...         return figure.subplots(1, 2)
    ...
    ...     def draw(self, axes, partial):
    ...         axes[0].plot(partial.mean(axis=0))
    ...         axes[1].plot(partial.std(axis=0))
    """

    @shown_from_the_call
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
        bins: int | None = None,
        interval: float = 0.25,
    ) -> None:
        self.kind = _checked_kind(kind)
        self.x, self.y = _checked_axis("x", x), _checked_axis("y", y)
        self.title, self.label, self.unit = title, label, unit
        self.xlabel, self.xunit = xlabel, xunit
        self.ylabel, self.yunit = ylabel, yunit
        if value is not None and not callable(value):
            raise TypeError(f"value={value!r} is not allowed: pass a function of one result.")
        self.value = value
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction={reduction!r} is none of {', '.join(REDUCTIONS)}.")
        self.reduction = reduction
        if bins is not None and not (isinstance(bins, int) and 1 <= bins <= 1000):
            raise ValueError(f"bins={bins!r} is not allowed: pass a number from 1 to 1000.")
        self.bins = bins
        if not (isinstance(interval, int | float) and 0 < interval < math.inf):
            raise ValueError(f"interval={interval!r} is not allowed: pass seconds, more than 0.")
        self.interval = float(interval)

    def __repr__(self) -> str:
        parts = {name: repr(value) for name, value in vars(self).items()}
        default = {name: repr(value) for name, value in vars(LivePlot()).items()}
        kind = parts.pop("kind", "")
        given = [f"{k}={part}" for k, part in parts.items() if part != default.get(k)]
        return f"{type(self).__name__}({', '.join([kind, *given])})"

    def make_axes(self, figure: FigureBase) -> Any:
        """Make the axes, once, before the first frame.

        Parameters
        ----------
        figure : matplotlib Figure or SubFigure
            Empty; 760 × 440 pixels where the plot stands alone, at 100 dots per inch.

        Returns
        -------
        Axes, array or dict of Axes
            What `draw` gets.
        """
        return figure.add_subplot()

    def draw(self, axes: Any, partial: Any) -> None:
        """Draw one frame; to be overridden.

        Parameters
        ----------
        axes
            What `make_axes` has returned, cleared.
        partial : numpy.ma.MaskedArray or list
            The results so far, of shape ``(n, *shape)``, masked where they are missing; a list
            has `nbshare.MISSING` there.
        """
        cast(Draw, self.kind)(axes, partial)

    @property
    def is_drawn_by_user(self) -> bool:
        """Whether `draw` makes the picture, not one of nbshare's kinds."""
        return callable(self.kind) or type(self).draw is not LivePlot.draw


Plot: TypeAlias = (
    "str | LivePlot | Callable[..., Any] | Sequence[str | LivePlot | Callable[..., Any]] | None"
)


def as_plots(plot: Any) -> list[LivePlot]:
    """Return what ``plot=`` asks for, one LivePlot for each picture.

    Raises
    ------
    TypeError, ValueError
        If it asks for something else.
    """
    if isinstance(plot, list | tuple):
        if not 1 <= len(plot) <= MAX_PLOTS:
            raise ValueError(f"plot= takes 1 to {MAX_PLOTS} plots in a list, not {len(plot)}.")
    else:
        plot = [] if plot is None else [plot]
    return [each if isinstance(each, LivePlot) else LivePlot(each) for each in plot]


def _checked_kind(kind: Any) -> str | Draw:
    if kind in KINDS if isinstance(kind, str) else callable(kind) and not isinstance(kind, type):
        return cast("str | Draw", kind)
    error = ValueError if isinstance(kind, str) else TypeError
    hint = f" Did you mean {kind.__name__}()?" if isinstance(kind, type) else ""
    raise error(
        f"plot={kind!r} names no plot: pass 'line', 'image', 'hist', a LivePlot, a "
        f"callable(ax, partial), a list of these, or None.{hint}"
    )


def _checked_axis(name: str, values: Any) -> npt.NDArray[Any] | None:
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biufMm":
        raise TypeError(
            f"{name}= has to be one-dimensional, of numbers or dates (numpy.datetime64); it is an "
            f"array of shape {array.shape} and dtype {array.dtype}."
        )
    return array
