"""The picture of a job: a Figure with an Agg canvas of its own, never pyplot.

pyplot keeps figures alive and is not safe where callbacks and threads meet; nothing here needs it.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nbshare.notebook.image import ImagePainter

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from nbshare.notebook.base import JobView

WIDTH, HEIGHT = 640, 400  # CSS pixels: what the page keeps free, whatever the resolution
_DPI = 100
_MARGIN = 0.08  # inches
_FINAL_DPIS = (200, 150, 100)  # sharp on fine screens, if the file stays small
_MAX_FINAL_BYTES = 90_000


@dataclass(frozen=True)
class Frame:
    """One picture: its PNG, what it says in words, how many results it shows."""

    png: bytes
    title: str
    n_shown: int


class Painter(Protocol):
    """What draws into the axes."""

    style: str | None
    layout: Literal["constrained", "compressed"]

    @property
    def palette(self) -> list[int] | None:
        """All colours of the picture, R, G, B, …, if they are known."""

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Bring the axes up to date; return how many results they show, and the title."""


class FunctionPainter:
    """The user's ``callable(ax, partial)``, in the user's own style."""

    style: str | None = None
    layout: Literal["constrained", "compressed"] = "constrained"
    palette = None

    def __init__(self, axes: Axes, label: str, function: Callable[[Axes, Any], object]) -> None:
        self._axes, self._label, self._function = axes, label, function

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:  # noqa: ARG002
        """Clear the axes and call the function."""
        figure = self._axes.figure
        for other in figure.axes:
            if other is not self._axes:  # such as the colour bar that the function made last time
                other.remove()
        self._axes.clear()
        n_shown = int(np.count_nonzero(present))
        self._function(self._axes, partial)
        title = f"{n_shown} of {present.size}"
        title = f"{self._label}: {title}" if self._label else title
        if not any(self._axes.get_title(loc) for loc in ("left", "center", "right")):
            self._axes.set_title(title, parse_math=False)
        return n_shown, title


class LiveFigure:
    """A figure that follows a job.

    Parameters
    ----------
    job
        The running map.
    plot
        ``"image"`` or ``callable(ax, partial)``.
    label
        What the title calls the job.
    """

    def __init__(self, job: JobView, plot: Any, label: str) -> None:
        self._job = job
        style = ImagePainter.style if plot == "image" else FunctionPainter.style
        with _styled(style):
            size = (WIDTH / _DPI, HEIGHT / _DPI)
            self.figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
            self.figure.set_facecolor("white")
            self._canvas: Any = FigureCanvasAgg(self.figure)  # a bare Figure's draw() does nothing
            axes = self.figure.add_subplot()
            self._painter: Painter = (
                ImagePainter(axes, label) if plot == "image" else FunctionPainter(axes, label, plot)
            )
        self._n_frames = 0

    def frame(self, *, final: bool) -> Frame | None:
        """Draw the present state; None as long as there is no result."""
        present = self._job.present  # before the results: what is flagged is among them
        partial = self._job.partial()
        if partial is None or not present.any():
            return None
        with _styled(self._painter.style):
            n_shown, title = self._painter.paint(partial, present, final=final)
            self._lay_out(final=final)
            png = self._final_png() if final else self._live_png()
        return Frame(png, title, n_shown)

    def _lay_out(self, *, final: bool) -> None:
        # Laying out costs as much as drawing, and moves the axes: so only in frames 1, 2, 4, 8, …
        # and the last, and where the user's function made further axes anew.
        self._n_frames += 1
        if final or self._n_frames & (self._n_frames - 1) == 0 or self._further_axes():
            self.figure.set_layout_engine(self._painter.layout, w_pad=_MARGIN, h_pad=_MARGIN)
            self.figure.get_layout_engine().execute(self.figure)  # type: ignore[union-attr]
        self.figure.set_layout_engine("none")

    def _further_axes(self) -> bool:
        return isinstance(self._painter, FunctionPainter) and len(self.figure.axes) > 1

    def _live_png(self) -> bytes:
        return _encode(self._pixels(_DPI), compress_level=1)

    def _final_png(self) -> bytes:
        """Return the sharpest picture that makes a small file."""
        palette = self._painter.palette
        png = b""
        for dpi in _FINAL_DPIS:
            picture = self._pixels(dpi)
            if palette is None and dpi == _FINAL_DPIS[0]:
                png = _encode(picture)
                if len(png) <= _MAX_FINAL_BYTES:
                    break
            # A palette makes a third of the bytes, and no eye sees the difference.
            png = _encode(_with_palette(picture, palette))
            if len(png) <= _MAX_FINAL_BYTES:
                break
        return png

    def _pixels(self, dpi: int) -> Image.Image:
        self.figure.set_dpi(dpi)
        self._canvas.draw()
        picture = Image.fromarray(np.asarray(self._canvas.buffer_rgba())).convert("RGB")
        self.figure.set_dpi(_DPI)
        return picture


def _with_palette(picture: Image.Image, colours: list[int] | None) -> Image.Image:
    if colours is None:
        return picture.quantize(256)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def _encode(picture: Image.Image, compress_level: int = 6) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=compress_level)
    return file.getvalue()


def render(job: JobView, plot: Any = "image") -> bytes:
    """Draw a job as it is now.

    Parameters
    ----------
    job
        A map, running or ended.
    plot
        ``"image"`` or ``callable(ax, partial)``.

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


def _styled(style: str | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if style is None else matplotlib.style.context(style)
