"""Every exception and warning of nbshare.

::

    NbshareError
    ├── NotBuiltYetError     (NotImplementedError)   planned, but not built yet
    ├── UnsendableError      (TypeError,             something cannot be sent to a worker
    │                         pickle.PicklingError)
    ├── OutOfMemoryError     (MemoryError)           refused before it was allocated
    ├── TooManyFilesError    (OSError)               no descriptor is left for shared memory
    ├── StaleReferenceError  (LookupError)           an array's owner is gone, or out of reach
    ├── RingClosedError      (EOFError)              a ring buffer has come to its end
    ├── RingAbortedError     (RuntimeError)          a ring buffer was stopped
    ├── RingTimeoutError     (TimeoutError)          no slot in time
    ├── CheckpointError      (ValueError)            a checkpoint that does not fit the call
    ├── CheckpointInUseError (BlockingIOError)       another run writes to it
    ├── TaskTimeoutError     (TimeoutError)          an item took longer than timeout=
    ├── TaskError            (RuntimeError)          a failure that could not travel as itself
    └── WorkerDiedError      (BrokenProcessPool)     a worker ended in the middle of an item
    MapInterrupted           (KeyboardInterrupt)     the kernel's interrupt or Ctrl-C
    PartialResultWarning     (UserWarning)           a run was stopped: n of N results
    MixedResultsWarning      (UserWarning)           results of different kinds became a list
    DisplayWarning           (UserWarning)           drawing failed; the run continues
    MemoryFallbackWarning    (UserWarning)           this system refuses the best shared memory
    SlowLoadingWarning       (UserWarning)           an import or an initializer takes long
    CheckpointWarning        (UserWarning)           results cannot be stored; the run continues

Every exception is also the built-in that you would catch. Only `MapInterrupted` is not an
`Exception`: like any interrupt, it must not be swallowed by ``except Exception`` in a cell.
"""

from __future__ import annotations

import _thread
import pickle
import sys
import threading
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbshare.base_error import NbshareError

if TYPE_CHECKING:
    from nbshare.died import WorkerDiedError

__all__ = [
    "CheckpointError",
    "CheckpointInUseError",
    "CheckpointWarning",
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


def __dir__() -> list[str]:
    return __all__  # for completion: the public names


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


class NotBuiltYetError(NbshareError, NotImplementedError):
    """An argument, or a platform, that is planned but not built yet.

    Leave the argument out; the message says what is allowed today.
    """


class UnsendableError(NbshareError, TypeError, pickle.PicklingError):
    """A function, item, shared object or result cannot be sent to another process.

    Raised before any worker starts, if possible. The message names the object and the part that
    cannot be pickled. Pass plain data instead (a path, an array, parameters), and open files or
    create locks and connections inside the function, or in ``initializer=``.

    Examples
    --------
    >>> import threading
    >>> import nbshare
    >>> try:
    ...     nbshare.parallel_map(id, [threading.Lock()])
    ... except nbshare.errors.UnsendableError as error:
    ...     print(str(error)[:40])
    item 0 cannot be sent to another process
    """


class OutOfMemoryError(NbshareError, MemoryError):
    """More memory is asked for than this machine or container has left.

    Raised before anything is allocated; the message has both figures. Process the data in parts,
    use `numpy.memmap` or ``float32``, return less from each item, or set
    ``NBSHARE_MEMORY=file:DIRECTORY`` to keep arrays in files.

    Examples
    --------
    >>> import nbshare
    >>> try:
    ...     nbshare.zeros(10**15)
    ... except MemoryError as error:
    ...     print(type(error).__name__)
    OutOfMemoryError
    """


class TooManyFilesError(NbshareError, OSError):
    """No file descriptor is left: this process has as many open as it may (EMFILE).

    Large shared arrays take one file descriptor each. Delete arrays that are no longer used, put
    many arrays into one (``np.stack``), or raise the limit: ``ulimit -n``.
    """


class StaleReferenceError(NbshareError, LookupError):
    """A reference to a shared array arrived, but its memory is gone or out of reach.

    The process that sent it has ended, belongs to another user, or runs in another container. Keep
    the array in the sender until the receiver has it; between machines send values:
    ``np.asarray(x).copy()``.
    """


class RingClosedError(NbshareError, EOFError):
    """A `RingBuffer` is closed: put after `close`, or get when nothing more will come.

    ``for slot in ring`` ends instead of raising it.
    """


class RingAbortedError(NbshareError, RuntimeError):
    """A `RingBuffer` was stopped by `abort`, or because a process died with one of its slots.

    Attributes
    ----------
    reason : str
        The argument of `abort`; empty if none was given.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RingTimeoutError(NbshareError, TimeoutError):
    """A `RingBuffer` had no slot within ``timeout`` seconds; try again, or stop."""


class CheckpointError(NbshareError, ValueError):
    """A checkpoint that belongs to another call, or a call that no checkpoint can be kept of.

    The message says what differs: the function, an argument, the items. Pass another path, or
    ``if_changed="restart"`` to begin anew, ``if_changed="accept"`` to keep the stored results.
    """


class CheckpointInUseError(NbshareError, BlockingIOError):
    """A checkpoint that another run writes to at this moment.

    Wait for it, cancel it (`nbshare.attach` returns its job), or pass another path.
    """


class TaskError(NbshareError, RuntimeError):
    """An item failed with an exception that cannot be raised as itself.

    Raised if the exception cannot be pickled, or if the function, or the iterable that gives the
    items, raised `SystemExit` or `KeyboardInterrupt`, which would end the caller. Its text is in
    the message, the worker's traceback in the note.

    Attributes
    ----------
    index : int
        Index of the item; -1 if it happened before any item.
    item : str
        The item's `repr`, cut at 200 characters.
    type_name : str
        Qualified name of the exception's class in the worker.

    Examples
    --------
    >>> import sys
    >>> import nbshare
    >>> try:
    ...     nbshare.parallel_map(sys.exit, [3])
    ... except nbshare.errors.TaskError as error:
    ...     print(error.index, error.item, error.type_name)
    0 3 SystemExit
    """

    def __init__(self, message: str, index: int = -1, item: str = "", type_name: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.item = item
        self.type_name = type_name


class TaskTimeoutError(NbshareError, TimeoutError):
    """An item took longer than ``timeout=`` seconds; its worker was ended and replaced.

    Raise ``timeout=``, pass ``retries=``, or ``on_error="return"`` to go on without the item.

    Attributes
    ----------
    index : int
        Index of the item.

    Examples
    --------
    >>> import time
    >>> import nbshare
    >>> try:
    ...     nbshare.parallel_map(time.sleep, [0.0, 60.0], timeout=0.5)
    ... except TimeoutError as error:
    ...     print(error.index)
    1
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class MapInterrupted(KeyboardInterrupt):
    """The kernel's interrupt (■) or Ctrl-C stopped a run; finished results are kept.

    ``nbshare.last_job().partial()`` returns them. All workers have stopped, and the next call works
    normally. It is a `KeyboardInterrupt` and no `Exception`, so that ``except Exception`` in a cell
    does not swallow it and Run All stops.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython's hook: one line in the notebook instead of the frames of the waiting loop.
        return [f"{type(self).__name__}: {self}"]


class PartialResultWarning(UserWarning):
    """A run was stopped, and its result holds n of N items.

    Only where no progress display says so: in scripts and logs.
    """


class MixedResultsWarning(UserWarning):
    """Results of different kinds fit no array and came back as a list.

    The message names two items that differ. Return the same shape for each item, or pass
    ``out="list"``.
    """


class DisplayWarning(UserWarning):
    """Drawing a progress display or a plot failed, or nothing here can show it.

    The run itself continues. The message has the error of the drawing.
    """


class MemoryFallbackWarning(UserWarning):
    """The best kind of shared memory is refused by this system; another one is used.

    `nbshare.doctor` says which, and why.
    """


class SlowLoadingWarning(UserWarning):
    """A worker takes more than 30 s to import modules or to run the initializer.

    The message names the file and line. Nothing is stopped; interrupt the run if it hangs.
    """


class CheckpointWarning(UserWarning):
    """Results cannot be stored, or stored ones are damaged; the run itself continues.

    The message says why, such as a full disk, and what happens to the results.
    """


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


def cut(text: str, n: int = 200) -> str:
    """Shorten to what a message can bear: an item's repr may be a gigabyte long."""
    return text if len(text) <= n else text[:n] + "…"
