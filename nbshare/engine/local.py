"""The engine of this process: made at the first call, ended with the process."""

from __future__ import annotations

import _thread
import atexit
import os

from nbshare.engine.dispatcher import Dispatcher
from nbshare.memory import pool, slab

__all__ = ["dispatcher", "shutdown"]

# For tests and for systems where forking the small server is not possible.
PLAIN_START = "NBSHARE_PLAIN_START"

_dispatcher: Dispatcher | None = None
_lock = _thread.allocate_lock()


def dispatcher() -> Dispatcher:
    """Return the dispatcher of this process, a new one if there is none at work."""
    global _dispatcher
    with _lock:  # the first calls of two threads would make two, of which one would be forgotten
        if _dispatcher is None or _dispatcher.is_closed:
            use_server = hasattr(os, "fork") and not os.environ.get(PLAIN_START)
            _dispatcher = Dispatcher(use_server)
        return _dispatcher


def shutdown() -> None:
    """End the workers and give back the memory kept for the next call; it starts new ones.

    Calls under way in other threads end with what they have. Happens by itself when the process
    ends, however it ends.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.shutdown()
    """
    global _dispatcher
    ended, _dispatcher = _dispatcher, None
    if ended is not None:
        ended.shutdown()
    pool.drop()
    slab.drop()


def _forget() -> None:
    """In a forked child: the workers are the parent's; the child starts its own."""
    global _dispatcher, _lock
    _lock = _thread.allocate_lock()
    inherited, _dispatcher = _dispatcher, None
    if inherited is not None:
        inherited.forget()


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
