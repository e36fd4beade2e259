"""Shows the output of workers where the caller's prints appear.

::

    worker                          dispatcher                      thread that waits
    print, logging ─► fd 1, 2 ══►  PrintPipes.read ─► Prints.add ─► Prints.show ─► sys.stdout
    C, subprocesses ─►   │                                  (or a thread of its own, if none waits)
                         pipes

Pipes replace the worker's file descriptors 1 and 2. They also receive output that a replaced
``sys.stdout`` would miss, and the last output of a worker that crashes. No output is dropped. The
dispatcher does not read a pipe while much text waits to be shown, so a worker prints no faster than
its text is shown.
"""

from __future__ import annotations

import _thread
import codecs
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from nbshare._core.engine.events import Events
from nbshare._core.interrupts import start_thread
from nbshare._core.system import close, waiting
from nbshare._core.wire.orders import STREAMS

PIPE_BYTES = 1 << 16  # the capacity of a pipe, which one read empties
MOST_WAITING = 4 << 20  # characters
MOST_KEPT = 200  # lines
LONGEST_LINE = 1 << 16  # characters that wait for the end of their line


class Write(Protocol):
    """Shows text where the caller's prints appear."""

    def __call__(self, name: str, text: str) -> None:
        """Write text to the stream with this name."""

    def close(self) -> None:
        """Record that no text follows for now."""

    @property
    def is_here(self) -> bool:
        """Whether the caller's prints would appear in the same place now."""


class Prints:
    """The output of one run's workers that has not been shown yet.

    Parameters
    ----------
    write : Write, optional
        Shows the text. Without it no text is shown.

    Attributes
    ----------
    is_any : bool
        Whether text was printed, or is being read.
    when_shown : callable
        Called in any thread after text was shown, when there is room for more.
    kept : deque of str
        The last lines of a background run, whose cell may no longer exist.
    is_attended : bool
        Whether a thread waits for the run and shows its text. Otherwise, new text starts a thread.

    Notes
    -----
    `add` is for one thread. Everything else is thread-safe.
    """

    def __init__(self, write: Write | None = None) -> None:
        self._write = write
        self._broken: set[str] = set()  # names of streams that have failed
        self._waiting: deque[tuple[str, str]] = deque()
        self._n_added = self._n_taken = 0  # characters. Each number has one writer
        self.when_shown: Callable[[], None] = lambda: None
        self._showing = _thread.allocate_lock()
        self.kept: deque[str] = deque(maxlen=MOST_KEPT)
        self.is_attended = True
        self.is_any = False

    @property
    def is_here(self) -> bool:
        """Whether the caller's prints would appear in the same place now."""
        return self._write is not None and self._write.is_here

    @property
    def is_full(self) -> bool:
        """Whether so much text waits to be shown that no more should be read."""
        return self._n_added - self._n_taken > MOST_WAITING

    def add(self, name: str, text: str) -> None:
        """Add text of a stream."""
        self._n_added += len(text)
        self._waiting.append((name, text))
        if not self.is_attended and not self._showing.locked():
            # If no thread can be started, the text is shown with the next one.
            with suppress(RuntimeError):
                start_thread(self.show)

    def show(self) -> bool:
        """Show all prints so far. Return False if there were none."""
        is_any = False
        while self._waiting:  # includes text that is added meanwhile
            is_any = True
            try:
                with self._showing:
                    self._show_waiting()
            finally:
                self.when_shown()  # because workers with full pipes wait for this
        return is_any

    def end(self) -> None:
        """Show the remaining text at the end of the run. Later text starts a thread."""
        self.is_attended = False
        if self.is_any:
            self.show()
            with self._showing:
                if self._write is not None:
                    self._write.close()

    def _show_waiting(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            for name, pieces in itertools.groupby(waiting, lambda piece: piece[0]):
                text = "".join(piece for _, piece in pieces)
                if not self.is_attended:
                    self.kept.extend(text.splitlines())
                if self._write is not None and name not in self._broken:
                    try:
                        self._write(name, text)
                    except Exception:  # noqa: BLE001 - the stream may be any object
                        self._broken.add(name)
        except BaseException:  # such as an interrupt: show no more
            self._write = None
            raise
        finally:
            self._n_taken += sum(len(text) for _, text in waiting)


class _Pipe:
    """The owner's end of the pipe of one stream of a worker."""

    def __init__(self, fd: int, name: str, new: waiting.NewData) -> None:
        self.name = name
        self._fd, self._new = fd, new
        self.prints = Prints()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # an unfinished line

    def read(self) -> bool:
        """Read the available bytes. Return True if there may be more, as in a resized pipe."""
        prints, data = self.prints, b""
        is_any, prints.is_any = prints.is_any, True  # first, because other threads check it
        with suppress(BlockingIOError):
            data = self._new.read(self._fd, PIPE_BYTES)
        prints.is_any = is_any or bool(data)
        text = self._rest + self._decoder.decode(data)
        # A progress bar in the worker ends its lines with a carriage return only.
        n = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - n > LONGEST_LINE:
            n = len(text)
        self._rest = text[n:]
        if n:
            self.prints.add(self.name, text[:n])
        return len(data) == PIPE_BYTES

    def end_line(self) -> None:
        """Add an unfinished line, because its end will not arrive."""
        if self._rest:
            self.prints.add(self.name, self._rest + "\n")
            self._rest = ""


class PrintPipes:
    """The pipes of all workers.

    Parameters
    ----------
    events : Events
        The dispatcher's events. All pipes together are one event.

    Notes
    -----
    For the dispatcher's thread. While workers print nothing, no system call is made, because it
    would release the interpreter lock, which is the largest cost of a tiny call. Workers report
    unread output on the board (`worker.work`).
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._new = waiting.NewData(events, "printed")
        self._pipes: dict[int, _Pipe] = {}

    def add(self, fds: Sequence[int]) -> None:
        """Start to read the pipes of a worker."""
        for fd, name in zip(fds, STREAMS, strict=True):
            self._pipes[fd] = _Pipe(fd, name, self._new)
            # Edge-triggered, so that text left in a pipe on purpose does not wake the dispatcher.
            self._new.watch(fd)

    def turn(self, fds: Sequence[int], prints: Prints) -> None:
        """Add later output of a worker to the prints of another run."""
        prints.when_shown = self._read_later
        for fd in fds:
            pipe = self._pipes[fd]
            if pipe.prints is not prints:
                pipe.end_line()
                pipe.prints = prints

    def read(self) -> None:
        """Read new text, except for runs with much text that waits to be shown."""
        self._read([self._pipes[fd] for fd in self._new.fds()])

    def _read(self, pipes: Iterable[_Pipe]) -> None:
        for pipe in pipes:
            if not pipe.prints.is_full and pipe.read():
                self._read_later()

    def _read_later(self) -> None:
        self._events.post(lambda: self._read(self._pipes.values()))

    def read_all(self) -> None:
        """Read all available text, however much waits to be shown."""
        self._new.look()
        for pipe in self._pipes.values():
            pipe.read()

    def end_lines(self, prints: Prints) -> None:
        """Add the unfinished lines of a run that is over."""
        if prints.is_any:
            for pipe in self._pipes.values():
                if pipe.prints is prints:
                    pipe.end_line()

    def remove(self, fds: Sequence[int]) -> None:
        """Read the last output of a dead worker, and close its pipes."""
        self._new.look()
        for fd in fds:
            pipe = self._pipes.pop(fd)
            pipe.read()
            pipe.end_line()
            self._new.unwatch(fd)
            close(fd)

    def close(self) -> None:
        """Close the poller of the pipes."""
        self._new.close()
