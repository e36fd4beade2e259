"""The picture of a job: a Figure with an Agg canvas of its own, never pyplot.

pyplot keeps figures alive and is not safe where callbacks and threads meet; nothing here needs it.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nbshare.engine.results import MISSING
from nbshare.notebook.function import FunctionPainter
from nbshare.notebook.histogram import HistPainter
from nbshare.notebook.image import ImagePainter
from nbshare.notebook.line import LinePainter
from nbshare.notebook.live_plot import as_plots
from nbshare.notebook.png import DPI, final_png, live_png

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase
    from numpy.typing import NDArray

    from nbshare.job import Job
    from nbshare.notebook.live_plot import LivePlot

# Pixels of one plot, by the number of columns: what the page keeps free, whatever the resolution.
_PANEL = {1: (640, 400), 2: (450, 340), 3: (320, 280)}
_MARGIN = 0.08  # inches


@dataclass(frozen=True)
class Frame:
    """One picture: its PNG and size on the page, what it says in words, what it shows."""

    png: bytes
    size: tuple[int, int]  # pixels
    title: str
    is_complete: bool  # all results that are there are in it


@dataclass(frozen=True)
class Painted:
    """What has been painted, but not drawn yet."""

    title: str
    is_complete: bool  # as of the frame
    final: bool


class Painter(Protocol):
    """What draws into the axes."""

    style: str | None
    layout: Literal["constrained", "compressed"]

    @property
    def palette(self) -> list[int] | None:
        """All colours of the picture, R, G, B, …, if they are known."""

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Bring the axes up to date.

        Returns how many results they show, and what of them: a text with ``{}`` for their count.
        """


class LiveFigure:
    """A figure that follows a job.

    Parameters
    ----------
    job
        The running map.
    plot
        What `nbshare.notebook.live_plot.as_plots` takes; not None.
    label
        What the title calls the job.
    in_users_style
        Whether matplotlib's settings are left as they are.
    """

    def __init__(self, job: Job, plot: Any, label: str, *, in_users_style: bool = False) -> None:
        self._job, self._label = job, label
        self._in_users_style = in_users_style
        self._plots = as_plots(plot)
        self._build()
        self._n = 0

    def _build(self) -> None:
        plots = self._plots
        columns = len(plots) if len(plots) <= 3 else math.ceil(len(plots) / 2)
        width, height = _PANEL[columns]
        rows = math.ceil(len(plots) / columns)
        size = (columns * width / DPI, rows * height / DPI)
        with self._styled("default"):
            self.figure = Figure(figsize=size, dpi=DPI, layout="constrained")
            if not self._in_users_style:
                self.figure.set_facecolor("white")
            self._canvas: Any = FigureCanvasAgg(self.figure)  # a bare Figure's draw() does nothing
        if len(plots) == 1:
            places: list[FigureBase] = [self.figure]
        else:
            grid = self.figure.subfigures(rows, columns, squeeze=False)
            places = list(cast(Any, grid).flat)
        self._painters = [self._painter(*pair) for pair in zip(places, plots, strict=False)]
        self._n_frames = 0
        self._title = ""

    def _painter(self, figure: FigureBase, plot: LivePlot) -> Painter:
        """Make the axes of a plot, and what draws into them."""
        if plot.is_drawn_by_user:
            return FunctionPainter(figure, plot)
        with self._styled("default"):
            axes = figure.add_subplot()
            match plot.kind:
                case "line":
                    return LinePainter(axes, plot, self._job.inputs)
                case "hist":
                    return HistPainter(axes, plot)
                case _:
                    return ImagePainter(axes, plot)

    def _styled(self, style: str | None) -> contextlib.AbstractContextManager[Any]:
        if style is None or self._in_users_style:
            return contextlib.nullcontext()
        return matplotlib.style.context(style)

    @property
    def can_wait(self) -> bool:
        """Whether what has been painted stays as it is, whatever becomes of the results."""
        return not any(isinstance(painter, FunctionPainter) for painter in self._painters)

    def frame(self, *, final: bool) -> Frame | None:
        """Draw the present state; None as long as there is no result."""
        painted = self.paint(final=final)
        if painted is None:
            return None
        with self._styled(self._painters[0].style):
            return self.render(painted)

    def paint(self, *, final: bool) -> Painted | None:
        """Bring the axes up to date; None as long as there is no result."""
        present = self._job.present  # before the results: what is flagged is among them
        partial, n_present = self._job.partial(), np.count_nonzero(present)
        if partial is not None and len(partial) != present.size:  # more have come in between
            partial = partial[: present.size]
        if isinstance(partial, list):  # but those that are still on their way
            present &= [result is not MISSING for result in partial]
        if partial is None or not present.any():
            return None
        if self._n not in (0, present.size):  # a generator's: everything is laid out anew
            self._build()
        self._n = present.size
        shown = []
        for painter in self._painters:
            with self._styled(painter.style):
                shown.append(painter.paint(partial, present, final=final))
        n_shown = min(n for n, _ in shown)
        of = f"{n_shown} of {present.size}" if self._job.n_tasks is not None else str(n_shown)
        title = (shown[0][1] if len(shown) == 1 else "{}").format(of)
        title = f"{self._label}: {title}" if self._label else title
        with self._styled(self._painters[0].style):
            self._write_title(title)
        return Painted(title, n_shown == n_present, final)

    def render(self, painted: Painted) -> Frame:
        """Draw what has been painted: a tenth of a second, in any thread."""
        self._lay_out(final=painted.final)
        palette = self._painters[0].palette if len(self._painters) == 1 else None
        png = final_png(self._canvas, palette) if painted.final else live_png(self._canvas)
        width, height = (self.figure.get_size_inches() * DPI).round().astype(int).tolist()
        return Frame(png, (width, height), painted.title, painted.is_complete)

    def _write_title(self, title: str) -> None:
        """Write it above the axes, or above all of them; the user's own stays."""
        axes = self.figure.axes[0]
        before, self._title = self._title, title
        if len(self._painters) > 1 or self._main_axes() > 1:
            if self.figure.get_suptitle() in ("", before):
                self.figure.suptitle(title, fontsize=11, parse_math=False)
            return
        written = {axes.get_title(loc) for loc in ("left", "center", "right")} - {"", before}
        if not written:
            axes.set_title(title, loc="left", fontsize=11, parse_math=False)

    def _main_axes(self) -> int:
        painter = self._painters[0]
        return painter.n_axes if isinstance(painter, FunctionPainter) else 1

    def _lay_out(self, *, final: bool) -> None:
        # Laying out costs as much as drawing, and moves the axes: so only in frames 1, 2, 4, 8, …
        # and the last, and where the user's function made further axes anew.
        self._n_frames += 1
        made_more = any(isinstance(p, FunctionPainter) and p.made_more for p in self._painters)
        if final or self._n_frames & (self._n_frames - 1) == 0 or made_more:
            layout = self._painters[0].layout if len(self._painters) == 1 else "constrained"
            self.figure.set_layout_engine(layout, w_pad=_MARGIN, h_pad=_MARGIN)
            self.figure.get_layout_engine().execute(self.figure)  # type: ignore[union-attr]
        self.figure.set_layout_engine("none")


def render(job: Job, plot: Any = "image") -> bytes:
    """Draw a job as it is now.

    Parameters
    ----------
    job
        A map, running or ended.
    plot
        As for `nbshare.parallel_map`.

    Returns
    -------
    bytes
        A PNG file, of the size and look that the last frame has in a notebook.

    Raises
    ------
    ValueError
        There is no result yet.
    """
    frame = LiveFigure(job, plot, job.label).frame(final=True)
    if frame is None:
        raise ValueError("There is nothing to draw: the job has no result yet.")
    return frame.png
