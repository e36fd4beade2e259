"""Every exception and warning of nbshare.

::

    NbshareError
    ├── NotBuiltYetError     (NotImplementedError)   planned, but not built yet
    ├── UnsendableError      (TypeError,             something cannot be sent to a worker
    │                         pickle.PicklingError)
    ├── OutOfMemoryError     (MemoryError)           refused before it was allocated
    ├── StaleReferenceError  (LookupError)           an array's owner is gone, or out of reach
    ├── RingClosedError      (EOFError)              a ring buffer is closed, and empty
    ├── RingAbortedError     (RuntimeError)          a ring buffer was stopped
    ├── RingTimeoutError     (TimeoutError)          no slot in time
    ├── CheckpointError      (ValueError)            a checkpoint that does not fit the call
    ├── CheckpointInUseError (BlockingIOError)       another run writes to it
    ├── TaskTimeoutError     (TimeoutError)          an item took longer than timeout=
    ├── TaskError            (RuntimeError)          a failure that could not keep its type
    └── WorkerDiedError      (BrokenProcessPool)     a worker ended in the middle of an item
    MapInterrupted           (KeyboardInterrupt)     the kernel's interrupt or Ctrl-C
    PartialResultWarning     (UserWarning)           a run was stopped: n of N results
    LengthsWarning           (UserWarning)           the iterables have different lengths
    ReusedItemWarning        (UserWarning)           an iterable changes what it gave before
    MixedResultsWarning      (UserWarning)           results of different kinds became a list
    UnseededWarning          (UserWarning)           a function drew random numbers without a seed
    DisplayWarning           (UserWarning)           drawing failed; the run continues
    CheckpointWarning        (UserWarning)           results cannot be stored; the run continues

Every exception is also the built-in that you would catch. Only `MapInterrupted` is not an
`Exception`. Like any interrupt, it must not be swallowed by ``except Exception`` in a cell.
"""

from __future__ import annotations

import _thread
import pickle
import sys
import threading
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbshare._core.base_error import NbshareError as NbshareError

if TYPE_CHECKING:
    from nbshare._core.died import WorkerDiedError as WorkerDiedError


def noted(error: BaseException, note: str) -> bool:
    """Add a note to an error. Return False if its class takes none, as a frozen dataclass."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - whatever its class does
        return False
    return True


def without_frames(error: BaseException) -> BaseException:
    """Return an error without the frames that it, and those before it, have come through.

    They hold all that was there, in cycles if that holds the error.
    """
    known = BaseException.__dict__  # whatever the error's class has of that name
    before: BaseException | None = error
    while before is not None:
        BaseException.with_traceback(before, None)
        cause, context = (known[name].__get__(before) for name in ("__cause__", "__context__"))
        before = context if cause is None else cause
    return error


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is the user's interrupt, as signals arrive in the main thread only.

    A KeyboardInterrupt elsewhere was raised by the code that ran there.
    """
    is_main = _thread.get_ident() == threading.main_thread().ident
    return is_main and issubclass(type(error), KeyboardInterrupt)  # whatever its attributes do


def __getattr__(name: str) -> Any:
    # Late, because importing its base class would take a third of the time that nbshare takes.
    if name != "WorkerDiedError":
        if name[0] == "_":  # Python looks for some, also while it imports what is used below
            raise AttributeError(name)
        from nbshare._core.names import no_attribute

        raise no_attribute(__name__, name, __all__)
    try:
        from nbshare._core.died import WorkerDiedError
    except AttributeError as error:  # by which Python would say that there is no such name
        raise ImportError(f"nbshare.errors.{name} cannot be imported: {error}") from error
    return WorkerDiedError


class NotBuiltYetError(NbshareError, NotImplementedError):
    """An argument, or a platform, that is planned but not built yet.

    Leave the argument out. The message says what is allowed today.

    Examples
    --------
    A script for all systems, which uses threads where worker processes are not built yet:

    >>> import nbshare
    >>> import math
    >>> try:
    ...     roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0])
    ... except NotImplementedError:
    ...     roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], backend="threads")
    >>> roots
    SharedArray([1., 2.])
    """


class UnsendableError(NbshareError, TypeError, pickle.PicklingError):
    """A function, item, shared object or result cannot be sent to another process.

    Raised before any worker starts, if possible. The message names the object and the part that
    cannot be pickled. Pass plain data instead (a path, an array, parameters), and open files or
    create locks and connections inside the function, or in ``initializer=``.

    Examples
    --------
    The message names what cannot be sent:

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

    Raised before anything is allocated. The message has both figures. Process the data in parts,
    use `numpy.memmap` or ``float32``, return less from each item, or on Linux set
    ``NBSHARE_MEMORY=file:DIRECTORY`` to keep arrays in files.

    Examples
    --------
    Catch it by its built-in name:

    >>> import nbshare
    >>> try:
    ...     nbshare.zeros(10**15)
    ... except MemoryError as error:
    ...     print(type(error).__name__)
    OutOfMemoryError
    """


class StaleReferenceError(NbshareError, LookupError):
    """A reference to a shared array arrived, but its memory is gone or out of reach.

    The process that sent it has ended, belongs to another user, or runs in another container. Keep
    the array in the sender until the receiver has it. Between machines send values,
    ``np.asarray(x).copy()``.

    Examples
    --------
    Another program sends an array, and ends:

    >>> import subprocess, sys
    >>> from multiprocessing.reduction import ForkingPickler
    >>> import nbshare
    >>> code = '''
    ... import nbshare
    ... from multiprocessing.reduction import ForkingPickler
    ... print(bytes(ForkingPickler.dumps(nbshare.zeros(3))).hex())
    ... '''
    >>> sent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    >>> try:
    ...     ForkingPickler.loads(bytes.fromhex(sent))
    ... except nbshare.errors.StaleReferenceError as error:
    ...     print(str(error).split(".")[1].strip())
    Keep the array in the sender until it has been received, or send a copy: numpy
    """


class RingClosedError(NbshareError, EOFError):
    """A `RingBuffer` is closed, as at a put after `close`, or get when nothing more will come.

    ``for slot in ring`` ends instead of raising it.

    Examples
    --------
    All slots are read, and no more will come:

    >>> import nbshare
    >>> ring = nbshare.RingBuffer(2, 3)
    >>> ring.close()
    >>> with ring.get() as slot:
    ...     print(slot)
    Traceback (most recent call last):
    nbshare.errors.RingClosedError: the ring buffer is closed, and all that was put is taken
    """


class RingAbortedError(NbshareError, RuntimeError):
    """A `RingBuffer` was stopped by `abort`, or because a process died with one of its slots.

    Attributes
    ----------
    reason : str
        The argument of `abort`, empty if none was given.

    Examples
    --------
    The reason is an attribute:

    >>> import nbshare
    >>> ring = nbshare.RingBuffer(2, 3)
    >>> ring.abort("the shutter is closed")
    >>> try:
    ...     with ring.get() as slot:
    ...         print(slot)
    ... except nbshare.errors.RingAbortedError as error:
    ...     print(error.reason)
    the shutter is closed
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RingTimeoutError(NbshareError, TimeoutError):
    """A `RingBuffer` had no slot within ``timeout`` seconds. Try again, or stop.

    Examples
    --------
    Catch it by its built-in name:

    >>> import nbshare
    >>> ring = nbshare.RingBuffer(2, 3)
    >>> try:
    ...     with ring.get(timeout=0.01) as slot:
    ...         print(slot)
    ... except TimeoutError:
    ...     print("no frame within 10 ms")
    no frame within 10 ms
    """


class CheckpointError(NbshareError, ValueError):
    """A checkpoint of another call or user, a damaged one, or a call that none can be kept of.

    The message says what differs (the function, an argument, the items). Pass another path, or
    ``checkpoint=nbshare.Checkpoint(path, if_changed="restart")`` to run the items again, or
    ``if_changed="accept"`` to keep the stored results.
    If a file is damaged, or not a plain file of yours, the message names it and says what to do.

    Examples
    --------
    The function is another one than that of the stored results:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
    >>> try:
    ...     nbshare.parallel_map(math.log2, [1.0, 4.0], checkpoint=folder)
    ... except nbshare.errors.CheckpointError as error:
    ...     print(str(error).split(": ")[1].split(".")[0])
    the function changed
    """


class CheckpointInUseError(NbshareError, BlockingIOError):
    """A checkpoint that another run writes to at this moment.

    Wait for it, cancel it (`nbshare.attach` returns its job), or pass another path.

    Examples
    --------
    The same call in another cell, while the first one runs:

    >>> import tempfile, time
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> job = nbshare.map_async(time.sleep, [0.0, 60.0], checkpoint=folder)
    >>> try:
    ...     nbshare.parallel_map(time.sleep, [0.0, 60.0], checkpoint=folder)
    ... except nbshare.errors.CheckpointInUseError as error:
    ...     print(str(error).split(": ")[1])
    another run of this process writes to it
    """


class TaskError(NbshareError, RuntimeError):
    """An item failed with an exception that cannot be raised with its own type.

    Raised if the exception cannot be pickled, or if the function, or the iterable that gives the
    items, raised `SystemExit` or `KeyboardInterrupt`, which would end the caller. Its text is in
    the message, the worker's traceback in the note.

    Attributes
    ----------
    index : int
        Index of the item, -1 if it happened before any item.
    item : str
        The item's `repr`, cut at 200 characters.
    type_name : str
        Qualified name of the exception's class in the worker.

    Examples
    --------
    A function that ends the interpreter:

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
    """An item took longer than ``timeout=`` seconds, and its worker was ended and replaced.

    Raise ``timeout=``, pass ``retries=``, or ``on_error="return"`` to go on without the item.

    Attributes
    ----------
    index : int
        Index of the item.

    Examples
    --------
    Go on without the items that take too long:

    >>> import time
    >>> import nbshare
    >>> def period_h(star):
    ...     time.sleep(60 if star == "Mira" else 0)
    ...     return 12.5
    >>> nbshare.parallel_map(period_h, ["Vega", "Mira"], timeout=0.3, on_error="return")
    masked_array(data=[12.5, --],
                 mask=[False,  True],
           fill_value=1e+20)
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class MapInterrupted(KeyboardInterrupt):
    """The kernel's interrupt (■) or Ctrl-C stopped a run. Finished results are kept.

    ``nbshare.last_job().partial()`` returns them. With ``checkpoint=``, the same call continues.
    All workers have stopped, and the next call works normally. It is a `KeyboardInterrupt` and no
    `Exception`, so that ``except Exception`` in a cell does not swallow it and Run All stops.

    Examples
    --------
    The second item sends the signal that the kernel's ■ and Ctrl-C send:

    >>> import os, signal, time
    >>> import nbshare
    >>> def expose(i, kernel):
    ...     if i == 1:
    ...         os.kill(kernel, signal.SIGINT)
    ...         time.sleep(60)
    ...     return 0.5
    >>> options = {"shared": {"kernel": os.getpid()}, "max_workers": 1, "chunksize": 1}
    >>> try:
    ...     nbshare.parallel_map(expose, [0, 1], **options)
    ... except nbshare.MapInterrupted as error:
    ...     print(error)
    1 of 2 items done, kept in nbshare.last_job().partial()
    """

    def _render_traceback_(self) -> list[str]:
        # IPython's hook, for one line in the notebook instead of the frames of the waiting loop.
        return [f"{type(self).__name__}: {self}"]


class PartialResultWarning(UserWarning):
    """A run was stopped, and its result holds n of N items.

    Only if no progress display says so, as in scripts and logs.

    Examples
    --------
    A run that was stopped from elsewhere:

    >>> import time, warnings
    >>> import nbshare
    >>> job = nbshare.map_async(time.sleep, [60.0, 60.0])
    >>> _ = job.cancel()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     results = job.result()
    >>> print(caught[0].message)
    sleep was stopped: 0 of 2 items done
    """


class LengthsWarning(UserWarning):
    """The iterables of a run have different lengths, and the run stops at the shortest.

    Each call takes one item of each iterable, as in `map`. The message has the lengths.

    Examples
    --------
    Iterables of different lengths, on purpose:

    >>> import operator
    >>> import nbshare
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", nbshare.errors.LengthsWarning)
    ...     nbshare.parallel_map(operator.add, [1, 2, 3], [10, 20])
    SharedArray([11, 22])
    """

    __module__ = "nbshare.errors"


class ReusedItemWarning(UserWarning):
    """An iterable gives the same object again and again, and changes it each time.

    Readers of trajectories and of films do so. Items wait for a worker, and the object has changed
    by then, so results are those of later items. Arrays, lists, tuples and dicts are copied, and no
    other objects.

    Examples
    --------
    A reader with one frame, of which each item gets a copy:

    >>> import copy
    >>> import types
    >>> import nbshare
    >>> def reader():
    ...     frame = types.SimpleNamespace(time=0)
    ...     for frame.time in range(5):
    ...         yield frame
    >>> frames = (copy.copy(frame) for frame in reader())
    >>> nbshare.parallel_map(lambda frame: frame.time, frames).tolist()
    [0, 1, 2, 3, 4]
    """


class MixedResultsWarning(UserWarning):
    """Results of different kinds fit no array and came back as a list.

    The message names two items that differ. Return the same shape for each item, or pass
    ``out="list"``.

    Examples
    --------
    Nothing warns if you ask for a list:

    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.parallel_map(np.arange, [1, 2], out="list")
    [array([0]), array([0, 1])]
    """


class UnseededWarning(UserWarning):
    """A function drew from the global random numbers of NumPy or `random`, without ``seed=``.

    Workers have their own, which differ from run to run, so results that depend on them cannot be
    repeated. The warning comes once for each function, also if a library drew. Some libraries do
    not use what they draw, such as `sklearn.svm.SVC` without ``random_state=``. There is no warning
    for a function that seeds the numbers itself.

    Examples
    --------
    Random numbers that are the same in each run, for any number of workers:

    >>> import nbshare
    >>> def noise(star, rng):
    ...     return rng.normal(loc=20.0)
    >>> nbshare.parallel_map(noise, ["Vega", "Mira"], seed=1).round(2)
    array([19.36, 22.49])
    """


class DisplayWarning(UserWarning):
    """Drawing a progress display or a plot failed, or nothing here can show it.

    The run itself continues. The message has the error of the drawing.

    Examples
    --------
    A plot where there is no notebook:

    >>> import math, warnings
    >>> import nbshare
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], plot="line")
    >>> roots, str(caught[0].message)[:33]
    (SharedArray([1., 2.]), 'plot= is shown in a notebook only')
    """


class CheckpointWarning(UserWarning):
    """Results cannot be stored, or stored ones are damaged, but the run itself continues.

    The message says why, such as a full disk, and what happens to the results.

    Examples
    --------
    A run that is worth nothing if it is not stored stops with an error instead:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> must_store = nbshare.Checkpoint(folder, on_full="stop")
    >>> nbshare.parallel_map(math.sqrt, [1.0, 4.0, 9.0], checkpoint=must_store)
    SharedArray([1., 2., 3.])
    """


__all__ = sorted(
    ["WorkerDiedError"]
    + [name for name in globals() if name.endswith(("Error", "Interrupted", "Warning"))]
)


def __dir__() -> list[str]:
    return __all__  # for completion, the public names


def warn_at_most(
    message: str, category: type[Warning], line: tuple[str, int] | None = None
) -> None:
    """Warn each time. If warnings are made errors, say it without ending the run."""
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
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == __package__


def cut(text: str, n: int = 200) -> str:
    """Shorten to what a message can bear, as an item's repr may be a gigabyte long."""
    return text if len(text) <= n else text[:n] + "…"


def counted(n: int, thing: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
