"""A queue of array slots between processes: tokens move, the data stay where they are."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from nbshare.arrays import futex
from nbshare.arrays.buffer import SharedBuffer
from nbshare.arrays.by_reference import ByReference, Reduced
from nbshare.arrays.create import checked_dtype, checked_shape
from nbshare.arrays.lease import Lease
from nbshare.arrays.monitor import Monitor, OnDeath
from nbshare.arrays.ring_memory import RingMemory
from nbshare.arrays.shared_array import SharedArray
from nbshare.arrays.tokens import FILLED, FREED, N_PUT, N_RECLAIMED, Tokens
from nbshare.errors import RingClosedError
from nbshare.tracebacks import shown_from_the_call

if TYPE_CHECKING:
    from nbshare.arrays.ring_statistics import RingStatistics

__all__ = ["RingBuffer"]

Shape = SupportsIndex | Sequence[SupportsIndex]


class RingBuffer(ByReference):
    """A queue of array slots between processes, filled and read in place.

    Producers fill slots, consumers read them, and nothing is copied or pickled: a slot is an array
    in shared memory, of which only the right to use it moves on. When all slots are full,
    producers wait. Any number of producers and consumers, in threads and processes.

    Parameters
    ----------
    slots : int
        How many, 1 or more. Two let one be filled while the other is read; some more even out
        what takes different times.
    shape : int or sequence of ints
        Of each slot.
    dtype : data-type, optional
        Any NumPy dtype without Python objects inside; default float64.
    on_death : {"reclaim", "fail", "leave"}, optional
        What becomes of the slot of a process that dies with it. ``"reclaim"`` (default): a
        producer's is free again, its contents dropped; a consumer's is queued again, in its old
        place, and another consumer gets it. ``"fail"``: the ring is aborted. ``"leave"``: nobody
        gets it any more; for a program that looks after its processes, and aborts the ring itself.
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
    consumer in the same way; with ``on_death="fail"`` no slot is read twice. At the end of the data
    consumers do not wait for each other: the slot of one that dies after the others are done stays
    queued, as `statistics` shows, for whoever asks next.

    A producer that dies without a slot leaves nothing to see. Whoever has started it should close
    the ring at its end, however it ends: ``future.add_done_callback(lambda _: ring.close())``.

    The ring travels by reference: as an item, in a `functools.partial`, in ``shared=``, and
    through the pools, queues and Process arguments of `multiprocessing` and joblib. Plain `pickle`
    and `copy` refuse it.

    Safe from any thread. Waiting costs no CPU time to speak of; Ctrl-C ends it at once. Do not
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
            raise ValueError(f"on_death={on_death!r}: must be 'reclaim', 'fail' or 'leave'")
        futex.require()
        self.slots = n_slots
        self.shape, self.dtype = checked_shape(shape, checked_dtype(dtype))
        self._on_death, self._in_order = on_death, bool(in_order)
        self._attach(RingMemory(n_slots, self.shape, self.dtype), fresh=True)

    def _attach(self, memory: RingMemory, *, fresh: bool) -> None:
        self._memory = memory
        rows = self.shape[0] if self.shape else 1
        self._tokens = Tokens(memory.arrays, rows, fresh=fresh, in_order=self._in_order)
        self._monitor = Monitor(
            self._tokens,
            memory.buffer.lock,
            memory.event_addresses,
            memory.waited_s,
            memory.slot,
            self._on_death,
        )

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
            That this process has from `put`.
        rows : int
            The first so many along axis 0, which `put` will queue when its block ends. 0: nothing
            is queued.

        Raises
        ------
        ValueError
            If the array is no such slot, or has not so many rows.

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
        n = operator.index(rows)
        if not self.shape or not 0 <= n <= self.shape[0]:
            raise ValueError(f"rows={rows}: a slot has the shape {self.shape}")
        index = self._memory.index_of(slot)
        if index is None or not self._tokens.trim(index, n):
            raise ValueError("that array is no slot which this process has from the ring's put()")

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
        self._monitor.do(self._tokens.close)

    def abort(self, reason: str = "") -> None:
        """Stop everybody now: whoever uses the ring, or waits, gets a RingAbortedError.

        Parameters
        ----------
        reason : str, optional
            Stands in their errors; the first 1000 characters or so. The first call's counts.
        """
        self._monitor.do(self._tokens.abort, str(reason))

    def statistics(self) -> RingStatistics:
        """Return figures that show the bottleneck.

        Returns
        -------
        RingStatistics
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
        from nbshare.arrays.ring_statistics import RingStatistics  # late: 1 ms for each worker

        self._monitor.look_for_the_dead()
        with self._memory.buffer.lock:
            queued, reading, filling, free = self._tokens.states()
            n_put = self._tokens.counts[N_PUT]
            n_reclaimed = self._tokens.counts[N_RECLAIMED]
            producers_s, consumers_s = self._monitor.waited_s.tolist()
        return RingStatistics(
            queued=queued,
            reading=reading,
            filling=filling,
            free=free,
            n_put=n_put,
            n_got=n_put - queued - reading,
            n_reclaimed=n_reclaimed,
            producers_waited_s=producers_s,
            consumers_waited_s=consumers_s,
        )

    def __repr__(self) -> str:
        queued = self._tokens.states()[0]
        return f"<RingBuffer of {self.slots} slots of {self.shape} {self.dtype}, {queued} queued>"

    def _reduce_by_reference(self) -> Reduced:
        _, memory = self._memory.buffer._reduce_by_reference()
        form = self.slots, self.shape, self.dtype, self._on_death, self._in_order
        return _arrive, (*memory, *form)


def _arrive(
    block: SharedArray,
    lock: Any,
    slots: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    on_death: OnDeath,
    in_order: bool,
) -> RingBuffer:
    ring = RingBuffer.__new__(RingBuffer)
    ring.slots, ring.shape, ring.dtype = slots, shape, dtype
    ring._on_death, ring._in_order = on_death, in_order
    buffer = SharedBuffer.__new__(SharedBuffer)
    buffer._attach(block, lock)
    ring._attach(RingMemory(slots, ring.shape, ring.dtype, buffer), fresh=False)
    return ring


def _checked_timeout(timeout: Any) -> float:
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real) or not float(timeout) >= 0:
        raise ValueError(f"timeout={timeout!r}: must be seconds, 0 or more, or None for no limit")
    return float(timeout)
