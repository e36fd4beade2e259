"""Every exception and warning of nbshare.

::

    NbshareError
    ├── NotBuiltYetError     (NotImplementedError)   an argument of the contract that comes later
    ├── UnsendableError      (TypeError,             something that cannot travel to a worker
    │                         pickle.PicklingError)
    ├── OutOfMemoryError     (MemoryError)           refused before it was allocated
    ├── TooManyFilesError    (OSError)               no descriptor is left for shared memory
    ├── StaleReferenceError  (LookupError)           an array's owner is gone, or out of reach
    ├── RingClosedError      (EOFError)              a ring buffer has come to its end
    ├── RingAbortedError     (RuntimeError)          a ring buffer was stopped
    ├── RingTimeoutError     (TimeoutError)          no slot in time
    ├── TaskTimeoutError     (TimeoutError)          an item took longer than timeout=
    ├── TaskError            (RuntimeError)          a failure that could not travel as itself
    └── WorkerDiedError      (BrokenProcessPool)     a worker ended in the middle of an item
    MapInterrupted           (KeyboardInterrupt)     the kernel's interrupt or Ctrl-C
    PartialResultWarning     (UserWarning)           a map was stopped: n of N results
    MixedResultsWarning      (UserWarning)           results of different kinds became a list
    DisplayWarning           (UserWarning)           drawing failed; the map goes on
    MemoryFallbackWarning    (UserWarning)           the best kind of shared memory is refused
    SlowLoadingWarning       (UserWarning)           an import or an initializer takes long

Every exception is also the built-in that a user would catch. `MapInterrupted` alone is no
`Exception`: like any interrupt it must not be swallowed by an ``except Exception`` in a cell.
"""

from __future__ import annotations

import _thread
import pickle
import sys
import threading
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbshare.died import WorkerDiedError

__all__ = [
    "DisplayWarning",
    "MapInterrupted",
    "MemoryFallbackWarning",
    "MixedResultsWarning",
    "NbshareError",
    "NotBuiltYetError",
    "OutOfMemoryError",
    "PartialResultWarning",
    "RingAbortedError",
    "RingClosedError",
    "RingTimeoutError",
    "SlowLoadingWarning",
    "StaleReferenceError",
    "TaskError",
    "TaskTimeoutError",
    "TooManyFilesError",
    "UnsendableError",
    "WorkerDiedError",
]


def noted(error: BaseException, note: str) -> bool:
    """Add a note to an error; returns False if its class takes none, as a frozen dataclass."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - whatever its class does
        return False
    return True


def without_frames(error: BaseException) -> BaseException:
    """Return an error without the frames that it, and those before it, have come through.

    They hold all that was there, in cycles if that holds the error.
    """
    before: BaseException | None = error
    while before is not None:
        before.__traceback__ = None
        before = before.__cause__ or before.__context__
    return error


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is the user's interrupt: signals arrive in the main thread only.

    A KeyboardInterrupt elsewhere was raised by the code that ran there.
    """
    is_main = _thread.get_ident() == threading.main_thread().ident
    return is_main and issubclass(type(error), KeyboardInterrupt)  # whatever its attributes do


def __getattr__(name: str) -> Any:
    # Late: importing its base class would take a third of the time that nbshare takes.
    if name != "WorkerDiedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nbshare.died import WorkerDiedError

    return WorkerDiedError


class NbshareError(Exception):
    """Root of everything that nbshare raises for reasons of its own."""


class NotBuiltYetError(NbshareError, NotImplementedError):
    """An argument that belongs to the contract but is not built yet."""


class UnsendableError(NbshareError, TypeError, pickle.PicklingError):
    """A function, item or shared object that cannot travel to a worker process."""


class OutOfMemoryError(NbshareError, MemoryError):
    """A request for more memory than this machine or container has left."""


class TooManyFilesError(NbshareError, OSError):
    """A file or array was to be opened, and this process has as many open as it may (EMFILE)."""


class StaleReferenceError(NbshareError, LookupError):
    """A reference to an array whose memory cannot be had any more, or not from here."""


class RingClosedError(NbshareError, EOFError):
    """A put into a ring buffer after its `close`, or a get when nothing more will come."""


class RingAbortedError(NbshareError, RuntimeError):
    """A ring buffer was stopped by `abort`, or because a process died with a slot of it.

    Attributes
    ----------
    reason : str
        As given to `abort`.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RingTimeoutError(NbshareError, TimeoutError):
    """A ring buffer had no slot within the time-out."""


class TaskError(NbshareError, RuntimeError):
    """A failure of one task that could not be raised as itself.

    Raised when the exception does not survive pickling, or when the function, or the iterable
    that gives the items, raised `SystemExit` or `KeyboardInterrupt`, which must not end the caller.

    Attributes
    ----------
    index : int
        Index of the item.
    item : str
        The item's `repr`, cut at 200 characters.
    type_name : str
        Qualified name of the exception's class in the worker.
    """

    def __init__(self, message: str, index: int = -1, item: str = "", type_name: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.item = item
        self.type_name = type_name


class TaskTimeoutError(NbshareError, TimeoutError):
    """An item took longer than ``timeout=``; its worker was ended and replaced.

    Attributes
    ----------
    index : int
        Index of the item.
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class MapInterrupted(KeyboardInterrupt):
    """The kernel's interrupt (■) or Ctrl-C ended a map; what was done is kept.

    ``nbshare.last_job().partial()`` gives the results that were ready.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython's hook: one line in the notebook instead of the frames of the waiting loop.
        return [f"{type(self).__name__}: {self}"]


class PartialResultWarning(UserWarning):
    """A map was stopped: its result holds n of N items."""


class MixedResultsWarning(UserWarning):
    """Results of different kinds that fit no one array came back as a list."""


class DisplayWarning(UserWarning):
    """Drawing a bar or a picture failed; the map itself goes on."""


class MemoryFallbackWarning(UserWarning):
    """Another kind of shared memory is used than the best, which this system refuses."""


class SlowLoadingWarning(UserWarning):
    """A worker takes long to import what the function needs, or to run the initializer."""


def warn_at_most(
    message: str, category: type[Warning], line: tuple[str, int] | None = None
) -> None:
    """Warn, each time; where warnings are made errors, say it without ending the run."""
    try:
        warnings.warn_explicit(message, category, *(line or users_line()))
    except category:
        sys.stderr.write(f"{category.__name__}: {message}\n")


def warn(message: str, category: type[Warning]) -> None:
    """Warn about the line of the user's that called nbshare."""
    level, frame = 2, sys._getframe(1)  # 1 would be this line
    while frame.f_back is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def users_line() -> tuple[str, int]:
    """Return file and number of the line of the user's that called nbshare."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to nbshare's own code."""
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == __package__


def cut(text: str) -> str:
    """Shorten to what a message can bear: an item's repr may be a gigabyte long."""
    return text if len(text) <= 200 else text[:200] + "…"
