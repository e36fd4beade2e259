"""The exceptions and warnings of nbshare.

::

    NbshareError
    ├── NotBuiltYetError     (NotImplementedError)   planned, but not supported yet
    ├── UnsendableError      (TypeError,             something cannot be sent to a worker
    │                         pickle.PicklingError)
    ├── OutOfMemoryError     (MemoryError)           refused before it was allocated
    ├── StaleReferenceError  (LookupError)           a shared array no longer exists
    ├── RingClosedError      (EOFError)              a ring buffer is closed, and empty
    ├── RingAbortedError     (RuntimeError)          a ring buffer was stopped
    ├── RingTimeoutError     (TimeoutError)          no free or filled slot in time
    ├── CheckpointError      (ValueError)            a checkpoint does not fit the call
    ├── CheckpointInUseError (BlockingIOError)       another run writes to the checkpoint
    ├── TaskTimeoutError     (TimeoutError)          an item took longer than timeout=
    ├── TaskError            (RuntimeError)          an exception could not keep its type
    └── WorkerDiedError      (BrokenProcessPool)     a worker died while it ran an item
    MapInterrupted           (KeyboardInterrupt)     the kernel's interrupt or Ctrl-C
    PartialResultWarning     (UserWarning)           a run was stopped: n of N results
    LengthsWarning           (UserWarning)           the iterables have different lengths
    ReusedItemWarning        (UserWarning)           an iterable reuses one object for its items
    MixedResultsWarning      (UserWarning)           results of different kinds became a list
    UnseededWarning          (UserWarning)           a function drew random numbers without a seed
    DisplayWarning           (UserWarning)           drawing failed; the run continues
    CheckpointWarning        (UserWarning)           results cannot be stored; the run continues

Every exception also derives from the built-in that you would catch. Only `MapInterrupted` is not
an `Exception`, so that ``except Exception`` in a cell does not swallow an interrupt::

    try:
        maps = nbshare.zeros((100_000, 100_000))
    except MemoryError as error:  # an nbshare.errors.OutOfMemoryError
        print(error)

Tutorial 4, "When things go wrong", shows how to handle each.
"""

import pickle as _pickle
import typing as _typing

from nbshare._core.base_error import NbshareError as NbshareError

if _typing.TYPE_CHECKING:
    from nbshare._core.died import WorkerDiedError as WorkerDiedError


def __getattr__(name: str) -> object:
    # Late, because importing its base class takes a third of the time of `import nbshare`.
    if name != "WorkerDiedError":
        if name[0] == "_":  # Python reads some names during imports
            raise AttributeError(name)
        from nbshare._core.tracebacks import no_attribute

        raise no_attribute(__name__, name, __all__)
    try:
        from nbshare._core.died import WorkerDiedError
    except AttributeError as error:  # Python would report a missing name
        raise ImportError(f"nbshare.errors.{name} cannot be imported: {error}") from error
    return WorkerDiedError


class NotBuiltYetError(NbshareError, NotImplementedError):
    """An argument, or a platform, is planned but not supported yet.

    Leave the argument out. The message lists the values that are allowed today.
    """


class UnsendableError(NbshareError, TypeError, _pickle.PicklingError):
    """A function, item, shared object or result cannot be sent to another process.

    Raised before any worker starts, if possible. The message names the part that cannot be pickled.
    Pass plain data, and create files, locks and connections in the function or ``initializer=``.
    """


class OutOfMemoryError(NbshareError, MemoryError):
    """A call needs more memory than this machine or container has left.

    Raised before anything is allocated. Process the data in parts, return less from each item, or
    set ``NBSHARE_MEMORY=file:DIRECTORY`` on Linux to keep arrays in files.
    """


class StaleReferenceError(NbshareError, LookupError):
    """A reference to a shared array arrived after its memory was freed.

    The process that sent it has ended, or belongs to another user or container. Keep the array in
    that process until the receiver has it. To other machines send a copy, ``np.asarray(x).copy()``.
    """


class RingClosedError(NbshareError, EOFError):
    """A `RingBuffer` is closed: raised by ``put``, and by ``get`` once the buffer is empty.

    ``for slot in ring`` ends instead.
    """


class RingAbortedError(NbshareError, RuntimeError):
    """A `RingBuffer` was stopped by `abort`, or by the death of a process that held a slot.

    Attributes
    ----------
    reason : str
        The argument of `abort`, empty if none was given.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RingTimeoutError(NbshareError, TimeoutError):
    """A `RingBuffer` had no slot within ``timeout`` seconds. Retry, or stop."""


class CheckpointError(NbshareError, ValueError):
    """The checkpoint belongs to another call or user, is damaged, or this call cannot have one.

    The message names the difference. Pass another path, or a `Checkpoint` with
    ``if_changed="restart"`` to run changed items again, or with ``if_changed="accept"`` to keep
    stored results.
    """


class CheckpointInUseError(NbshareError, BlockingIOError):
    """Another run writes to the checkpoint.

    Wait for that run, cancel it (`nbshare.attach` returns its job), or pass another path.
    """


class TaskError(NbshareError, RuntimeError):
    """An item failed with an exception that cannot be raised with its own type.

    The exception cannot be pickled, or it is `SystemExit`, `KeyboardInterrupt` or `bdb.BdbQuit`,
    which would end the caller. The message has its text, and the note the worker's traceback.

    Attributes
    ----------
    index : int
        Index of the item, -1 if the failure came before any item.
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
    """An item took longer than ``timeout=`` seconds. Its worker was killed and replaced.

    Raise ``timeout=``, pass ``retries=``, or pass ``on_error="return"`` to skip such items.

    Attributes
    ----------
    index : int
        Index of the item.
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class MapInterrupted(KeyboardInterrupt):
    """The kernel's interrupt (■) or Ctrl-C stopped a run. Finished results are kept.

    ``nbshare.last_job().partial()`` returns them. With ``checkpoint=``, the same call resumes. This
    class is not an `Exception`, so that ``except Exception`` in a cell does not swallow it.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython's hook. A notebook shows one line, without the frames of the waiting loop.
        return [f"{type(self).__name__}: {self}"]


class PartialResultWarning(UserWarning):
    """A run was stopped, and its result holds n of N items.

    Issued only if no progress display shows it, as in scripts and logs.
    """


class LengthsWarning(UserWarning):
    """The iterables of a run have different lengths, and the run stops at the shortest.

    Each call takes one item of each iterable, as in `map`. The message has the lengths.
    """

    __module__ = "nbshare.errors"


class ReusedItemWarning(UserWarning):
    """An iterable yields the same object for several items, and changes it each time.

    Items wait for a worker, and the object has changed by then. Yield a copy for each item:
    ``(copy.copy(frame) for frame in reader)``. Arrays, lists, tuples and dicts are copied.
    """


class MixedResultsWarning(UserWarning):
    """Results of different kinds fit no array and are returned as a list.

    The message names two items that differ. Return one shape for all, or pass ``out="list"``.
    """


class UnseededWarning(UserWarning):
    """A function drew from the global random numbers of NumPy or `random`, without ``seed=``.

    Each worker has its own random state, so results cannot be repeated. Pass ``seed=1`` and draw
    from ``rng``. Issued once per function, also if a library drew a number and did not use it.
    """


class DisplayWarning(UserWarning):
    """A progress display or a plot could not be drawn or shown.

    The run itself continues. The message has the error.
    """


class CheckpointWarning(UserWarning):
    """Results cannot be stored, or stored ones are damaged, but the run continues.

    The message has the reason, such as a full disk. ``Checkpoint(path, on_full="stop")`` stops the
    run instead.
    """


__all__ = sorted(
    ["WorkerDiedError"]
    + [name for name in globals() if name.endswith(("Error", "Interrupted", "Warning"))]
)


def __dir__() -> list[str]:
    return __all__  # for completion, the public names
