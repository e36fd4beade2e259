"""`explore` shows results one at a time, also those of a running job.

In JupyterLab and Notebook, the cell has three outputs::

    words and style   for the notebook's file
    the panel         ipywidgets, until the kernel ends
    the plot          an ordinary PNG: saved in the file

A style sheet hides the plot while the panel exists. Without the panel, it hides the output of the
panel, where JupyterLab would write "Error displaying widget". Other front ends get panel and plot
as two forms of one output. If no page shows widgets, the plot is shown with a sentence.

Moving a slider only records the wanted result. One thread per panel draws: a quick plot while the
slider moves, and a sharp one when it rests, which is also saved.
"""

from __future__ import annotations

import copy
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare._core.interrupts import import_whole, start_thread
from nbshare._core.jobs.job import Job
from nbshare._core.messages import warn
from nbshare._core.notebook.environment import (
    JUPYTER,
    cell_id,
    cell_number,
    front_end,
    is_static,
    surroundings,
)
from nbshare._core.notebook.live_plot import LivePlot
from nbshare._core.notebook.page import POINTER
from nbshare._core.tracebacks import shown_from_the_call
from nbshare.errors import DisplayWarning

if TYPE_CHECKING:
    from nbshare._core.notebook.figure import Frame

PlotKind = Literal["image", "line", "hist"]

# Number of results that set the scale, and numbers of each that set a robust scale.
_MAX_SEEN, _MAX_NUMBERS = 64, 2000
_INTERVAL_S = 0.1  # between two plots, and between checks of a running job
_REST_S = 0.4  # after a move, when a sharp plot is worth its time

_WORDS = "To choose other results, run this cell in JupyterLab, Notebook 7 or VS Code."
_CHILD = ".jp-OutputArea-child"
_STYLE = f"""<style>
{_CHILD}:has(.nbshare-words):has(+ {_CHILD} .nbshare-panel),
{_CHILD}:has(.nbshare-words) + {_CHILD}:not(:has(.nbshare-panel)),
{_CHILD}:has(.nbshare-words) + {_CHILD}:has(.nbshare-panel) + {_CHILD} {{display: none}}
</style>"""
# For screen readers, ipywidgets neither names the handles of its sliders nor says their values.
_NAMES = """<script>(area => new MutationObserver(() => {
  for (const slider of area.querySelectorAll('.nbshare-panel .widget-slider')) {
    const handle = slider.querySelector('.noUi-handle');
    const text = part => slider.querySelector(part)?.textContent ?? '';
    handle?.setAttribute('aria-label', text('label'));
    handle?.setAttribute('aria-valuetext', text('.widget-readout'));
  }
}).observe(area, {childList: true, subtree: true}))(
  document.currentScript.closest('.jp-OutputArea'))</script>"""


@shown_from_the_call
def explore(
    results: Any,
    *,
    kind: PlotKind | None = None,
    axes: Mapping[str, npt.ArrayLike] | None = None,
    plot: LivePlot | None = None,
) -> None:
    """Show results one at a time in a notebook, with a slider to choose among them.

    Nothing is copied, because each result is read from memory when it is drawn. The saved notebook
    keeps the last plot.

    Examples
    --------
    Six images over a grid of two axes, in a notebook:

    >>> import numpy as np
    >>> import nbshare
    >>> images = np.random.default_rng(1).random((6, 20, 30))
    >>> axes = {"azimuth": [0, 120, 240], "height": [10, 20]}
    >>> nbshare.explore(images, axes=axes)  # doctest: +SKIP

    With a label, a unit and another kind of plot:

    >>> plot = nbshare.LivePlot(label="horizon", unit="°")
    >>> nbshare.explore(images, kind="hist", plot=plot)  # doctest: +SKIP

    Parameters
    ----------
    results : array_like of shape (n, *shape), list of arrays, or Job
        Results of `parallel_map`, or a job, which may still be running. See `Job.explore`. Results
        in a list may have several shapes.
    kind : {"image", "line", "hist"}, optional
        The way to draw one result. Default: ``"image"`` for results of shape (H, W) or, in colour,
        (H, W, 3) or (H, W, 4), and ``"line"`` for one-dimensional results.
    axes : mapping of str to array_like, optional
        Values of each axis, by its name, for results over a grid. The last axis varies fastest, as
        in `itertools.product`. The product of the lengths must be ``n``. Each axis gets a slider.
    plot : LivePlot, optional
        Labels, units, coordinates, `limits` and `value` of the plot. Its own kind is not used.

    Raises
    ------
    TypeError
        If the results are not arrays, or are single numbers.
    ValueError
        If there are no results, their shape does not fit `axes` or `kind`, or a value is not
        allowed.

    See Also
    --------
    Job.explore : the same for a job.
    LivePlot : labels and units.
    """
    if kind not in (None, "image", "line", "hist"):
        raise ValueError(f"kind={kind!r} is not allowed: pass 'image', 'line', 'hist' or None")
    if not (plot is None or isinstance(plot, LivePlot)):
        raise TypeError(f"plot={plot!r} is not allowed: pass a LivePlot with the labels, or None")
    coords: Any = getattr(results._inputs if isinstance(results, Job) else results, "coords", None)
    if isinstance(results, Job):
        source: Any = results
    elif coords is not None and results.shape[: len(coords)] == tuple(map(len, coords.values())):
        source = finished(results.reshape(-1, *results.shape[len(coords) :]))
    else:
        source, coords = finished(results), None
    view = ResultGrid(source, kind, plot or LivePlot(), axes or coords or {})
    if view.has(view.first):
        view.pick(view.first)  # refuses results that cannot be drawn
    if surroundings() != "kernel":
        warn("explore() shows its panel in a Jupyter notebook: call it in a cell", DisplayWarning)
    elif front_end() is not None and not is_static():
        Panel(view).display()
    else:  # no front end that shows widgets
        if not is_static():
            _show({"text/plain": _WORDS})
        _show(*view.draw(view.first, sharp=True).bundle)


def finished(results: Any) -> Any:
    """Wrap complete results with the attributes of a job."""
    if not isinstance(results, np.ndarray | list) or getattr(results, "ndim", 1) == 0:
        raise _no_array(f"of type {type(results).__name__}")
    if not len(results) or not getattr(results, "size", True):
        raise ValueError(f"explore() has nothing to show: results of shape {np.shape(results)}")
    present = np.ones(len(results), np.bool_)
    if isinstance(results, np.ndarray) and not results.dtype.names:
        present &= ~np.ma.getmaskarray(results).reshape(len(results), -1).all(axis=1)
    n = len(present)
    job = SimpleNamespace(label="", state="done", n_items=n, _present=present)
    job.n_done = int(np.count_nonzero(present))
    job._partial, job.running = lambda: results, lambda: False
    return job


def _no_array(what: str) -> TypeError:
    return TypeError(
        f"explore() needs results that are arrays, but these are {what}. Pass "
        "plot=LivePlot(value=...) with a function that returns an array of a result."
    )


def _is_gap(result: Any) -> bool:
    from nbshare._core.notebook.reading import is_missing

    return is_missing(result) or isinstance(result, BaseException)


class ResultGrid:
    """Results, their places on the axes, and the plot of each.

    Parameters
    ----------
    source
        A job, or complete results from `finished`.
    kind, plot, axes
        The arguments of `explore`.
    """

    def __init__(
        self, source: Any, kind: PlotKind | None, plot: LivePlot, axes: Mapping[str, npt.ArrayLike]
    ) -> None:
        self.source, self._kind, self._plot = source, kind, plot
        self._drawn_like: object = None
        self._limits, self._n_seen = (math.inf, -math.inf), 0
        self.axes = {name: np.ravel(np.asarray(values)) for name, values in axes.items()}
        self.shape = tuple(len(values) for values in self.axes.values())
        if axes and math.prod(self.shape) != source.n_items:
            lengths = " × ".join(map(str, self.shape))
            n = "an unknown number of" if source.n_items is None else source.n_items
            raise ValueError(f"axes= has {lengths} values, but there are {n} results")

    @property
    def n(self) -> int:
        """Number of items, at least 1. For a generator, the number so far."""
        return max(1, self.source.n_items or len(self.source._present))

    @property
    def first(self) -> int:
        """Index of the first result that has arrived, 0 if no result has."""
        there = np.flatnonzero(self.source._present).tolist() if self.source.n_done else []
        partial = self.source._partial()
        return next((item for item in there if not _is_gap(partial[item])), 0)

    def name(self, item: int) -> str:
        """Return the title of a result: the job's name, and its place on the axes or its index."""
        places = zip(self.axes.items(), self.places(item), strict=False)
        chosen = [f"{name} = {text_of(values[place])}" for (name, values), place in places]
        parts = self.source.label, ", ".join(chosen) or f"item {item}"
        return ": ".join(filter(None, parts))

    def places(self, item: int) -> list[int]:
        """Return the place of a result on each axis, or its index without axes."""
        return [int(k) for k in np.unravel_index(item, self.shape or (self.n,))]

    def has(self, item: int) -> bool:
        """Whether the result has arrived."""
        present = self.source._present
        return item < len(present) and bool(present[item])

    def pick(self, item: int) -> tuple[PlotKind, npt.NDArray[Any]]:
        """Return the kind of plot for a result, and its values. Raise if it cannot be drawn."""
        from nbshare._core.notebook.reading import unmasked

        partial, value = self.source._partial(), self._plot.value
        result = unmasked(partial[item])
        shown = np.asarray(result if value is None else unmasked(value(result)))
        if shown.dtype.kind == "O":
            raise _no_array(f"of type {type(result).__name__}")
        is_image = shown.ndim == 2 or (shown.ndim == 3 and shown.shape[2] in (3, 4))
        if shown.ndim == 0:
            raise TypeError(
                "explore() shows one result at a time, which must be an array. These results are "
                "single values. plot='line', or plot='image' for a grid, draws all of them in one "
                "plot."
            )
        if self._kind is None and shown.ndim > 1 and not is_image:
            raise ValueError(
                f"kind= is needed for results of shape {shown.shape}: pass kind='hist', or "
                "plot=LivePlot(value=...) with a function that returns an image of a result"
            )
        return self._kind or ("image" if is_image else "line"), shown

    def draw(self, item: int, *, sharp: bool, own_scale: bool = False) -> Frame:
        """Draw a result, on the scale of all results or its own, or a note that it is missing."""
        from nbshare._core.notebook.figure import ResultFigure  # loads matplotlib

        if not self.has(item) or _is_gap(self.source._partial()[item]):
            gone = "No result yet" if self.source.running() else "No result"
            return ResultFigure.blank(f"{self.name(item)}\n{gone}")
        kind, shown = self.pick(item)
        if not shown.size:
            return ResultFigure.blank(f"{self.name(item)}\nempty, of shape {shown.shape}")
        alike = kind, shown.shape, shown.dtype
        if self._drawn_like != alike:
            plot = copy.copy(self._plot)
            plot.kind, plot.value = kind, None
            self._figure, self._drawn_like = ResultFigure(plot), alike
        span = None if own_scale else self._span(shown)
        return self._figure.show(self.name(item), shown, span, sharp=sharp)

    def _span(self, shown: npt.NDArray[Any]) -> tuple[float, float] | None:
        """Return the range of all results so far, so that all are drawn on one scale."""
        from nbshare._core.notebook.axes import span
        from nbshare._core.notebook.raster import extremes
        from nbshare._core.notebook.reading import as_floats, as_reals
        from nbshare._core.notebook.values import sampled

        if shown.dtype.kind not in "biufcMm":  # the figure refuses it
            return None
        n_done, parts = self.source.n_done, [shown]  # `shown` is never cut off
        if n_done != self._n_seen:
            there = np.flatnonzero(self.source._present)
            seen = there[:: math.ceil(len(there) / _MAX_SEEN)].tolist()
            for item in seen:
                with suppress(TypeError, ValueError):  # other results have another shape
                    parts.append(self.pick(item)[1])
            self._n_seen = n_done
        if self._plot.limits is not None:
            numbers = [sampled(part.reshape(1, -1), _MAX_NUMBERS)[0] for part in parts]
            finite = as_floats(np.concatenate(numbers))
            finite = finite[np.isfinite(finite)]
        else:
            ends = np.array([extremes(as_reals(part))[:2] for part in parts if part.size])
            finite = ends[np.isfinite(ends)]
        if finite.size:
            low, high = span(finite, is_robust=self._plot.limits is not None)
            self._limits = min(low, self._limits[0]), max(high, self._limits[1])
        return self._limits if self._limits[0] < self._limits[1] else None


# --------------------------------------------------------------------------- the panel


def text_of(value: Any) -> str:
    """Format a value of an axis for its slider."""
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


class Panel:
    """The widgets, the saved plot, and the thread that draws.

    Parameters
    ----------
    view
        The results to show.
    """

    def __init__(self, view: ResultGrid) -> None:
        import_whole("ipywidgets")
        import ipywidgets as w
        from IPython.display import DisplayHandle

        self._view = view
        self._has_news = news = threading.Event()
        look: dict[str, Any] = {"layout": {"width": "440px", "max_width": "100%"}}
        self._sliders: list[Any] = [
            w.SelectionSlider(
                description=name, options=[(text_of(v), i) for i, v in enumerate(values)], **look
            )
            for name, values in view.axes.items()
        ] or [w.IntSlider(description="item", max=view.n - 1, **look)]
        self._choose(view.first)
        for slider in self._sliders:
            slider.observe(lambda _: news.set(), "value")
        steps = {"Previous": -1, "Next": 1}
        buttons = [w.Button(description=name, layout={"width": "auto"}) for name in steps]
        for button in buttons:
            button.on_click(lambda pressed: self._step(steps[pressed.description]))
        tip = "Use the whole scale for each result, so that two of them cannot be compared"
        self._own_scale = w.ToggleButton(
            description="Own scale", tooltip=tip, layout={"width": "auto"}
        )
        self._own_scale.observe(lambda _: news.set(), "value")
        self._image = w.Image(format="png", layout={"display": "none", "max_width": "100%"})
        self._words = w.Label("drawing…", layout={"margin": "0 16px 0 8px"})
        self._line = w.HBox([*buttons, self._own_scale])
        self._all = w.VBox([*self._sliders, self._line, self._words, self._image])
        self._all.add_class("nbshare-panel")
        self._saved: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        widget = {"version_major": 2, "version_minor": 0, "model_id": self._all.model_id}
        self._also: dict[str, Any] = {"application/vnd.jupyter.widget-view+json": widget}
        # Item, whether it had arrived, and whether it has its own scale.
        self._shown: tuple[int, bool, bool] | None = None
        self._is_over = False

    def display(self) -> None:
        """Show the panel in the running cell, and keep it up to date."""
        cell, number = self._cell = cell_id(), cell_number()
        for before in list(_panels):
            if cell is not None and before._cell[0] == cell and before._cell[1] != number:
                before.close()  # the same cell has been run again
        _panels.add(self)
        if front_end() == JUPYTER:
            words = f'{_STYLE}<div class="nbshare-words">{_WORDS}{_NAMES}{POINTER}</div>'
            _show({"text/html": words, "text/plain": _WORDS})
            _show({**self._also, "text/plain": ""})
            self._also = {}
        self._save(self._saved.display)
        start_thread(self._run)

    def close(self) -> None:
        """Remove the panel, because another panel replaces it."""
        self._is_over = True
        self._has_news.set()
        for widget in (*self._line.children, *self._all.children, self._all):
            widget.close()  # or ipywidgets would keep it, and with it the results

    @property
    def _item(self) -> int:
        places = [slider.value for slider in self._sliders]
        return int(np.ravel_multi_index(places, self._view.shape)) if self._view.axes else places[0]

    def _step(self, by: int) -> None:
        """Choose the result that is `by` steps away. The first result follows the last."""
        self._choose((self._item + by) % self._view.n)

    def _choose(self, item: int) -> None:
        """Move the sliders to a result."""
        for slider, place in zip(self._sliders, self._view.places(item), strict=True):
            slider.value = place

    @property
    def _wanted(self) -> tuple[int, bool, bool]:
        item = self._item
        return item, self._view.has(item), self._own_scale.value

    def _run(self) -> None:
        is_saved = is_running = True
        while not self._is_over:
            pause_s = _INTERVAL_S if is_running else None
            is_at_rest = not self._has_news.wait(pause_s if is_saved else _REST_S)
            self._has_news.clear()
            is_running, began = self._view.source.running(), time.monotonic()  # before looking
            try:
                if self._look():
                    is_saved = False
                elif is_at_rest and not is_saved:
                    is_saved = True
                    self._save(self._saved.update)
            except Exception as error:  # noqa: BLE001  a user's function may raise anything
                self._tell(f"{type(error).__name__}: {error}")
            time.sleep(max(0.0, began + _INTERVAL_S - time.monotonic()))

    def _look(self) -> bool:
        """Update the panel. Return whether another plot is shown."""
        source = self._view.source
        if not self._view.axes:
            self._sliders[0].max = self._view.n - 1
        is_new = self._shown != self._wanted
        if is_new:
            self._draw(sharp=False)
        so_far = f"{source.n_done} of {source.n_items or '?'} done, {source.state}"
        self._tell("" if source.state == "done" else so_far)  # the plot has the result's name
        return is_new

    def _tell(self, words: str) -> None:
        """Show a line above the plot, or none."""
        self._words.value, self._words.layout.display = words, None if words else "none"

    def _save(self, show: Callable[..., object]) -> None:
        """Draw a sharp plot, for the page and for the notebook's file."""
        data, metadata = self._draw(sharp=True).bundle
        show({**data, **self._also}, metadata=metadata, raw=True)

    def _draw(self, *, sharp: bool) -> Frame:
        item, _, own_scale = self._shown = self._wanted
        frame = self._view.draw(item, sharp=sharp, own_scale=own_scale)
        self._image.value = frame.png
        self._image.layout.width = f"{frame.size[0]}px"
        # The image was hidden, because browsers mark an image without data as broken.
        self._image.layout.display = None
        return frame


_panels: weakref.WeakSet[Panel] = weakref.WeakSet()


def _show(data: dict[str, Any], metadata: Any = None) -> None:
    from IPython.display import display

    display(data, metadata=metadata, raw=True, display_id=True)  # type: ignore[no-untyped-call]
