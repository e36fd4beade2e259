"""Runs calls in this process, one item after the other or in threads.

Items run with the same code as in worker processes, and their inputs are pickled in the same way
but placed in private memory. Functions are used as they are. Stop acts between items and where an
item calls `report`. `options` refuses options that need a process.

Threads share these things, with the interpreter lock and without it:

==================  ==============================================================================
a worker's own      `Work`, with its loaded inputs, namespaces and log, and its row of the board
items of a call     each belongs to the worker that has claimed it, under the call's lock. It alone
                    writes the item's result, and then its ``done`` byte. Failures add entries to
                    the dict of errors
its output          the first result decides it, under the call's lock
loading its items   one thread at a time, because libraries may complete their setup meanwhile, such
                    as pint, and are not thread-safe then
its initializer     runs while one thread makes all workers of the call, under a lock
a module's globals  are replaced as a whole (``_looked_at``), or change in one step, such as an
                    entry of a dict or an append. If one may change meanwhile, it is copied first,
                    by ``list(d)`` or ``d.copy()``, because a loop over it, or over a
                    `weakref.WeakSet`, would raise. Two steps that belong together take a lock
                    (``_importing``, the warm pool's)
lazily made values  by `functools.cache` and cached properties. Two threads may both make one, so
                    either one must do
==================  ==============================================================================

Users must make their own functions thread-safe.
"""

from __future__ import annotations

import _thread
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import copy_context
from typing import Any

import numpy as np

from nbshare._core.engine.call import Call, Engine
from nbshare._core.functions.freshness import ImportLog
from nbshare._core.interrupts import start_thread, uninterrupted
from nbshare._core.memory import Mode, Segment, View
from nbshare._core.messages import is_interrupt, noted, without_frames
from nbshare._core.store.logs import LogKey
from nbshare._core.store.rows import Decided
from nbshare._core.store.specs import OutputSpec
from nbshare._core.wire import running_items
from nbshare._core.wire.failures import describe, explained, note_on_iterables, traceback_of
from nbshare._core.wire.settings import apply
from nbshare._core.worker.process import inputs_of
from nbshare._core.worker.state import initializing_anew, leave
from nbshare._core.worker.work import Caller, Work

PAUSE_S = 1e-3  # a thread's interval of checks for items


class _Here(Caller):
    """The caller of workers that run in its own process."""

    def __init__(
        self, call: Call, lock: _thread.LockType, loading: AbstractContextManager[Any]
    ) -> None:
        self._call, self._lock, self.loading, self._imports = call, lock, loading, ImportLog()

    def decide(self, spec: OutputSpec) -> Decided:
        with self._lock:
            return self._call.results.output.decided_here(spec)

    def add_log(self, key: LogKey, log: Segment) -> None:
        self._call.results.logs.add(key, log)

    def await_items(self) -> bool:
        if self._call.engine.works_by_itself:
            time.sleep(PAUSE_S)
        else:
            self._call.supply.bring()
        return True

    def tell_imports(self) -> bool:
        self._call.imported |= (stamps := self._imports.take())
        return bool(stamps)

    def tell_news(self) -> None:
        self._call.supply.wake()

    def failed(self, i: int, error: BaseException, item: str) -> None:
        if is_interrupt(error):
            raise error
        is_kept = self._call.request.policy.returns_errors
        if issubclass(type(error), Exception):
            where = f"raised for {self._call.name_of(i, item)}"
            if is_kept:
                # The traceback is kept as text, because its frames refer to the caller's frames,
                # and so to the results that will hold the error. The garbage collector does not
                # search arrays for such a cycle.
                text = traceback_of(error)
                where = f"{where}:\n{text}" if text else where
                without_frames(error)
            noted(error, where)
            note_on_iterables(explained(error), self._call.request.iterables, item)
        else:  # SystemExit must not end the caller
            error = describe(error, i, item).as_error(self._call.name_of(i, item), None)
        self._call.note_error(error, range(i, i + 1))
        if not is_kept:
            self._call.note_failure(error)
            self._call.board.stop()


class SerialEngine(Engine):
    """Runs a call in the thread that waits for it, for debuggers and for nested calls in workers.

    Notes
    -----
    For one call and one thread. Only `stop` is thread-safe.
    """

    in_process = True
    works_by_itself = False

    def __init__(self) -> None:
        self._work: Work | None = None
        self._entered: ExitStack | None = None
        self._running = _thread.allocate_lock()

    def submit(self, call: Call) -> None:
        """Begin a call, unless it was already stopped."""
        with self._running:
            if not call.results.is_final:
                call.has_begun = True
                try:
                    (self._work,), self._entered = _works(call, 1, _thread.allocate_lock())
                except BaseException as error:
                    _abort(call, error)
                    raise

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Run items for some time. Return whether the call is over."""
        until_s = time.monotonic() + timeout_s
        with self._running, running_items():
            while self._work is not None:
                if not self._work.step():
                    self._end(call)
                elif time.monotonic() >= until_s:
                    break
        return call.is_over

    def stop(self, call: Call, error: BaseException | None = None) -> None:
        """End the call. Thread-safe."""
        super().stop(call, error)
        if self._running.acquire(blocking=False):  # else the thread that runs items sees it
            try:
                self._end(call)
            finally:
                self._running.release()

    def _end(self, call: Call) -> None:
        self._work = None
        if not call.is_over:
            _finish(call, self._entered)


class ThreadEngine(Engine):
    """Runs calls in threads of this process, for functions that release the interpreter lock."""

    in_process = True

    def submit(self, call: Call) -> None:
        """Begin a call, unless it was already stopped."""
        if call.results.is_final:
            return
        call.has_begun = True
        lock, errstate = _thread.allocate_lock(), np.geterr()
        try:
            made, entered = _works(call, call.request.max_workers, lock)
            works = dict(enumerate(made))
        except BaseException as error:
            _abort(call, error)
            raise

        def run(k: int) -> None:
            try:
                apply({"errstate": errstate}, ["errstate"])  # per thread in NumPy 1
                with running_items(k):
                    works[k].run()
            except BaseException as error:  # noqa: BLE001 - no thread may wait forever
                call.note_failure(error)
                call.board.stop()
            with lock:
                del works[k]  # the last reference, which frees its inputs for the next call
                is_last = not works
            if is_last:
                _finish(call, entered)

        left = []
        with uninterrupted():  # because an interrupt would keep the call from ending
            for k in list(works):
                try:
                    start_thread(copy_context().run, run, k)  # with decimal's context
                except RuntimeError:  # no more threads are allowed, so this thread runs the items
                    left.append(k)
        for k in left:
            run(k)


def _works(call: Call, n: int, lock: Any) -> tuple[list[Work], ExitStack | None]:
    """Return the workers of a call, and the contexts that its initializer returned. Run it once."""
    has_initializer, loading = call.request.initializer is not None, _thread.allocate_lock()
    with running_items(), initializing_anew() if has_initializer else nullcontext() as entered:
        return [_work(call, slot, lock, loading) for slot in range(n)], entered


def _work(call: Call, slot: int, lock: Any, loading: Any) -> Work:
    def attach(segment: Segment, mode: Mode) -> View:
        if mode == "c":
            segment = segment.again(mode)
        return View(segment, is_read_only=mode == "r")

    inputs = [inputs_of(p.small, [attach(*wanted) for wanted in p.segments]) for p in call.inputs]
    return Work(call.order, call.board, slot, inputs, _Here(call, lock, loading), lock)


def _abort(call: Call, error: BaseException) -> None:
    """End a call that could not begin, which releases its checkpoint and the waiting threads."""
    if not is_interrupt(error):
        call.note_failure(error)
    call.finish(is_whole=False)


def _finish(call: Call, entered: ExitStack | None) -> None:
    if entered is not None:
        leave(entered)
    call.finish(is_whole=call.is_complete)
