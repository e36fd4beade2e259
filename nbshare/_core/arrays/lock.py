"""A lock in shared memory. If a process dies while holding it, the kernel releases it.

On Linux it is a mutex of the C library (POSIX threads) with three attributes. It is
*process-shared*, so that it works in memory that several processes map. It is *robust*, so that the
kernel releases it when the thread that holds it ends, however it ends. It is *error-checking*, so
that releasing a lock that another thread holds is an error.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from _thread import allocate_lock
from typing import Any

import numpy as np

from nbshare._core.arrays.by_reference import ByReference
from nbshare._core.arrays.create import zeros
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.memory import need_shared
from nbshare._core.system import locks
from nbshare._core.tracebacks import shown_from_its_calls

NBYTES = 64  # a pthread_mutex_t takes 40 to 48
SLICE_S = 0.1  # Ctrl-C cannot interrupt a wait in C, so each ends after this time


@shown_from_its_calls
class SharedLock(ByReference):
    """A lock between threads and between processes.

    Use it like a `threading.Lock`. It is sent by reference, as an item, in a `functools.partial`,
    in ``shared=``, and through the pools and queues of `multiprocessing` and joblib. All copies, in
    any process, are the same lock.

    If its holder (thread or process) ends, even by SIGKILL, the lock is released. The next holder
    finds `was_abandoned` true, because the data may be half written.

    Examples
    --------
    Hold it in a ``with`` block:

    >>> import nbshare
    >>> lock, total = nbshare.SharedLock(), nbshare.zeros(1, int)
    >>> with lock:
    ...     total += 1

    Wait for half a second at most:

    >>> lock.acquire(timeout=0.5)
    True
    >>> lock
    <SharedLock held by this thread>
    >>> lock.release()

    Workers that add to the same number:

    >>> import functools
    >>> def add(n_photons, total, lock):
    ...     with lock:
    ...         total += n_photons
    >>> function = functools.partial(add, total=total, lock=lock)
    >>> done = nbshare.parallel_map(function, [10, 20, 30])
    >>> total
    SharedArray([61])

    Attributes
    ----------
    was_abandoned : bool
        Whether the previous holder ended without releasing the lock. Read it while you hold the
        lock.

    Raises
    ------
    nbshare.errors.NotBuiltYetError
        If processes cannot share memory on this system.

    See Also
    --------
    SharedBuffer : memory with such a lock.

    Notes
    -----
    Only the thread that acquired the lock can release it. The lock is not reentrant. A second
    `acquire` by its holder raises `RuntimeError` immediately. A process that is forked while its
    parent holds the lock does not hold it.

    Waiting costs almost no CPU time. Ctrl-C ends a wait within a fraction of a second. Waiters are
    not served in order. An interrupt in the last line of a block can leave the lock held, as with
    `multiprocessing.Lock`. Then `release` it.

    Plain `pickle` and `copy` refuse it, because a lock in a file would lock nothing.

    On macOS, all locks of a user use one empty file, which is not removed:
    ``~/Library/Application Support/nbshare/locks``. Do not remove it while locks are used.
    """

    __module__ = "nbshare"

    _is_tool = True
    was_abandoned = False
    _place = None

    def __init__(self) -> None:
        need_shared("SharedLock", "return results from the workers, and combine them here")
        place = zeros(NBYTES, np.uint8)
        locks.mutexes().initialise(place.ctypes.data)  # no other process can see it yet
        self._attach(place)

    def _attach(self, place: SharedArray) -> None:
        self._mutexes = locks.mutexes()
        # The functions of the C library then accept the lock itself.
        self._as_parameter_, self._word = self._mutexes.at(place.ctypes.data)
        self._place = place

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, waiting until it is free.

        Examples
        --------
        Acquire it, and release it in any case:

        >>> import nbshare
        >>> lock, total = nbshare.SharedLock(), nbshare.zeros(1)
        >>> if lock.acquire():
        ...     try:
        ...         total += 1
        ...     finally:
        ...         lock.release()

        Do not wait for a lock that another process holds:

        >>> if lock.acquire(blocking=False):
        ...     total += 1
        ...     lock.release()
        ... else:
        ...     print("later")
        >>> total
        SharedArray([2.])

        Parameters
        ----------
        blocking : bool, optional
            Whether to wait. Default True.
        timeout : float, optional
            Seconds to wait at most. Default -1, without limit.

        Returns
        -------
        bool
            Whether this thread holds it now.

        Raises
        ------
        RuntimeError
            If this thread already holds it, and would wait for itself.
        ValueError, OverflowError
            If `threading.Lock` would refuse the time-out.
        """
        if blocking is not True or timeout != -1:
            allocate_lock().acquire(blocking, timeout)  # a lock of Python's checks the arguments
        wait_s = 0.0 if not blocking else math.inf if timeout == -1 else timeout
        if self._word.value and self._is_mine():
            if not wait_s:
                return False
            raise RuntimeError(
                "this thread holds the SharedLock already and would wait for itself forever: the "
                "lock is not reentrant. Acquire it once, in the outermost function. If an "
                "interrupt has left the lock held, call release()."
            )
        try:
            code = self._wait(wait_s)
            if code in (errno.EBUSY, errno.ETIMEDOUT):
                return False
            if code == errno.EOWNERDEAD:
                self._mutexes.consistent(self)
            elif code:
                raise OSError(code, f"SharedLock: {os.strerror(code)}")
            self.was_abandoned = code == errno.EOWNERDEAD
            # No call follows before the caller holds the lock, so no interrupt arrives.
            return True
        except BaseException:
            # This thread did not hold it above. An interrupt may have arrived right after the
            # success.
            if self._is_mine():
                self._mutexes.consistent(self)  # if its last holder died
                self.release()
            raise

    def release(self) -> None:
        """Release the lock.

        Raises
        ------
        RuntimeError
            If this thread does not hold it.
        """
        self._mutexes.unlock(self)

    def locked(self) -> bool:
        """Return whether a live thread of any process holds the lock."""
        return bool(self._holder())

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait(self, wait_s: float) -> int:
        """Return 0 or EOWNERDEAD with the lock acquired, EBUSY or ETIMEDOUT without it."""
        code: int = self._mutexes.trylock(self)
        end = time.monotonic() + wait_s
        while code in (errno.EBUSY, errno.ETIMEDOUT) and (left := end - time.monotonic()) > 0:
            # By the adjustable clock, because not every library can wait by another one.
            code = self._mutexes.timedlock(self, locks.timespec(time.time() + min(left, SLICE_S)))
        return code

    def _holder(self) -> int:
        """Return the system's number for the thread that holds the lock, 0 if no thread does."""
        holder: int = self._word.value & self._mutexes.HOLDER
        return holder

    def _is_mine(self) -> bool:
        return self._holder() == threading.get_native_id()

    def _parts(self) -> tuple[Any, ...]:
        return (self._place,)

    def __repr__(self) -> str:
        holder = self._holder()
        whose = "this thread" if self._is_mine() else f"thread {holder}"
        return f"<SharedLock {f'held by {whose}' if holder else 'unlocked'}>"

    def __del__(self) -> None:
        # The C library links the locks that a thread holds into a list, in their memory. If that
        # were unmapped, it would write to other memory, and the kernel could not release the locks
        # at the thread's end. So the mapping of a lock that is dropped while held stays.
        if self._place is None or not (holder := self._holder()):
            return
        # The holder may belong to another process, with its own mapping.
        if self._mutexes.has_thread(holder):
            self._mutexes.keep(self._place)
