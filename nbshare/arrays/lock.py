"""A lock in shared memory, which the kernel takes away from whoever dies while holding it."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from nbshare.arrays.by_reference import ByReference, Reduced
from nbshare.arrays.create import zeros
from nbshare.arrays.mutex import HOLDER_MASK, NBYTES, pthread
from nbshare.arrays.shared_array import SharedArray

__all__ = ["SharedLock"]

UNTOLD = 56  # place of the byte: taken over from the dead by one that was interrupted, and left
SLICE_S = 0.1  # a wait in C cannot be interrupted: so long Ctrl-C waits, at ten wake-ups a second


class SharedLock(ByReference):
    """A lock that excludes threads, processes and its own copies alike.

    It is used as `threading.Lock` is, and travels by reference: as an item, in a
    `functools.partial`, in ``shared=``, and through the pools and queues of `multiprocessing` and
    joblib. All copies, in whatever process, are the same lock.

    A holder that ends, thread or process, even by SIGKILL, releases it; the next one finds
    `was_abandoned` true, since the data may be half written.

    Attributes
    ----------
    was_abandoned : bool
        Whether the last `acquire` of this object took the lock over from a holder that had ended
        without releasing it. Look while you hold it.

    Raises
    ------
    nbshare.errors.NotBuiltYetError
        If the system's C library has no robust mutexes (macOS, Windows).

    See Also
    --------
    SharedBuffer : memory that has such a lock.

    Examples
    --------
    >>> import nbshare
    >>> lock, total = nbshare.SharedLock(), nbshare.zeros(1, int)
    >>> with lock:
    ...     total += 1
    >>> lock.acquire(timeout=0.5)
    True
    >>> lock
    <SharedLock held by this thread>
    >>> lock.release()

    Notes
    -----
    Safe from any thread. It belongs to the thread that took it: only this one can release it. It
    is not reentrant: a second `acquire` by its holder is a `RuntimeError` at once. A process that
    is forked while its parent holds the lock does not hold it.

    Waiting costs no CPU time to speak of. Ctrl-C ends a wait within a fraction of a second, and
    leaves the lock to whoever holds it. Who waits longest is not served first.

    Plain `pickle` and `copy` refuse it: a lock in a file would lock nothing.
    """

    is_tool = True
    was_abandoned = False

    # Bound here because at exit the modules' names, and the built-in ones, may be gone before the
    # last lock is.
    _access: ClassVar[Any] = staticmethod(os.access)
    _holder_mask: ClassVar[int] = HOLDER_MASK
    _place: SharedArray | None = None

    def __init__(self) -> None:
        place = zeros(NBYTES, np.uint8)
        pthread().initialise(_address(place))  # nobody else can see it yet
        self._attach(place)

    def _attach(self, place: SharedArray) -> None:
        self._pthread = pthread()
        address = _address(place)
        self._as_parameter_ = ctypes.c_void_p(address)  # so that C functions take the lock itself
        self._word = ctypes.c_uint32.from_address(address + self._pthread.holder_offset)
        self._untold = ctypes.c_ubyte.from_address(address + UNTOLD)
        self._place = place

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; waits until it is free.

        Parameters
        ----------
        blocking : bool, optional
            False: do not wait.
        timeout : float, optional
            Seconds to wait at most; default -1, without limit.

        Returns
        -------
        bool
            Whether this thread holds it now.

        Raises
        ------
        RuntimeError
            If this thread, which holds it already, would wait for itself.
        ValueError, OverflowError
            For time-outs that `threading.Lock` refuses too.
        """
        if blocking is not True or timeout != -1:
            allocate_lock().acquire(blocking, timeout)  # a lock of Python's checks the arguments
        wait_s = 0.0 if not blocking else math.inf if timeout == -1 else timeout
        if self._word.value and self._is_mine():
            if not wait_s:
                return False
            raise RuntimeError(
                "this thread holds the SharedLock already and would wait for itself for ever: it "
                "is not reentrant. Take it once, around all that needs it; if an interrupt has "
                "left it held, release() it."
            )
        try:
            code = self._wait(wait_s)
            if code in (errno.EBUSY, errno.ETIMEDOUT):
                return False
            if code == errno.EOWNERDEAD:
                # Noted in the memory, first: if an interrupt ends this acquire, the next is told.
                self._untold.value = 1
                self._pthread.consistent(self)
            elif code:
                raise OSError(code, f"SharedLock: {os.strerror(code)}")
            self.was_abandoned = bool(self._untold.value)
            self._untold.value = 0
            # No call follows, and so no interrupt, until the caller has the lock.
            return True
        except BaseException:
            # It was not ours above. An interrupt may have come between success and our knowing it.
            if self._is_mine():
                if self._pthread.consistent(self) == 0:  # taken over from the dead, as above
                    self._untold.value = 1
                self._pthread.unlock(self)
            raise

    def release(self) -> None:
        """Release the lock.

        Raises
        ------
        RuntimeError
            If this thread does not hold it.
        """
        self._pthread.unlock(self)

    def locked(self) -> bool:
        """Return whether a living thread of any process holds the lock."""
        return bool(self._holder())

    __enter__ = acquire

    @property
    def __exit__(self) -> Callable[..., None]:
        # Looked up before the block begins, and a C function: an interrupt at the first line of a
        # method in Python would end the block with the lock held.
        return partial(self._pthread.unlock_at_exit, self)

    def _wait(self, wait_s: float) -> int:
        """Return 0 or EOWNERDEAD with the lock taken, EBUSY or ETIMEDOUT without it."""
        code: int = self._pthread.trylock(self)
        if code != errno.EBUSY:
            return code
        end = time.monotonic() + wait_s
        while code in (errno.EBUSY, errno.ETIMEDOUT) and (left := end - time.monotonic()) > 0:
            code = self._pthread.wait(self, min(left, SLICE_S))
        return code

    def _holder(self) -> int:
        """Return the system's number of the thread that holds the lock; 0 for none."""
        return self._word.value & self._holder_mask

    def _is_mine(self) -> bool:
        return self._holder() == threading.get_native_id()

    def _reduce_by_reference(self) -> Reduced:
        return _arrive, (self._place,)

    def __repr__(self) -> str:
        holder = self._holder()
        whose = "this thread" if self._is_mine() else f"thread {holder}"
        return f"<SharedLock {f'held by {whose}' if holder else 'unlocked'}>"

    def __del__(self) -> None:
        # The C library keeps a list of the locks that a thread holds, in their memory: unmapped
        # under its hands, it would write anywhere, and the kernel could not release them at the
        # thread's end. So the mapping of a lock that is thrown away while held here stays.
        if self._place is None or not (holder := self._holder()):
            return
        # The holder may belong to another process, with a mapping of its own.
        if self._access(f"/proc/self/task/{holder}", 0):
            self._pthread.keep(self._place)


def _arrive(place: SharedArray) -> SharedLock:
    lock = SharedLock.__new__(SharedLock)
    lock._attach(place)
    return lock


def _address(place: SharedArray) -> int:
    return int(place.__array_interface__["data"][0])
