"""The one thread that owns the workers, and how other threads have it do something.

::

    any thread                      dispatcher                          worker
    submit(call) ──► posted ──►  foreman.begin           ──►   claims chunks, runs items,
                                                               writes results and done flags
    call.wait()  ◄──────────     foreman hears the rest  ◄──   what it has to say

Between the call and "finished" no message is needed, so a dispatcher that waits for the
interpreter lock, while a picture is drawn, holds up nobody.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable

from nbshare.engine import needs
from nbshare.engine.call import Call
from nbshare.engine.events import Events
from nbshare.engine.foreman import Foreman
from nbshare.engine.process import Nursery
from nbshare.wire.board import IMPORTED, FileLock, give_back

__all__ = ["Dispatcher"]

ATTEND_S = 0.01  # to give a call to workers that are there; to start some takes longer
REST_S = 1e-3  # for workers that have stored their last result, and tidy up
HEAR_S = 1.0  # for a dispatcher that has to wait for the interpreter lock, while others compute


class Dispatcher:
    """Runs calls on worker processes.

    Parameters
    ----------
    use_server : bool
        Whether workers are forked from a server; else each is a new interpreter.

    Notes
    -----
    What has "from any thread" above it may be called from any; all else happens in the one that
    makes it and calls `run`.
    """

    calls_at_once = 3  # one that ends, one under way, one ready: workers never wait
    works_by_itself = True
    can_be_fed = True

    def __init__(self, use_server: bool = True) -> None:
        needs.check()
        self._events = Events()
        try:
            self._nursery = Nursery(use_server)
            self._foreman = Foreman(self._events, self._nursery, self._give_back)
        except OSError:
            self._events.close()
            raise
        self._claiming = _thread.allocate_lock()  # a call's lock does not exclude threads
        self._closed = _thread.allocate_lock()
        self._closed.acquire()
        self._thread = 0  # that it runs in
        self.check_files = self._nursery.check_files  # from any thread

    # ------------------------------------------------------------- from any thread

    @property
    def is_closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._foreman.is_closing

    @property
    def is_here(self) -> bool:
        """Whether this is its own thread, where the garbage collector may run users' finalizers."""
        return self._thread == _thread.get_ident()

    def warm_up(self) -> None:
        """Start the server, if there is none, while the caller still copies inputs."""
        if not self._nursery.is_up:
            self._events.post(self._warm_up)

    def submit(self, call: Call) -> None:
        """Begin a call."""
        # A thread that went on would take the interpreter lock from the dispatcher's.
        self._attend(lambda: self._foreman.begin(call), ATTEND_S)

    def hear_prints(self, call: Call, *, are_all: bool) -> None:
        """Take what the workers of a call have printed so far, and maybe will: also half lines."""

        def hear() -> None:
            self._foreman.hear_prints(call)
            if are_all:
                self._foreman.pipes.end_lines(call.request.prints)

        is_half = are_all and call.request.prints.is_any
        if is_half or call.board.has_prints() or self._foreman.pipes.is_reading:
            self._attend(hear, HEAR_S)

    def _attend(self, action: Callable[[], None], timeout_s: float) -> bool:
        """Have the dispatcher's thread do something, and wait until it is done; whether it is."""
        done = _thread.allocate_lock()
        done.acquire()
        self._events.post(action)
        self._events.post(done.release)
        return done.acquire(timeout=timeout_s)

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Wait for the end of a call; returns whether it has come."""
        return call.wait(timeout_s)

    def stop(self, call: Call) -> None:
        """End a call early: within `GRACE_S` nobody works on it any more."""
        call.halt()  # at once, even if the dispatcher has to wait for the interpreter lock
        self._events.post(lambda: self._foreman.stop(call))

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """End all calls, workers and the server."""
        self._events.post(self._close)
        if not self.is_here and self._closed.acquire(timeout=timeout_s):
            self._closed.release()

    def withdraw(self, call: Call, i: int) -> bool:
        """Take back an item that no worker has claimed; returns whether there was time for that."""
        with self._claiming:
            # Asked here: `_end` closes the lock's file.
            if self._foreman.is_closing or call.is_over:
                return False
            with self._lock_of(call):
                is_withdrawn = call.board.withdraw(i)
        if is_withdrawn and call.is_complete:  # it was the last, and no worker may be there
            self._post(self._foreman.advance, call)
        return is_withdrawn

    def man(self, call: Call) -> None:
        """Put workers to work on items that have come to a call."""
        self._post(self._foreman.man, call)

    def is_current(self, call: Call) -> bool:
        """Whether the workers of a call whose items are done run what those of a new one would."""
        header = call.board.header
        until_s = time.monotonic() + REST_S
        while not call.board.is_idle:  # they tell what they have imported after the last result
            if time.monotonic() > until_s:
                return False
            os.sched_yield()
        if header[IMPORTED]:
            header[IMPORTED] = 0  # first: what they import from now on is for the next look
            if not self._attend(lambda: self._foreman.hear_workers(call), HEAR_S):
                return False
        if call.is_over or self._foreman.is_closing:
            return False
        return self._foreman.crew.is_current(call.code, call.request.context, call.initializer_key)

    def complete(self, call: Call) -> None:
        """Have no more items come to a call."""
        with self._claiming:
            entrance = call.entrance
            if entrance is None or self._foreman.is_closing:  # it is over, or will be
                return
            # Without the call's lock, which a worker that was stopped may hold: nobody claims what
            # has not come.
            call.board.withdraw_from(entrance.items.n_items)
        entrance.call(call.request.max_workers)
        self._post(self._foreman.advance, call)

    def _post(self, action: Callable[[Call], None], call: Call) -> None:
        """Have something done with a call, unless it has not begun, or is over by then."""
        self._events.post(lambda: action(call) if call.id in self._foreman.calls else None)

    def forget(self) -> None:
        """In a forked child: let go of the parent's workers."""
        if not self._foreman.is_closing:
            self._foreman.is_closing = True
            self._nursery.forget()

    # ------------------------------------------------------------------- main loop

    def run(self) -> None:
        """Do what is to be done, until `shutdown`."""
        foreman = self._foreman
        self._thread = _thread.get_ident()
        try:
            while not foreman.is_closing:
                self._events.wait(foreman.until_s(), self._stay_if_lost)
                foreman.do_what_is_due()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            for call in foreman.calls.values():
                call.error = call.error or error
        finally:
            foreman.is_closing = True
            try:
                self._end()
            finally:
                self._thread = 0  # another thread may have the number next
                self._closed.release()

    def _stay_if_lost(self) -> None:
        """If its files have been closed, end the calls and do nothing more: it would close others.

        Workers and server end by themselves, when the life pipe is closed.
        """
        try:
            self.check_files()
        except RuntimeError as error:
            for call in list(self._foreman.calls.values()):
                call.finish("failed", error)
            self._closed.acquire()  # for ever

    def _warm_up(self) -> None:
        if not self._foreman.is_closing:
            self._nursery.warm_up()

    def _close(self) -> None:
        self._foreman.is_closing = True

    def _end(self) -> None:
        try:
            self._foreman.end()
        finally:  # the nursery's end is that of all workers, too
            with self._claiming:  # somebody may hold its file's lock
                self._nursery.close()
            self._foreman.pipes.close()
            self._events.close()

    def _give_back(self, call: Call, items: range) -> None:
        with self._claiming:
            give_back(call.board, items, self._lock_of(call))
        if call.entrance is not None:
            call.entrance.call()

    def _lock_of(self, call: Call) -> FileLock:
        return FileLock(self._nursery.lock_fd, call.id)
