"""Threads that an interrupt cannot spoil."""

from __future__ import annotations

import _thread
import threading

__all__ = ["start"]


def start(thread: threading.Thread) -> None:
    """Start a thread, and have it start in any case if an interrupt arrives meanwhile.

    One that arrives in the middle of ``Thread.start`` may release a lock that the new thread holds,
    by which that ends with an error; or the thread never begins and counts as alive for ever.
    Interrupts arrive in the main thread only, so another one calls it.

    Raises
    ------
    RuntimeError
        If the system allows no more threads.
    """
    is_over = _thread.allocate_lock()
    is_over.acquire()
    failures: list[BaseException] = []

    def begin() -> None:
        try:
            thread.start()
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            failures.append(error)
        finally:
            is_over.release()

    _thread.start_new_thread(begin, ())
    is_over.acquire()
    if failures:
        raise failures[0]
