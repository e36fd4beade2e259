"""Where we are: in a Jupyter kernel, at a terminal, or in a log."""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

from nbshare import threads
from nbshare.errors import DisplayWarning, warn

Bundle: TypeAlias = tuple[dict[str, str], dict[str, Any] | None]  # MIME types, and metadata
Make: TypeAlias = Callable[[], Bundle | None]

_MAX_OWN = 8  # maps of a cell with a row and a picture of their own
_SHARED_INTERVAL_S = 0.25  # between changes of an output that several maps have


def surroundings() -> Literal["kernel", "terminal", "log"]:
    """Tell what kind of place shows our output.

    A kernel is asked for before the terminal: Jupyter's stderr is no terminal, but a kernel
    started by hand in one may well be.
    """
    if _in_kernel():
        return "kernel"
    isatty = getattr(sys.stderr, "isatty", None)
    return "terminal" if isatty is not None and isatty() else "log"


def is_static() -> bool:
    """Tell whether the output is for a document that is rebuilt (``NBSHARE_STATIC=1``)."""
    return os.environ.get("NBSHARE_STATIC", "") not in ("", "0")


def _in_kernel() -> bool:
    # Where a kernel runs IPython is loaded. It is not imported just to learn that it was not.
    get_ipython: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


def cell_number() -> int:
    """Return the number of the cell that is running; of a kernel."""
    return int(cast(Any, sys.modules["IPython"]).get_ipython().execution_count)


class KernelOutput:
    """One output of a cell, shown once and then replaced in place.

    The first maps of a cell have an output each. Later ones, as of a loop of 200 quick maps, take
    over those of the later maps that are over, so that a cell never floods the page; they change
    four times a second at most.

    Parameters
    ----------
    kind
        Outputs are taken over by such of the same kind.
    """

    def __init__(self, kind: str) -> None:
        # Its id is chosen now: after an interrupt inside the first display, the last frame still
        # replaces what that may have shown.
        self._kind, self._cell = kind, _present_cell()
        self._place, self.number = self._cell.take(kind)

    @property
    def id(self) -> str:
        """What the front end knows it by."""
        return str(self._place.handle.display_id)

    @property
    def cell(self) -> int:
        """The number of the cell."""
        return self._cell.number

    @property
    def is_shared(self) -> bool:
        """Whether it may have shown an earlier map: `number` tells the how-manieth this is."""
        return self._place.is_shared

    @property
    def is_due(self) -> bool:
        """Whether what is to be shown would be shown at once."""
        return self._cell.is_over or self._place.is_due

    def reserve(self) -> None:
        """Take the place in the cell, if nothing has been shown yet."""
        self._place.reserve()

    def show_again(self) -> None:
        """Show it in the cell that is running too: what comes replaces both."""
        self._place.show_again()

    def show(self, make: Make, *, final: bool) -> None:
        """Show what `make` returns, in the place of what was shown before.

        It is called now, or, where another map has used the output just before, at the end of the
        cell, unless something newer is to be shown by then: a loop of quick maps draws few
        pictures.
        """
        self._place.finish_drawing()
        self._place.show(make, at_once=self._cell.is_over)
        if final:
            self._free()
        if final and self._cell.is_over:
            self._place.send_again_in_next_cell()

    def show_soon(self, make: Callable[[], Bundle]) -> None:
        """Show what `make` returns, as the last: a thread calls it, and the cell waits for that."""
        self.reserve()  # what the cell shows next comes below
        self._cell.draw_soon(self._place, make)
        self._free()

    def _free(self) -> None:
        if self._place.is_shared:
            self._cell.free[self._kind].append(self._place)


class _Place:
    """Where the outputs of one map, or of several one after the other, are shown."""

    def __init__(self, *, is_shared: bool) -> None:
        from IPython.display import DisplayHandle

        self.handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        self.is_shared = is_shared
        self._shown: Bundle | None = None
        self._sent_at = -_SHARED_INTERVAL_S
        self._waiting: Make | None = None
        self._drawing: threading.Thread | None = None

    def show(self, make: Make, *, at_once: bool) -> None:
        self._waiting = make
        if at_once or self.is_due:
            self.send()

    @property
    def is_due(self) -> bool:
        return not self.is_shared or time.monotonic() - self._sent_at >= _SHARED_INTERVAL_S

    def send(self) -> None:
        """Send what waits, if anything does."""
        make, self._waiting = self._waiting, None
        made = make() if make is not None else None
        if made is None:
            return
        self._sent_at = time.monotonic()
        show = self.handle.display if self._shown is None else self.handle.update
        show(made[0], metadata=made[1], raw=True)
        self._shown = made

    def draw_soon(self, make: Make) -> None:
        """Have a thread show what `make` returns."""
        context = contextvars.copy_context()  # whose outputs go to the present cell
        show = functools.partial(self.show, make, at_once=True)
        self._drawing = threading.Thread(target=context.run, args=(_draw_safely, show), daemon=True)
        try:
            threads.start(self._drawing)
        except RuntimeError:  # no more threads are allowed: this one draws
            self._drawing = None
            _draw_safely(show)

    def finish_drawing(self) -> None:
        """Wait until what a thread draws has been shown."""
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            drawing.join()

    def reserve(self) -> None:
        if self._shown is None:
            self.show(lambda: ({"text/plain": ""}, None), at_once=True)

    def show_again(self) -> None:
        if self._shown is not None:
            self.handle.display(self._shown[0], metadata=self._shown[1], raw=True)

    def send_again_in_next_cell(self) -> None:
        """Send the last state once more: nbclient takes in what comes while a cell runs only."""
        if self._shown is None:
            return
        events: Any = cast(Any, sys.modules["IPython"]).get_ipython().events
        bundle, metadata = self._shown

        def send(*_: object) -> None:
            events.unregister("pre_run_cell", send)
            self.handle.update(bundle, metadata=metadata, raw=True)

        events.register("pre_run_cell", send)


class _Cell:
    """The outputs of a cell that is running."""

    def __init__(self, shell: Any) -> None:
        self._shell, self.number = shell, int(shell.execution_count)
        self._n_taken: defaultdict[str, int] = defaultdict(int)
        self.free: defaultdict[str, list[_Place]] = defaultdict(list)
        self.is_over = False
        self._drawn: _Place | None = None  # by a thread
        shell.events.register("post_run_cell", self._end)

    def take(self, kind: str) -> tuple[_Place, int]:
        self._n_taken[kind] += 1
        number, free = self._n_taken[kind], self.free[kind]
        if number <= _MAX_OWN:
            return _Place(is_shared=False), number
        return (free.pop() if free else _Place(is_shared=True)), number

    def _end(self, *_: object) -> None:
        """Send what came too soon after what was sent before it."""
        self.is_over = True
        self._shell.events.unregister("post_run_cell", self._end)
        self._finish_drawing()
        for place in itertools.chain(*self.free.values()):
            _draw_safely(place.send)

    def draw_soon(self, place: _Place, make: Make) -> None:
        """Show in a thread, one after the other: before the cell ends, or at once if it has."""
        self._finish_drawing()
        self._drawn = place
        place.draw_soon(make)
        if self.is_over:
            self._finish_drawing()

    def _finish_drawing(self) -> None:
        place, self._drawn = self._drawn, None
        if place is not None:
            place.finish_drawing()


def _draw_safely(draw: Callable[[], None]) -> None:
    try:
        draw()
    except Exception as error:  # noqa: BLE001  a plot function may raise anything
        warn(f"Drawing failed: {type(error).__name__}: {error}", DisplayWarning)


_current: _Cell | None = None


def _present_cell() -> _Cell:
    global _current
    shell = cast(Any, sys.modules["IPython"]).get_ipython()
    if _current is None or _current.is_over or _current.number != shell.execution_count:
        _current = _Cell(shell)
    return _current
