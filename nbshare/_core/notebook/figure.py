"""Draws the plot of a job: a Figure with its own Agg canvas, never pyplot.

pyplot keeps figures alive, and is not thread-safe.
"""

from __future__ import annotations

import base64
import copy
import io
import logging
import math
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray
from PIL import Image

from nbshare._core.engine.results import MISSING
from nbshare._core.jobs.job import Job
from nbshare._core.notebook.axes import FRAME, GREY, TICKS, points
from nbshare._core.notebook.charts import TrendPainter, is_trend
from nbshare._core.notebook.environment import Bundle, is_static
from nbshare._core.notebook.live_plot import LivePlot, as_plots
from nbshare._core.notebook.painters import (
    FunctionPainter,
    of_elements,
    painter_of,
    rows_of,
    rows_of_one,
)
from nbshare._core.notebook.png import MAX_BYTES, encode, encode_moderately
from nbshare._core.notebook.pointer import Cells, chunk_of, with_chunk
from nbshare._core.notebook.reading import parts_of
from nbshare._core.notebook.values import AnyPainter, OtherKindError, first_of
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.shapes.tiles import Mosaic

# Size on the page, in pixels, of a single plot, as wide as the progress display, and the height of
# each of several.
_ALONE, _BESIDE = (760, 440), 300
_PANEL_ROW = 210  # height of a row of panels of one plot
_MOST_LARGER = 1.5  # how much higher these are for larger letters
# Pixels of a single image: its height, the width of axis and colour bar, and the smallest width.
_IMAGE, _AROUND, _LEAST_WIDTH = 370, 160, 440
_MARGIN = 0.08  # inches
_TITLE_CHARACTER, _LEAST_TITLE = 7.5, 20  # approximate pixels, and fewest characters in a line

T = TypeVar("T")

_FONT_LOG = logging.getLogger("matplotlib.font_manager")

_DPI = 100  # resolution of live frames
_FINAL_DPI = 200, 150, 100  # resolutions of the last frame. The first is sharp on fine screens

_APART = 1.003  # ratio of the numbers of items of two points of ``reduce=`` that can be told apart

_MOST_LATE = 0.2  # share of the results. If a plot lacks more, its title says how many it shows

# nbshare's style, for plots of a user's function.
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor"), GREY),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), GREY),
    **dict.fromkeys(("xtick.color", "ytick.color"), TICKS),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    "axes.edgecolor": FRAME,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "legend.frameon": False,
    "font.size": 10,
}


@dataclass(frozen=True)
class Frame:
    """A frame of a plot: its PNG, size, text, and whether it is complete."""

    png: bytes
    size: tuple[int, int]  # pixels
    title: str
    is_complete: bool  # whether it shows all results so far

    @property
    def bundle(self) -> Bundle:
        """The output of a cell, with its size, so that the page does not jump."""
        png, (width, height) = base64.b64encode(self.png).decode("ascii"), self.size
        size = {"width": width, "height": height, "alt": self.title}
        return {"image/png": png, "text/plain": self.title}, {"image/png": size}


class LiveFigure:
    """A figure that shows the results of a job as they arrive.

    Parameters
    ----------
    job
        The job of the run.
    plot
        The plots, as `notebook.live_plot.as_plots` accepts them, not None.
    in_users_style
        Whether to use the user's Matplotlib settings, also for nbshare's own plots.
    """

    def __init__(self, job: Job, plot: Any, *, in_users_style: bool = False) -> None:
        self._job = job
        self._plots = as_plots(plot)
        is_users = any(each._is_drawn_by_user for each in self._plots)
        now, default = mpl.rcParams, mpl.rcParamsDefault
        self._is_styled = not is_users or all(now[k] == default[k] for k in _STYLE)
        # The user's fonts are kept, because others may lack letters of a language.
        fonts = {k: now[k] for k in now if k.startswith("font.")}
        fonts["font.size"] = points(10)
        look = _STYLE if is_users else ["default", fonts]
        self._style: Any = look if self._is_styled and not in_users_style else None
        self._form: Any = None  # form of the results that the axes were made for
        self._painters: list[AnyPainter] = []
        self._trend: list[tuple[int, Any]] = []  # number of items and the result of them
        self._n_soon: float = 0
        self._told: set[str] = set()
        # Flags of the results in the current frame, those that it may show, and those in the last
        # good frame.
        self._drawn: NDArray[np.bool_] | None = None
        self._only: NDArray[np.bool_] | None = None
        self._good: NDArray[np.bool_] | None = None

    def frame(
        self, *, final: bool, n_soon: float = 0, only: NDArray[np.bool_] | None = None
    ) -> Frame | None:
        """Draw the current state. Return None if there is no result yet.

        Parameters
        ----------
        final
            Whether this is the last frame.
        n_soon
            Expected number of results before the next frame. If this frame shows far fewer, its
            title says how many.
        only
            Flags of the results to show. Default: all.
        """
        self._n_soon, self._only = n_soon, only
        try:
            with self._styled():
                painted = self.paint(final=final)
                if painted is None:
                    return None
                self._lay_out(final=final)
                values = b"" if is_static() else chunk_of(self._cells(), final=final)
                if final:  # sharp, with fewer colours or pixels if its file would be large
                    png = encode_moderately(self._pixels, _FINAL_DPI, MAX_BYTES - len(values))
                else:
                    png = encode(self._pixels(_DPI), 1)
        except BaseException:
            # An interrupt or an error leaves the figure unfinished, so the next frame begins with a
            # new one.
            self._form = None
            raise
        self._good = self._drawn
        width, height = (self.figure.get_size_inches() * _DPI).round().astype(int).tolist()
        return Frame(with_chunk(png, values), (width, height), *painted)

    def last_good_frame(self) -> Frame | None:
        """Draw the last state that could be drawn again, with its number of results."""
        return None if self._good is None else self.frame(final=True, only=self._good)

    def _cells(self) -> list[Cells]:
        """Return the values of nbshare's own plots, for the pointer on a page."""
        return [cells for painter in self._painters for cells in painter.cells()]

    @property
    def problem(self) -> Exception | None:
        """An error that the user's ``value=`` raised for a result, or None."""
        return next(filter(None, (painter.problem for painter in self._painters)), None)

    @contextmanager
    def _styled(self) -> Iterator[None]:
        """Set Matplotlib's style, which all threads share, if no other thread may be drawing."""
        is_alone = threading.current_thread() is threading.main_thread()
        _FONT_LOG.addFilter(self._is_news)
        try:
            with mpl.style.context(self._style) if self._style and is_alone else nullcontext():
                yield
        finally:
            _FONT_LOG.removeFilter(self._is_news)

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return whether Matplotlib logs a message for the first time, not for a further text."""
        n_told = len(self._told)
        self._told.add(record.getMessage())
        return len(self._told) > n_told

    def paint(self, *, final: bool) -> tuple[str, bool] | None:
        """Update the axes. Return the title, and whether all results so far are shown."""
        if self._job._is_reduced:
            return self._paint_one(final=final)
        present = self._job._present  # read before the results, which then include all flagged ones
        partial, n_present = self._job._partial(), np.count_nonzero(present)
        if partial is not None and len(partial) != present.size:  # more have arrived in between
            partial = partial[: present.size]
        if isinstance(partial, list):  # without results that have not arrived
            present &= [result is not MISSING for result in partial]
        elif isinstance(partial, Mosaic) and partial.there is not None:
            present &= partial.there
        if self._only is not None and partial is not None:
            present[len(self._only) :] = False
            present &= np.pad(self._only, (0, present.size - len(self._only)))
            partial = _without_others(partial, present)
        if partial is None or not present.any():
            return None
        self._drawn = present
        form = present.size, getattr(partial, "dtype", None)
        shown = self._paint_in(form, partial, present, lambda: self._shown(partial, present, final))
        if final and (self._job.state != "done" or self._job._is_enough):
            for painter in self._painters:
                painter.show_done()
        n_shown = min(n for n, _ in shown)
        of = f"{n_shown} of {present.size}" if self._job.n_items is not None else str(n_shown)
        what = shown[0][1] if len(shown) == 1 else "{}"
        if len(shown) > 1:
            for painter, (_, each) in zip(self._painters, shown, strict=True):
                painter.say(each.partition("{}")[2].lstrip(", "))
        name = self._heading
        said = ": ".join(filter(None, [name, what.format(of)]))
        # During the run, only the progress display shows a count, unless the plot is far behind.
        is_part = final and self._job.n_items is not None and n_shown < present.size
        is_part |= not final and n_shown < (1 - _MOST_LATE) * self._n_soon
        self._write_title(said if is_part else (name + what.partition("{}")[2]).lstrip(", "))
        return said, bool(n_shown == n_present)

    @property
    def _heading(self) -> str:
        """The title of the only plot, or the name of the run."""
        title = self._plots[0].title if len(self._plots) == 1 else ""
        return title or self._job.label.replace("_", " ")

    def note(self) -> Any:
        """Return the result of ``reduce=`` so far. Record it if it is drawn against the items."""
        n, value = self._job._folded()
        is_new = value is not None and (not self._trend or self._trend[-1][0] < n)
        if is_new and any(each.kind == "line" and is_trend(each, value) for each in self._plots):
            is_near = len(self._trend) > 1 and n < _APART * self._trend[-2][0]
            self._trend[len(self._trend) - is_near :] = [(n, value)]
        return value

    def _paint_one(self, *, final: bool) -> tuple[str, bool] | None:
        """Update the axes with the result of ``reduce=`` so far."""
        if (value := self.note()) is None:
            return None
        self._paint_result(value, None, final=final)
        self._write_title(self._heading)
        return self._heading, True

    def _paint_result(
        self, result: Any, limits: tuple[float, float] | None, *, final: bool
    ) -> None:
        """Update the axes with one result, on scales with these limits. Lay out if it is needed."""
        shape = np.shape(result) if parts_of(result) is None else ()
        form, present = (shape, getattr(result, "dtype", type(result))), np.ones(1, np.bool_)
        self._paint_in(
            form,
            result,
            present,
            lambda: self._update_all(result, limits, final=final),
            is_anew=True,
        )

    def _paint_in(
        self,
        form: Any,
        results: Any,
        present: NDArray[np.bool_],
        paint: Callable[[], T],
        *,
        is_anew: bool = False,
    ) -> T:
        """Paint results, in new axes the first time, for another form, or for another kind."""
        if self._form != form:
            self._form = form
            self._build(results, present, is_anew=is_anew)
        try:
            return paint()
        except OtherKindError:  # such as complex numbers after real ones, or longer durations
            self._build(results, present, is_anew=True)
            return paint()

    def _update_all(self, result: Any, limits: tuple[float, float] | None, *, final: bool) -> None:
        for painter, plot in zip(self._painters, self._plots, strict=True):
            if isinstance(painter, TrendPainter):
                painter.follow(self._trend, self._job.n_items)
            else:
                painter.begin_anew(limits)
                painter.paint(*rows_of_one(plot, result), final=final)

    def _shown(
        self, partial: Any, present: NDArray[np.bool_], final: bool
    ) -> list[tuple[int, str]]:
        """Update all plots. Return the number of results in each, and a text with ``{}`` for it."""
        shown = []
        for painter, plot in zip(self._painters, self._plots, strict=True):
            rows, there = rows_of(plot, partial, present)
            n, text = painter.paint(rows, there, final=final)
            if there is not present:  # rows of the whole array, which show all tiles or none
                n = int(present.sum()) * int(n == there.sum())
            shown.append((n, text))
        return shown

    def _build(self, partial: Any, present: NDArray[np.bool_], *, is_anew: bool = False) -> None:
        inputs, plots = self._job._inputs, self._plots
        if inputs is None:
            inputs = plots[0]._items
        if isinstance(inputs, ShapedItems):
            plots = [copy.copy(plot) for plot in plots]
            for plot in plots:
                plot._coords = inputs._plot_coords
        large = max(1.0, points(1))  # the user's letters, in units of the usual ones
        beside, row = (round(size * min(large, _MOST_LARGER)) for size in (_BESIDE, _PANEL_ROW))
        heights = [_ALONE[1]] if len(plots) == 1 else [beside] * math.ceil(len(plots) / 2)

        def painters_in(places: list[FigureBase]) -> list[AnyPainter]:
            return [
                self._painter(figure, plot, inputs, partial, present, is_anew=is_anew)
                for figure, plot in zip(places, plots, strict=False)
            ]

        self._painters = painters_in(self._make_figure(heights, columns=min(len(plots), 2)))
        width = _ALONE[0]
        if any(painter.n_rows for painter in self._painters):  # they draw panels
            heights = [max(heights[0], row * painter.n_rows) for painter in self._painters]
            self.figure.set_size_inches(width / _DPI, sum(heights) / _DPI)
            if len(plots) > 1:  # panels have no room next to other plots
                self._painters = painters_in(self._make_figure(heights, columns=1))
        elif len(plots) == 1 and (ratio := self._painters[0].ratio):
            needed = max(_LEAST_WIDTH * large, _IMAGE * ratio + _AROUND * large)
            width = min(width, round(needed))
            self.figure.set_size_inches(width / _DPI, heights[0] / _DPI)
        self._n_axes = len(self.figure.axes)
        self._n_frames = 0
        self._title = ""

    def _make_figure(self, heights: list[int], *, columns: int) -> list[FigureBase]:
        """Make the figure. Return the places of plots, in rows of some heights."""
        size = (_ALONE[0] / _DPI, sum(heights) / _DPI)
        self.figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        if self._is_styled:  # because a user's style may be made for a white page
            self.figure.set_facecolor("none")
        self._canvas: Any = FigureCanvasAgg(self.figure)  # a bare Figure's draw() does nothing
        if len(heights) == columns == 1:
            return [self.figure]
        look: dict[str, Any] = {"squeeze": False, "height_ratios": heights}
        return list(cast(Any, self.figure.subfigures(len(heights), columns, **look)).flat)

    def _painter(
        self,
        figure: Any,
        plot: LivePlot,
        inputs: Any,
        partial: Any,
        present: NDArray[np.bool_],
        *,
        is_anew: bool,
    ) -> AnyPainter:
        if plot._is_drawn_by_user:
            return FunctionPainter(figure, plot, is_styled=self._is_styled)
        if self._job._is_reduced:
            if plot.kind == "line" and is_trend(plot, partial):
                values = [value for _, value in self._trend]
                like = first_of(plot, values, np.ones(len(values), np.bool_), is_anew=True)
                return TrendPainter(figure.add_subplot(), plot, None, len(values), like)
            plot, inputs = of_elements(plot, partial)
            partial, present = rows_of_one(plot, partial)
        return painter_of(figure, plot, inputs, partial, present, is_anew=is_anew)

    def _write_title(self, title: str) -> None:
        """Set the title of the axes or the figure, unless the user's function has set one."""
        axes = self.figure.axes[0]
        width = float(self.figure.get_size_inches()[0]) * _DPI
        room = int(width / points(_TITLE_CHARACTER)) - 16 - self._painters[0].n_above
        title = textwrap.fill(title, max(room, _LEAST_TITLE))
        before, self._title = self._title, title
        look: Any = {"fontsize": points(11), "parse_math": False}
        look |= {"color": GREY} if self._is_styled else {}
        if self._n_axes > 1:
            if self.figure.get_suptitle() in ("", before):
                self.figure.suptitle(title, x=0.01, ha="left", **look)
            return
        written = {axes.get_title(loc) for loc in ("left", "center", "right")} - {"", before}
        if not written:
            axes.set_title(title, loc="left", **look)

    def _lay_out(self, *, final: bool) -> None:
        # Layout takes as long as drawing, and moves the axes. So it runs in frames 1, 4, 16, ...,
        # in a last frame whose labels would be cut off, and for new axes of the user's function.
        self._n_frames += 1
        is_due = self._n_frames & (self._n_frames - 1) == 0 and self._n_frames.bit_length() % 2 == 1
        if final and self._n_frames > 1:
            is_due = self._is_cut
        if is_due or len(self.figure.axes) > self._n_axes:
            self._make_layout(1)
            if self._is_cut:  # by ticks that the layout has added
                self._make_layout(3)
        self.figure.set_layout_engine("none")

    @property
    def _is_cut(self) -> bool:
        """Whether a text reaches beyond the figure."""
        drawn, paper = self.figure.get_tightbbox(), self.figure.bbox_inches
        return bool(np.any(drawn.min < paper.min) or np.any(drawn.max > paper.max))

    def _make_layout(self, margins: int) -> None:
        # Compressed, so that a colour bar stays next to its image, and both are centred.
        name: Any = "constrained" if self.figure.subfigs else "compressed"
        margin = margins * _MARGIN
        self.figure.set_layout_engine(name, w_pad=margin, h_pad=margin)
        self.figure.get_layout_engine().execute(self.figure)  # type: ignore[union-attr]

    def _pixels(self, dpi: int) -> Image.Image:
        self.figure.set_dpi(dpi)
        self._canvas.draw()
        picture = Image.fromarray(np.asarray(self._canvas.buffer_rgba()))
        self.figure.set_dpi(_DPI)
        return picture


class ResultFigure(LiveFigure):
    """A figure that shows one result at a time, all of the same shape.

    Parameters
    ----------
    plot
        A plot of one of nbshare's kinds, with reduction "last".
    """

    def __init__(self, plot: LivePlot) -> None:
        super().__init__(cast(Any, SimpleNamespace(_inputs=None, _is_reduced=True)), plot)

    @staticmethod
    def blank(text: str) -> Frame:
        """Return a frame of the same size that shows a text."""
        width, height = _ALONE
        figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="none")
        figure.text(0.5, 0.5, text, ha="center", color=GREY, parse_math=False)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(file := io.BytesIO())
        return Frame(file.getvalue(), (width, height), text, is_complete=True)

    def show(
        self, name: str, result: Any, limits: tuple[float, float] | None, *, sharp: bool
    ) -> Frame:
        """Draw a result with its name as the title, on a scale with these limits."""
        self._name, self._result, self._limits = name, result, limits
        frame = self.frame(final=sharp)
        assert frame is not None  # a result has arrived
        return frame

    def paint(self, *, final: bool) -> tuple[str, bool]:
        """Update the axes. Return the title, and True because all is shown."""
        self._paint_result(self._result, self._limits, final=final)
        # Laid out once, because no result moves the axes, and again if labels of a sharp frame
        # would be cut off.
        self._n_frames = 2 * min(self._n_frames, 1)
        self._write_title(self._name)
        return self._name, True


def _without_others(partial: Any, present: NDArray[np.bool_]) -> Any:
    """Return results without those that are not present."""
    if isinstance(partial, list):
        return [
            result if there else MISSING for result, there in zip(partial, present, strict=True)
        ]
    if isinstance(partial, np.ndarray):
        mask = np.broadcast_to(~present.reshape(-1, *[1] * (partial.ndim - 1)), partial.shape)
        return np.ma.MaskedArray(np.ma.getdata(partial), mask, copy=False)
    return partial
