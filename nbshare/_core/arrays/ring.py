"""RingBuffer, a queue of array slots between processes. The data stay in place."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.buffer import SharedBuffer
from nbshare._core.arrays.by_reference import ByReference
from nbshare._core.arrays.create import Shape, checked_form, checked_int
from nbshare._core.arrays.lock import SharedLock
from nbshare._core.arrays.ring_slots import FILLED, FREED, RingStats, SlotStates, layout_of
from nbshare._core.arrays.ring_waiting import USE_WITH, Monitor, SlotLease
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.interrupts import uninterrupted
from nbshare._core.memory import need_shared
from nbshare._core.messages import counted, cut
from nbshare._core.system import waiting
from nbshare._core.tracebacks import shown_from_its_calls
from nbshare.errors import RingClosedError

OnDeath = Literal["reclaim", "leave"]


@shown_from_its_calls
class RingBuffer(ByReference):
    """A queue of array slots between processes, filled and read in place.

    Producers fill slots and consumers read them. No data are copied or pickled, because a slot is
    an array in shared memory, and only the right to use it moves. When all slots are full,
    producers wait. There can be any number of producers and consumers, in threads and processes.

    Examples
    --------
    Fill a slot, and read it:

    >>> import nbshare
    >>> ring = nbshare.RingBuffer(2, 3)
    >>> with ring.put() as slot:
    ...     slot[...] = [1, 2, 3]
    >>> with ring.get() as slot:
    ...     print(slot)
    [1. 2. 3.]

    A thread reads a detector while the caller uses the frames:

    >>> import threading
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

    Parameters
    ----------
    slots : int
        Number of slots, 1 or more. Two slots let reading and writing overlap. More smooth out
        uneven timing.
    shape : int or sequence of ints
        Shape of each slot.
    dtype : data-type, optional
        Any NumPy dtype without Python objects. Default float64.
    on_death : {"reclaim", "leave"}, optional
        The action on a slot if the process that holds it dies. With ``"reclaim"`` (default), a
        producer's slot is freed and its contents are dropped, and a consumer's slot is queued
        again, in its old place, for another consumer. With ``"leave"``, the slot is lost, for
        programs that watch their processes and abort the ring themselves.
    in_order : bool, optional
        If False (default), slots are consumed in the order of their commits. If True, consumers
        receive slot number 0 first, then 1, and so on, in whatever order several producers fill
        them. A producer sets the number of ``lease = ring.put()`` as ``lease.number = 7``, inside
        of ``with lease as slot:``. A consumer reads the same attribute. Take the slot before the
        next number. Otherwise all slots may hold later numbers, and all processes wait forever.

    Attributes
    ----------
    slots : int
        Number of slots.
    shape : tuple of int
        Shape of each slot.
    dtype : numpy.dtype
        Dtype of each slot.

    Raises
    ------
    nbshare.errors.NotBuiltYetError
        If processes cannot share memory on this system, or its processor is unknown.
    nbshare.errors.OutOfMemoryError
        If the slots need more memory than this machine or container has left. A `MemoryError`.

    See Also
    --------
    pipeline : stages in separate processes, joined by ring buffers.
    SharedBuffer : one block of shared memory, without a queue.

    Notes
    -----
    Slots arrive in the order in which their put blocks ended. A new slot holds the values of an
    earlier one (zeros at first).

    **A slot is valid until its block ends, or the loop requests the next one.** After that, a
    producer may fill it again, and every view of it, such as ``slot[:5]``, changes. To keep values,
    copy them with ``slot.copy()``.

    If a block ends with an exception, a producer's slot is not queued, and a consumer's slot counts
    as read. A process that dies with a slot never blocks the others forever, unless
    ``on_death="leave"``. They notice within some tenths of a second. A consumer's slot that is
    queued again may have been read in part or in whole (*at least once*), and may kill the next
    consumer in the same way. At the end of the data consumers do not wait for each other. If one
    dies after the others have finished, its slot stays queued, as `stats` shows, for the next
    consumer.

    The ring cannot notice the death of a producer without a slot. Close the ring when a producer
    ends, however it ends, such as with ``future.add_done_callback(lambda _: ring.close())``.

    The ring is sent by reference, as an item, in a `functools.partial`, in ``shared=``, and through
    the pools, queues and Process arguments of `multiprocessing` and joblib. Plain `pickle` and
    `copy` refuse it.

    Any thread may use the ring. Waiting costs almost no CPU time. Ctrl-C ends a wait immediately.
    Do not fork inside a block, or let the child leave it, because the slot belongs to the parent.
    An interrupt in the last line of a block can leave its slot taken as long as the traceback is
    kept.
    """

    __module__ = "nbshare"

    _is_tool = True

    def __init__(
        self,
        slots: int,
        shape: Shape,
        dtype: npt.DTypeLike = float,
        *,
        on_death: OnDeath = "reclaim",
        in_order: bool = False,
    ) -> None:
        hint = ". Use 2 or more so that one can be filled while another is read."
        n_slots = checked_int("slots", slots, 1, hint)
        if on_death not in get_args(OnDeath):
            raise ValueError(f"on_death={on_death!r} is not allowed: pass 'reclaim' or 'leave'")
        need_shared("RingBuffer", "send arrays through a multiprocessing.Queue")
        waiting.futex()  # raises where it is missing
        form = n_slots, *checked_form(shape, dtype)
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

    def put(self, timeout: float | None = None) -> SlotLease:
        """Wait for a free slot in a ``with`` block. The end of the block queues it.

        Examples
        --------
        Queue three numbers:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = [1, 2, 3]
        >>> ring
        <RingBuffer of 2 slots of (3,) float64, 1 queued>

        Skip a frame if the consumers are too slow:

        >>> with ring.put() as slot:
        ...     slot[...] = 4
        >>> try:
        ...     with ring.put(timeout=0) as slot:
        ...         slot[...] = 5
        ... except TimeoutError:
        ...     print("frame skipped")
        frame skipped

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for a slot. Default: no limit.

        Returns
        -------
        context manager of SharedArray
            A writable slot with the ring's shape and dtype. If the block ends with an exception,
            the slot is not queued.

        Raises
        ------
        nbshare.errors.RingClosedError
            If the ring is closed when the block begins.
        nbshare.errors.RingAbortedError
            If the ring was aborted when the block begins or ends.
        nbshare.errors.RingTimeoutError
            If no slot became free in time. A `TimeoutError`.
        """
        return SlotLease(self._monitor, FREED, _checked_timeout(timeout))

    def trim(self, slot: npt.NDArray[Any], rows: int) -> None:
        """Set the number of filled rows of a slot. The consumer receives only these.

        Examples
        --------
        The last block has fewer rows:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, (4, 3))
        >>> with ring.put() as slot:
        ...     slot[:2] = 1
        ...     ring.trim(slot, 2)
        >>> with ring.get() as slot:
        ...     slot.shape
        (2, 3)

        Read a file of any length:

        >>> import io
        >>> ring, file = nbshare.RingBuffer(4, 8, "u1"), io.BytesIO(b"eleven char")
        >>> n = 1
        >>> while n:
        ...     with ring.put() as slot:
        ...         n = file.readinto(slot)
        ...         ring.trim(slot, n)
        >>> ring.close()
        >>> [slot.tobytes() for slot in ring]
        [b'eleven c', b'har']

        Parameters
        ----------
        slot : SharedArray
            A slot that this process received from `put`.
        rows : int
            Rows along axis 0 that are queued when the block of `put` ends. 0 queues nothing.

        Raises
        ------
        ValueError
            If the array is not such a slot, or has fewer rows.
        """
        self._states.trim(slot, operator.index(rows))

    def get(self, timeout: float | None = None) -> SlotLease:
        """Wait for the next filled slot in a ``with`` block. The end of the block frees it.

        Examples
        --------
        Read the next slot:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = 7
        >>> with ring.get() as slot:
        ...     print(slot)
        [7. 7. 7.]

        Do something else if there is none:

        >>> try:
        ...     with ring.get(timeout=0) as slot:
        ...         print(slot)
        ... except TimeoutError:
        ...     print("nothing yet")
        nothing yet

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for a slot. Default: no limit.

        Returns
        -------
        context manager of SharedArray
            A writable slot, with the rows of `trim`.

        Raises
        ------
        nbshare.errors.RingClosedError
            If the ring is closed, and all slots are read or held by other consumers. An `EOFError`.
        nbshare.errors.RingAbortedError
            If the ring was aborted.
        nbshare.errors.RingTimeoutError
            If no slot was filled in time. A `TimeoutError`.
        """
        return SlotLease(self._monitor, FILLED, _checked_timeout(timeout))

    def __iter__(self) -> Iterator[SharedArray]:
        """Yield the slots until the end of the data. Each is valid until the next is requested."""
        while True:
            try:
                with self.get() as slot:
                    yield slot
            except RingClosedError:
                return

    def close(self) -> None:
        """Mark the end of the data. Consumers finish the queued slots, then their loops end.

        Blocks of `put` that have begun can still queue their slots. With several producers, close
        when the last one is done. A second call has no effect.

        Examples
        --------
        Consumers read the queued slots, then their loops end:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 1)
        >>> with ring.put() as slot:
        ...     slot[...] = 3
        >>> ring.close()
        >>> [float(slot[0]) for slot in ring]
        [3.0]

        Close when the last of several producers has finished:

        >>> ring = nbshare.RingBuffer(8, 1, int)
        >>> def measure(station, ring):
        ...     with ring.put() as slot:
        ...         slot[...] = station
        >>> import functools
        >>> job = nbshare.map_async(functools.partial(measure, ring=ring), [1, 2, 3])
        >>> job.add_done_callback(lambda job: ring.close())
        >>> sorted(int(slot[0]) for slot in ring)
        [1, 2, 3]

        See Also
        --------
        abort : stop all producers and consumers now.
        """
        self._monitor.do(self._states.close)

    def abort(self, reason: str = "") -> None:
        """Stop now. All producers and consumers receive a RingAbortedError.

        Examples
        --------
        All users of the ring receive the error:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 1)
        >>> ring.abort("the detector is too hot")
        >>> with ring.get() as slot:
        ...     print(slot)
        Traceback (most recent call last):
        nbshare.errors.RingAbortedError: the ring buffer was aborted: the detector is too hot

        A producer that fails stops the consumers too:

        >>> ring = nbshare.RingBuffer(2, 1)
        >>> try:
        ...     with ring.put() as slot:
        ...         slot[...] = float("no number")
        ... except ValueError as error:
        ...     ring.abort(str(error))
        >>> list(ring)
        Traceback (most recent call last):
        nbshare.errors.RingAbortedError: ... could not convert string to float: 'no number'

        Parameters
        ----------
        reason : str, optional
            Text for the errors, at most about 1000 characters. The first call decides.
        """
        self._monitor.do(self._states.abort, str(reason))

    @property
    def stats(self) -> RingStats:
        """Slot counts and waiting times (RingStats), which show the bottleneck.

        Examples
        --------
        The numbers of queued and free slots, and of slots put and got:

        >>> import nbshare
        >>> ring = nbshare.RingBuffer(2, 3)
        >>> with ring.put() as slot:
        ...     slot[...] = 7
        >>> figures = ring.stats
        >>> figures.queued, figures.free, figures.n_put, figures.n_got
        (1, 1, 1, 0)

        A queue that is full shows that consumers are slower than producers:

        >>> with ring.put() as slot:
        ...     slot[...] = 8
        >>> ring.stats.queued == ring.slots
        True
        """
        self._monitor.look_for_the_dead()
        with uninterrupted(), self._buffer.lock:
            return self._states.stats()

    def __repr__(self) -> str:
        slots, queued = counted(self.slots, "slot"), self._states.stats().queued
        return f"<RingBuffer of {slots} of {self.shape} {self.dtype}, {queued} queued>"

    def _parts(self) -> tuple[Any, ...]:
        return *self._buffer._parts(), *self._settings


def _checked_timeout(timeout: Any) -> float:
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real):
        shown = cut(repr(timeout))
        raise TypeError(
            f"timeout={shown} is not allowed: pass seconds, or None for no limit. {USE_WITH}"
        )
    if not float(timeout) >= 0:
        raise ValueError(
            f"timeout={timeout!r} is not allowed: pass 0 or more seconds, or None for no limit"
        )
    return float(timeout)
