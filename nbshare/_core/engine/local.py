"""The engine of this process, created by the first call, ended with the process."""

from __future__ import annotations

import _thread
import atexit
import errno
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from nbshare import errors
from nbshare._core.engine.dispatcher import Dispatcher
from nbshare._core.interrupts import refuse_patched_modules
from nbshare._core.memory import need_shared, pool, slab
from nbshare._core.messages import without_frames
from nbshare._core.system import processes
from nbshare._core.tracebacks import shown_from_the_call

REFUSED = {errno.EPERM, errno.ENOSYS, errno.EINVAL}  # other errors name the shortage

_dispatcher: Dispatcher | None = None


at_shutdown: list[Callable[[], None]] = []  # called by `shutdown`
_lock = _thread.allocate_lock()  # held while a dispatcher is created


def dispatcher() -> Dispatcher:
    """Return the dispatcher of this process. Start one if none is running.

    Raises
    ------
    NotBuiltYetError
        If processes cannot share memory on this system, or this is a frozen program.
    WorkerDiedError, OSError
        If the system allows no more threads or open files.
    RuntimeError
        If the caller is the dispatcher's own thread, or the interpreter is exiting.
    """
    refuse_to_wait_for_itself()
    need_shared("a worker process", 'pass backend="threads"')
    refuse_frozen("a worker process", 'pass backend="threads"')
    refuse_patched_modules()
    if _dispatcher is not None and not _dispatcher.is_closed:
        return _dispatcher
    if sys.is_finalizing():  # a thread would never begin
        raise RuntimeError("no worker can be started: the interpreter is exiting")
    outcomes: SimpleQueue[Dispatcher | BaseException] = SimpleQueue()
    try:
        _thread.start_new_thread(_live, (outcomes,))
    except RuntimeError as error:
        raise errors.WorkerDiedError(f"no worker could be started: {error}") from error
    outcome = outcomes.get()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def refuse_frozen(what: str, instead: str) -> None:
    """Raise NotBuiltYetError in a frozen program, which has no Python interpreter."""
    if getattr(sys, "frozen", False):
        raise errors.NotBuiltYetError(
            f"{what} needs a Python interpreter, which a frozen program (made by PyInstaller or a "
            f"similar tool) does not have: {instead}"
        )


def _live(outcomes: SimpleQueue[Dispatcher | BaseException]) -> None:
    """Create the dispatcher and run it, in a thread where no interrupt arrives."""
    global _dispatcher
    new = None
    with _lock:  # because two threads could each create one
        try:
            if _dispatcher is None or _dispatcher.is_closed:
                _check_system()
                _dispatcher = new = Dispatcher()
            outcomes.put(_dispatcher)
        except BaseException as error:  # noqa: BLE001 - for the waiting thread
            outcomes.put(without_frames(error))  # frames hold descriptors
    if new is not None:
        new.run()


def refuse_to_wait_for_itself() -> None:
    """Raise RuntimeError in the dispatcher's thread, which would wait for itself."""
    if _dispatcher is not None and _dispatcher.is_here:
        raise RuntimeError(
            "nbshare was called from __del__ or a weakref callback in the thread that manages its "
            "workers, and that thread would wait for itself. Start and await runs elsewhere, such "
            "as in a close() method or in a thread started by __del__."
        )


def is_ending() -> bool:
    """Return whether the interpreter is exiting, and only waits for other threads."""
    # An interrupt in the middle of `threading.main_thread().is_alive()` makes that thread count as
    # ended for good, in Python 3.11.
    return bool(getattr(threading, "_SHUTTING_DOWN", False))


@shown_from_the_call
def shutdown() -> None:
    """End the workers and free the memory kept for the next call, which starts new workers.

    Running calls in other threads end with their results so far. This happens automatically when
    the process ends.

    Examples
    --------
    Free everything now:

    >>> import nbshare
    >>> nbshare.shutdown()

    Free the memory of large arrays before another program needs it:

    >>> field = nbshare.ones((1000, 1000))
    >>> del field
    >>> nbshare.shutdown()
    """
    if _dispatcher is not None:
        _dispatcher.shutdown()
        if _dispatcher.is_here:  # called by a finalizer
            return
    for end in at_shutdown:
        end()
    pool.drop()
    slab.drop()


def _forget() -> None:
    """Forget the parent's workers in a forked child, whose first call starts its own."""
    global _dispatcher, _lock
    _lock = _thread.allocate_lock()
    inherited, _dispatcher = _dispatcher, None
    if inherited is not None:
        inherited.forget()


def _check_system() -> None:
    """Try the system calls that nbshare cannot do without.

    Raises
    ------
    WorkerDiedError
        If the system refuses a call.
    """
    for name, attempt in processes.NEEDED.items():
        try:
            attempt()
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in REFUSED:
                raise
            raise errors.WorkerDiedError(
                f"no worker can be started: this system refuses {name} ({error}), perhaps because "
                'of the seccomp profile of a container. Allow it, or use backend="threads".'
            ) from None


atexit.register(shutdown)
processes.at_fork(after_in_child=_forget)
