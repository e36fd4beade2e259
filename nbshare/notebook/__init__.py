"""Everything that draws: the row of a running map, and its picture.

A map is seen only through its job (:class:`~nbshare.job.Job`), and drawing happens
only inside :meth:`Display.update` and :meth:`Display.close`, in the thread that waits for the map;
a job in the background has one for that. A display that fails costs one warning, never the map.

``environment``  kernel, terminal or log; the outputs of a cell
``showing``      a job in the background, and a job that is shown in another cell
``row``          the row of a notebook
``stop_button``  the button in it
``bar``          a terminal's bar, a log's lines, and the words of all three
``live_plot``    what the user asks to be drawn
``frames``       when to draw the picture, and where to
``figure``       the picture itself: a Figure with an Agg canvas, never pyplot
``line``, ``histogram``, ``image``, ``function``  what draws into its axes
``layout``       which image results of a shape make
``values``       results of all kinds as numbers, each read once
``axes``, ``png``  colours, labels and limits; small files
``prints``       where the prints of workers go
"""

from __future__ import annotations

import contextvars
import time
import traceback
from typing import TYPE_CHECKING, Any

from nbshare.errors import DisplayWarning, is_ours, users_line, warn_at_most
from nbshare.notebook.base import NEVER_S, CannotDrawError
from nbshare.notebook.environment import is_static, surroundings
from nbshare.notebook.live_plot import LivePlot, Plot, as_plots
from nbshare.notebook.showing import Showing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbshare.job import Job
    from nbshare.notebook.base import Drawer
    from nbshare.notebook.environment import KernelOutput

__all__ = [
    "Display",
    "LivePlot",
    "Plot",
    "Showing",
    "check_display",
    "open_display",
]

# What draws for longer when it is interrupted is the user's, and maybe without an end. Else whoever
# presses a key three times would be left with a row that says "running".
_PATIENCE_S = 0.5


class Display:
    """What is shown of one map.

    Parameters
    ----------
    drawers
        What draws; none where nothing is to be seen.
    outputs
        Those of a cell that they draw into.
    live
        False: only the last frame is drawn.
    warn
        Tells of a failure.
    """

    def __init__(
        self,
        drawers: Sequence[Drawer],
        outputs: Sequence[KernelOutput] = (),
        *,
        live: bool = True,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._live = live
        self._due = dict.fromkeys(drawers, 0.0)  # on the monotonic clock
        self._outputs = outputs
        self._warn = warn or _warn

    def __bool__(self) -> bool:
        return bool(self._due)

    def begin(self) -> None:
        """Take the places of all outputs, in the cell that is running."""
        self.update()
        for output in self._outputs:
            output.reserve()

    def show_again(self) -> bool:
        """Show all outputs in the cell that is running too; returns False if there are none."""
        for output in self._outputs:
            output.show_again()
        return bool(self._outputs)

    def update(self) -> float:
        """Redraw what is due.

        Returns
        -------
        float
            Seconds until the next call is wanted; an hour where nothing is shown.
        """
        if not self._live:
            return NEVER_S
        for drawer, due in list(self._due.items()):
            if due <= time.monotonic():
                self._draw(drawer, final=False)
        now = time.monotonic()
        return min((max(0.0, due - now) for due in self._due.values()), default=NEVER_S)

    def close(self) -> None:
        """Draw the last frame. Calling it again draws what an interrupt has left to draw."""
        while self._due:
            drawer, began = next(iter(self._due)), time.monotonic()
            try:
                self._draw(drawer, final=True)
            except KeyboardInterrupt:
                if time.monotonic() - began > _PATIENCE_S:
                    self._due.pop(drawer, None)
                raise
            self._due.pop(drawer, None)

    def _draw(self, drawer: Drawer, *, final: bool) -> None:
        try:
            pause_s = drawer.draw(final=final)
        except CannotDrawError as error:
            self._due.pop(drawer, None)
            self._warn(str(error))
        except Exception as error:  # noqa: BLE001  a plot function or front end may raise anything
            self._due.pop(drawer, None)
            self._warn(
                "Drawing failed and is off for the rest of this call; the map itself is not "
                f"affected.\n\n{_traceback(error)}"
            )
        else:
            if not final:
                self._due[drawer] = time.monotonic() + pause_s


def check_display(progress: Any, plot: Any) -> None:
    """Refuse a bad ``progress=`` or ``plot=`` before anything is started.

    Parameters
    ----------
    progress
        None, False, True, a label, or a tqdm class.
    plot
        None, ``"line"``, ``"image"``, ``"hist"``, a `LivePlot`, ``callable(ax, partial)``, or a
        list of these.

    Raises
    ------
    TypeError
        The argument is of no kind that is allowed.
    ValueError
        ``plot`` is a string that names no plot.
    """
    if not (progress is None or isinstance(progress, bool | str) or _is_bar_class(progress)):
        raise TypeError(
            f"progress={progress!r} is not allowed: pass None (shown when a person is looking), "
            "True, False, a label, or a tqdm class (the class itself, with the methods update "
            "and close)."
        )
    as_plots(plot)


def open_display(
    job: Job, *, progress: Any = None, plot: Any = None, in_background: bool = False
) -> Display:
    """Decide what is shown of a job, and where.

    Parameters
    ----------
    job
        The running map.
    progress, plot
        As checked by :func:`check_display`.
    in_background
        Whether a thread of its own draws it, while its user does something else.

    Returns
    -------
    Display
        To be updated while waiting, and closed at the end. Nothing is drawn before that.
    """
    if progress is False and plot is None:
        return Display([])
    place = surroundings()
    if progress is None and plot is None and place == "log":
        return Display([])
    drawers: list[Drawer] = []
    outputs: list[KernelOutput] = []
    # Imported only where something is drawn: `import nbshare` and a quiet map stay light.
    if place != "log" if progress is None else progress is not False:
        from nbshare.notebook import bar, row

        if isinstance(progress, type):
            drawers.append(bar.ForeignBar(job, job.label, progress))
        elif place == "kernel":
            line = row.NotebookRow(
                job, job.label, timed=not is_static(), in_background=in_background
            )
            drawers.append(line)
            outputs.append(line.output)
        elif place == "terminal":
            drawers.append(bar.TerminalBar(job, job.label))
        else:
            drawers.append(bar.LogLines(job, job.label))
    if plot is not None and place == "kernel":  # elsewhere there is nowhere to show a picture
        from nbshare.notebook.frames import LiveFrames

        frames = LiveFrames(job, plot, job.label, in_background=in_background)
        drawers.append(frames)
        outputs.append(frames.output)
    live = not (place == "kernel" and is_static())
    return Display(drawers, outputs, live=live, warn=_warner() if in_background else None)


def _is_bar_class(progress: Any) -> bool:
    return isinstance(progress, type) and all(
        callable(getattr(progress, name, None)) for name in ("update", "close")
    )


def _warn(message: str, line: tuple[str, int] | None = None) -> None:
    warn_at_most(message, DisplayWarning, line)


def _warner() -> Callable[[str], None]:
    """Return what warns later, in any thread, as if it was here and now: below the same cell."""
    context, line = contextvars.copy_context(), users_line()
    return lambda message: context.run(_warn, message, line)


def _traceback(error: Exception) -> str:
    """Format an error, without nbshare's frames if it happened in the user's."""
    frames = error.__traceback__
    while frames is not None and is_ours(frames.tb_frame):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
