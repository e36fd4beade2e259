"""A queue of array slots between processes: tokens move, the data stay where they are."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from nbshare.arrays.buffer import SharedBuffer
from nbshare.arrays.by_reference import ByReference
from nbshare.arrays.create import Shape, checked_dtype, checked_shape
from nbshare.arrays.lock import SharedLock
from nbshare.arrays.ring_slots import FILLED, FREED, RingStats, SlotStates, layout_of
from nbshare.arrays.ring_waiting import Lease, Monitor, futex
from nbshare.arrays.shared_array import SharedArray
from nbshare.errors import RingClosedError
from nbshare.tracebacks import shown_from_the_call

__all__ = ["RingBuffer"]

OnDeath = Literal["reclaim", "leave"]


class RingBuffer(ByReference):
    """A queue of array slots between processes, filled and read in place.

    Producers fill slots, consumers read them, and nothing is copied or pickled: a slot is an array
    in shared memory, of which only the right to use it moves on. When all slots are full,
    producers wait. Any number of producers and consumers, in threads and processes.

    Parameters
    ----------
    slots : int
        How many, 1 or more. Two let reading and writing overlap; more smooth out uneven timing.
    shape : int or sequence of ints
        Of each slot.
    dtype : data-type, optional
        Any NumPy dtype without Python objects inside; default float64.
    on_death : {"reclaim", "leave"}, optional
        What happens to a slot if the process that holds it dies. ``"reclaim"`` (default): a
        producer's is free again, its contents dropped; a consumer's is queued again, in its old
        place, and another consumer gets it. ``"leave"``: the slot is lost; for a program that
        watches its processes, and aborts the ring itself.
    in_order : bool, optional
        True: consumers get the slot with the number 0 first, then 1, and so on, in whatever order
        several producers have filled them: ``lease = ring.put()`` and, inside of ``with lease as
        slot:``, ``lease.number = 7``. A consumer reads the same attribute. Take the slot first,
        then the next number: else all slots may hold later ones, and everybody waits. Default
        False: first come, first served.

    Attributes
    ----------
    slots : int
        Their number.
    shape : tuple of int
        Of each slot.
    dtype : numpy.dtype
        Of each slot.

    Raises
    ------
    nbshare.errors.NotBuiltYetError
        On systems other than Linux, and on processors that it does not know.
    nbshare.errors.OutOfMemoryError
        If this machine or its container has not that much memory left; a `MemoryError`.

    See Also
    --------
    SharedBuffer : one block of shared memory, without a queue.

    Examples
    --------
    >>> import threading
    >>> import nbshare
    >>> ring = nbshare.RingBuffer(4, (2, 3), "float32")
    >>> def load():
    ...     for i in range(10):
    ...         with ring.put() as slot:
    ...             slot[...] = i
    ...     ring.close()
    >>> loader = threading.Thread(target=load)
    >>> loader.start()
    >>> [int(slot.sum()) for slot in ring]
    [0, 6, 12, 18, 24, 30, 36, 42, 48, 54]
    >>> loader.join()

    Notes
    -----
    Slots come in the order in which their put blocks ended, to each consumer as to all of them
    together. A new slot holds what an earlier one has left in it (zeros at first).

    **A slot is yours until its block ends, or the loop asks for the next.** Afterwards it is
    filled anew; whatever still views it, by ``slot[:5]`` too, sees that happen. To keep values,
    copy them: ``slot.copy()``.

    A block that ends by an exception: a producer's slot is not queued; a consumer's counts as
    read. Unless ``on_death="leave"``, a process that dies with a slot, by whatever signal, never
    blocks the others for good: they see it within some tenths of a second. A consumer's slot that
    is queued again may have been read in part or in whole (*at least once*), and may kill the next
    consumer in the same way. At the end of the data consumers do not wait for each other: the slot
    of one that dies after the others are done stays queued, as `statistics` shows, for whoever asks
    next.

    The ring cannot notice that a producer without a slot dies. Close the ring when a producer ends,
    however it ends: ``future.add_done_callback(lambda _: ring.close())``.

    The ring travels by reference: as an item, in a `functools.partial`, in ``shared=``, and
    through the pools, queues and Process arguments of `multiprocessing` and joblib. Plain `pickle`
    and `copy` refuse it.

    Safe from any thread. Waiting costs almost no CPU time; Ctrl-C ends it at once. Do not
    fork inside a block, or let the child leave it: the slot is the parent's.
    """

    is_tool = True

    @shown_from_the_call
    def __init__(
        self,
        slots: int,
        shape: Shape,
        dtype: npt.DTypeLike = float,
        *,
        on_death: OnDeath = "reclaim",
        in_order: bool = False,
    ) -> None:
        try:
            n_slots = operator.index(slots)
        except TypeError:
            raise TypeError(f"slots={slots!r}: must be an integer, 1 or more") from None
        if n_slots < 1:
            raise ValueError(f"slots={slots}: must be 1 or more; 2 let one be filled meanwhile")
        if on_death not in get_args(OnDeath):
            raise ValueError(f"on_death={on_death!r}: must be 'reclaim' or 'leave'")
        futex()  # an error where there is none
        form = n_slots, *checked_shape(shape, checked_dtype(dtype))
        memory = SharedBuffer(SharedBuffer.nbytes_for(layout_of(*form)))._parts()
        self._attach(*memory, *form, on_death, bool(in_order))

    def _attach(self, block: SharedArray, lock: SharedLock, *settings: Any) -> None:
        self._settings = settings
        self.slots, self.shape, self.dtype, on_death, in_order = settings
        self._buffer = SharedBuffer.__new__(SharedBuffer)
        self._buffer._attach(block, lock)
        layout = self._buffer.layout(layout_of(self.slots, self.shape, self.dtype))
        arrays = {name: np.asarray(array) for name, array in layout.items()}
        self._states = SlotStates(arrays, self.shape, self.dtype, in_order=in_order)
        self._monitor = Monitor(self._states, lock, reclaims=on_death == "reclaim")

    def put(self, timeout: float | None = None) -> Lease:
        """Return a context manager that gives a free slot to fill; its end queues the slot.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for one; default without limit.

        Returns
        -------
        context manager of SharedArray
            Of the ring's shape and dtype, writable. If the block ends by an exception, the slot
            is not queued.

        Raises
        ------
        nbshare.errors.RingClosedError
            At the block's beginning, if the ring is closed.
        nbshare.errors.RingAbortedError
            At its beginning or end, if the ring was aborted.
        nbshare.errors.RingTimeoutError
            If no slot became free in time; a `TimeoutError`.

        Examples
        --------
        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = [1, 2, 3]
        >>> ring
        <RingBuffer of 2 slots of (3,) float64, 1 queued>
        """
        return Lease(self._monitor, FREED, _checked_timeout(timeout))

    def trim(self, slot: npt.NDArray[Any], rows: int) -> None:
        """Say how many rows of a slot are filled, if not all: the consumer gets no more.

        Parameters
        ----------
        slot : SharedArray
            A slot that this process got from `put`.
        rows : int
            How many rows along axis 0 are queued when the block of `put` ends. 0: nothing is
            queued.

        Raises
        ------
        ValueError
            If the array is not such a slot, or has fewer rows.

        Examples
        --------
        >>> import io
        >>> import nbshare
        >>> ring, file = nbshare.RingBuffer(4, 8, "u1"), io.BytesIO(b"eleven char")
        >>> n = 1
        >>> while n:
        ...     with ring.put() as slot:
        ...         n = file.readinto(slot)
        ...         ring.trim(slot, n)
        >>> ring.close()
        >>> [slot.tobytes() for slot in ring]
        [b'eleven c', b'har']
        """
        self._states.trim(slot, operator.index(rows))

    def get(self, timeout: float | None = None) -> Lease:
        """Return a context manager that gives the next filled slot; its end frees the slot.

        Parameters
        ----------
        timeout : float, optional
            As of `put`.

        Returns
        -------
        context manager of SharedArray
            As filled: with fewer rows if `trim` said so. Writable.

        Raises
        ------
        nbshare.errors.RingClosedError
            If the ring is closed and all is read, or in other consumers' hands; an `EOFError`.
        nbshare.errors.RingAbortedError, nbshare.errors.RingTimeoutError
            As by `put`.

        Examples
        --------
        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = 7
        >>> with ring.get() as slot:
        ...     print(slot)
        [7. 7. 7.]
        """
        return Lease(self._monitor, FILLED, _checked_timeout(timeout))

    def __iter__(self) -> Iterator[SharedArray]:
        """Yield the slots, each until the next is asked for, to the end of the data."""
        while True:
            try:
                with self.get() as slot:
                    yield slot
            except RingClosedError:
                return

    def close(self) -> None:
        """Say that no more data come: consumers finish what is queued, then their loops end.

        Blocks of `put` that have begun may end. With several producers, close when the last one is
        done. Closing twice does nothing.
        """
        self._monitor.do(self._states.close)

    def abort(self, reason: str = "") -> None:
        """Stop everybody now: all who use the ring, or wait, get a RingAbortedError.

        Parameters
        ----------
        reason : str, optional
            Shown in their errors, about the first 1000 characters. The first call's reason counts.
        """
        self._monitor.do(self._states.abort, str(reason))

    def statistics(self) -> RingStats:
        """Return counts and waiting times, which show the bottleneck.

        Returns
        -------
        RingStats
            Of one moment.

        Examples
        --------
        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = 7
        >>> figures = ring.statistics()
        >>> figures.queued, figures.free, figures.n_put, figures.n_got
        (1, 1, 1, 0)
        """
        self._monitor.look_for_the_dead()
        with self._buffer.lock:
            return self._states.stats()

    def __repr__(self) -> str:
        queued = self._states.stats().queued
        return f"<RingBuffer of {self.slots} slots of {self.shape} {self.dtype}, {queued} queued>"

    def _parts(self) -> tuple[Any, ...]:
        return *self._buffer._parts(), *self._settings


def _checked_timeout(timeout: Any) -> float:
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real) or not float(timeout) >= 0:
        raise ValueError(f"timeout={timeout!r}: must be seconds, 0 or more, or None for no limit")
    return float(timeout)
