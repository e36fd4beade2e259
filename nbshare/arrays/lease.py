"""A slot for the length of a with block, given back whatever happens."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from nbshare.arrays.monitor import Monitor
from nbshare.arrays.shared_array import SharedArray
from nbshare.arrays.tokens import EVERYBODY, FREED
from nbshare.errors import NbshareError

__all__ = ["Lease"]


class _Exit:
    """What ends a with block: not a method.

    Python looks for an interrupt when a function in Python begins, so one that came during a long
    call inside the block is raised at the first line of ``__exit__``, which cannot catch it; and
    the traceback keeps that line's ``self``, in a notebook for long. So only what calls the
    function has the lease. When that is gone, so is the lease, and the monitor, which watches it,
    frees the slot. (A ``__del__`` would begin at the end of each block, and swallow interrupts.)
    """

    def __get__(self, lease: Lease | None, cls: type[Lease]) -> Callable[..., None]:
        if lease is None:
            return _end  # contextlib.ExitStack asks the class
        leave = partial(_leave, weakref.ref(lease))
        vars(leave)["lease"] = lease
        return leave


def _leave(ref: weakref.ref[Lease], kind: type[BaseException] | None, *_: Any) -> None:
    lease = ref()
    assert lease is not None
    try:
        lease.end(publish=kind is None)
    except BaseException:
        lease.give_up()
        raise


def _end(lease: Lease, *error: Any) -> None:
    _leave(weakref.ref(lease), *error)


class Lease:
    """A slot for the length of a with block.

    Parameters
    ----------
    monitor : Monitor
        Who hands it out.
    event : {FREED, FILLED}
        What to wait for: a producer's lease, or a consumer's.
    timeout : float
        Seconds.

    Attributes
    ----------
    number : int or None
        Its place in the order: a producer may say it until the block ends, a consumer reads it.

    Notes
    -----
    For one thread.
    """

    index: int | None = None  # of the slot that is held
    number: int | None = None
    _pid = 0

    def __init__(self, monitor: Monitor, event: int, timeout: float) -> None:
        self._monitor = monitor
        self._event = event
        self._timeout = timeout

    def __enter__(self) -> SharedArray:
        if self.index is not None:
            raise RuntimeError("this lease has its slot already: ask the ring for another one")
        self._pid = os.getpid()
        try:
            array = self._monitor.claim(self, self._event, self._timeout)
            self._monitor.watch(self)
            # No call follows, and so no interrupt, until the block has begun.
            return array
        except NbshareError:  # with nothing in our hands
            raise
        except BaseException:
            self.give_up(is_unseen=True)
            raise

    __exit__ = _Exit()

    def end(self, *, publish: bool) -> None:
        """Give the slot back; a producer's to the consumers, if `publish`."""
        if self._pid != os.getpid():  # a fork has left the block: the slot is its parent's
            return
        self._monitor.unwatch(self)
        tokens = self._monitor.tokens
        is_filled = publish and self._event == FREED
        self._monitor.do(tokens.commit if is_filled else tokens.release, self)

    def give_up(self, *, is_unseen: bool = False) -> None:
        """Let go of what is still held, after an error or interrupt wherever it came."""
        self._monitor.unwatch(self)
        if self.index is not None and self._pid == os.getpid():
            self._monitor.tokens.drop(self.index, is_unseen=is_unseen)
            self.index = None
        # A wake-up that was for us, or by us, may be lost.
        self._monitor.wake(EVERYBODY)
