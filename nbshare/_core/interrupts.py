"""Short steps that an interrupt must not split."""

from __future__ import annotations

# `_signal`, because the enumerations of the module signal take 12 µs.
import _signal  # type: ignore[import-not-found]
import importlib
import sys
import threading
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_ONE_PRESS_S = 0.5  # duration of two or three presses of a key


class uninterrupted:  # noqa: N801 - used like the context managers of contextlib
    """Hold an interrupt back until the block ends.

    For a few quick steps that must run all or not at all, such as ``Thread.start``. An interrupt
    inside the block could release a lock of the new thread, or leave a thread that never began
    counted as alive. The interrupt is raised at the end of the block. By then, new objects must
    have an owner.

    Notes
    -----
    Interrupts arrive in the main thread only, so in other threads this has no effect. A second
    interrupt is not held back, so that it can end a block that hangs.
    """

    _handler: Any = None  # the one to restore
    _came = False

    def __enter__(self) -> None:
        handler = _signal.getsignal(_signal.SIGINT)
        # Not SIG_DFL and SIG_IGN, which raise no exception, and not None, which was set from C.
        if callable(handler) and get_ident() == threading.main_thread().ident:
            self._handler = handler
            _signal.signal(_signal.SIGINT, self._hold)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)
            if self._came:
                _signal.raise_signal(_signal.SIGINT)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            self._came = False
            _signal.signal(number, self._handler)
            self._handler(number, frame)
        else:
            self._came = True


def ignore_more_presses() -> None:
    """Ignore further interrupts for half a second after one, in a kernel.

    While IPython shows the error, another interrupt would lose the error or ipykernel's reply, and
    the queued cells would run. ipykernel sets its own handlers when this cell ends and the next one
    begins.
    """
    is_main = get_ident() == threading.main_thread().ident
    # Any other handler is the user's, or that of an awaiting cell, which raises no exception.
    if not is_main or _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        return
    until = time.monotonic() + _ONE_PRESS_S

    def press(number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= until:  # the cell is still running
            _signal.signal(number, _signal.default_int_handler)
            _signal.default_int_handler(number, frame)

    _signal.signal(_signal.SIGINT, press)


@contextmanager
def cancelled_by_interrupt(cancel: Callable[[], object]) -> Iterator[list[bool]]:
    """Cancel an asyncio task at Ctrl-C, in an event loop that would not.

    IPython's terminal has such a loop, unlike `asyncio.run`. Yields a list that is empty until an
    interrupt.
    """
    came: list[bool] = []
    is_main = get_ident() == threading.main_thread().ident
    # Any other handler is that of asyncio.run, of a kernel, or the user's.
    if not is_main or _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        yield came
        return

    def press(_number: int, _frame: FrameType | None) -> None:
        came.append(True)
        cancel()

    _signal.signal(_signal.SIGINT, press)
    try:
        yield came
    finally:
        if _signal.getsignal(_signal.SIGINT) is press:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def start_thread(run: Callable[..., object], *args: object) -> None:
    """Start a daemon thread that may print or draw.

    ipykernel creates a socket for each thread that prints, and closes it at the thread's end, which
    it cannot detect for threads started by `_thread`.

    Raises
    ------
    RuntimeError
        If no more threads are allowed.
    """
    thread = threading.Thread(target=run, args=args, daemon=True)
    with uninterrupted():
        thread.start()


def import_whole(name: str) -> None:
    """Import a module in a thread, where no interrupt arrives, and wait. Errors are lost.

    Large packages fail permanently if an interrupt ends their import in the middle. The wait can be
    interrupted. A later import of the module is quick, or raises the error.
    """
    is_there = allocate_lock()
    is_there.acquire()

    def load() -> None:
        with suppress(BaseException):
            importlib.import_module(name)
        is_there.release()

    with suppress(RuntimeError):  # no more threads are allowed
        start_thread(load)
        is_there.acquire()


NEEDED = "select", "thread", "queue", "socket", "subprocess", "signal"  # standard modules
# Modules that replace others, their packages, and their functions that report it.
_PATCHERS = {
    "gevent.monkey": ("gevent", "is_module_patched"),
    "eventlet.patcher": ("eventlet", "is_monkey_patched"),
}


def refuse_patched_modules() -> None:
    """Raise RuntimeError if gevent or eventlet has replaced modules on which nbshare depends."""
    if sys.modules.keys().isdisjoint(_PATCHERS):
        return
    for name, (package, asks) in _PATCHERS.items():
        patcher = sys.modules.get(name)
        if patcher is not None and any(map(getattr(patcher, asks), NEEDED)):
            raise RuntimeError(
                f"{package} has replaced modules that nbshare needs. Use nbshare in a process "
                f"without monkey patching, or leave these modules as they are: {', '.join(NEEDED)}"
            )
