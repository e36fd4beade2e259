"""The one thread that owns the workers: it assigns calls, hears answers, buries the dead.

::

    any thread                      dispatcher                          worker
    submit(call) ──► inbox ──►  find or start workers
                                send the call            ──►   claim chunks, run items,
                                                               write results and done flags
                                allocate the output      ◄──   first result
                                note                     ◄──   failed / log / finished
    call.wait()  ◄──────────    finish the call

Between the call and "finished" no message is needed, so a dispatcher that waits for the
interpreter lock, while a picture is drawn, holds up nobody.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nbshare.arrays.arena import ArrayReference
from nbshare.engine.call import MAX_REPLACED, Call
from nbshare.engine.context import Context
from nbshare.engine.failures import Failure, rebuild
from nbshare.engine.output import OutputSpec
from nbshare.engine.process import Nursery, WorkerProcess
from nbshare.engine.schedule import NO_ITEM, give_back
from nbshare.engine.work import CallMessage
from nbshare.errors import WorkerDiedError
from nbshare.functions import Stamp, stamp_of
from nbshare.memory import Segment, pool, segment_of

__all__ = ["Dispatcher"]

GRACE_S = 0.1  # for the items under way when a call is stopped; then their workers are ended
IDLE_S = 300.0  # after which idle workers end: they keep the user's modules in memory
MAX_CALL_ID = 1 << 30  # ids are also lock bytes

Stamps = dict[str, Stamp | None]


class Dispatcher:
    """Runs calls on worker processes.

    Parameters
    ----------
    use_server : bool
        Whether workers are forked from a server; else each is a new interpreter.

    Notes
    -----
    `submit`, `stop` and `shutdown` may be called from any thread; all else happens in its own.
    """

    def __init__(self, use_server: bool = True) -> None:
        self._nursery = Nursery(use_server)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._calls: dict[int, Call] = {}
        self._last_call = 0
        self._workers: dict[WorkerProcess, int | None] = {}  # with the id of the call it works on
        self._idle: dict[WorkerProcess, float] = {}  # since when
        self._generation = 0
        self._born_under: Any = None  # environment and import path of this generation
        self._stamps: Stamps = {}  # of the files that workers have imported
        self._is_closing = False
        self._closed = _thread.allocate_lock()
        self._closed.acquire()
        self._watch(self._wake, self._awake)
        _thread.start_new_thread(self._run, ())

    # ------------------------------------------------------------- from any thread

    @property
    def is_closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._is_closing

    def warm_up(self) -> None:
        """Start the server, if there is none, while the caller still copies inputs."""
        if not self._nursery.is_up:
            self._post(self._nursery.warm_up)

    def submit(self, call: Call) -> None:
        """Begin a call."""
        self._post(lambda: self._begin(call))

    def stop(self, call: Call) -> None:
        """End a call early: within `GRACE_S` nobody works on it any more."""
        call.board.stop()  # at once, even if the dispatcher has to wait for the interpreter lock
        self._post(lambda: self._stop(call))

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """End all calls, workers and the server."""
        self._post(self._close)
        if self._closed.acquire(timeout=timeout_s):
            self._closed.release()

    def forget(self) -> None:
        """In a forked child: let go of the parent's workers."""
        self._nursery.forget()

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that have started."""
        return [worker.pid for worker in list(self._workers) if worker.is_ready]

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        os.eventfd_write(self._wake, 1)

    # ------------------------------------------------------------------- main loop

    def _run(self) -> None:
        try:
            while not self._is_closing:
                for fd, _ in self._poll.poll(self._patience_ms()):
                    handler = self._handlers.get(fd)
                    if handler is not None:  # else closed by a handler before it in this round
                        handler()
                self._end_overdue()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            for call in list(self._calls.values()):
                call.finish("failed", error)
        finally:
            self._is_closing = True
            self._bury_all()
            self._closed.release()

    def _awake(self) -> None:
        os.eventfd_read(self._wake)
        while self._inbox:
            self._inbox.popleft()()

    def _patience_ms(self) -> float | None:
        """Return how long to wait for events: until the next deadline."""
        deadlines = [call.kill_at for call in self._calls.values() if call.kill_at is not None]
        deadlines += [since + IDLE_S for since in self._idle.values()]
        deadlines += [worker.ready_by for worker in self._workers if not worker.is_ready]
        deadlines += [when for when in [pool.trim()] if when is not None]
        if not deadlines:
            return None
        return max(0.0, min(deadlines) - time.monotonic()) * 1e3 + 1

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for call in list(self._calls.values()):
            if call.kill_at is not None and now >= call.kill_at:
                for worker in list(call.workers):
                    self._hear_all(worker)
                    # One that is not ready has begun nothing, and will find the call over.
                    if worker in call.workers and worker.is_ready:
                        self._lose(worker)
                self._advance(call)
        for worker, since in list(self._idle.items()):
            if now - since >= IDLE_S:
                self._dismiss(worker)
        overdue = [w for w in self._workers if not w.is_ready and now >= w.ready_by]
        if overdue:
            self._nursery.distrust()
        for worker in overdue:
            self._lose(worker)

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    # ----------------------------------------------------------------------- calls

    def _begin(self, call: Call) -> None:
        self._renew_if_stale(call.request.context)
        self._last_call = self._last_call % MAX_CALL_ID + 1
        call_id = self._last_call
        self._calls[call_id] = call
        wanted = min(call.request.max_workers, call.request.n_tasks)
        try:
            for _ in range(wanted):
                self._assign(call_id, call)
        except (WorkerDiedError, OSError) as error:
            if not call.workers:
                self._fail(call, error)
        self._advance(call)

    def _assign(self, call_id: int, call: Call) -> None:
        """Give the call one more worker, an idle one if there is any."""
        message, fds = self._message(call_id, call)
        try:
            worker = self._hand_over(message, fds, call)
        finally:
            for fd in fds[1:]:  # opened for the purpose; the first is the board's own
                os.close(fd)
        worker.lend(call.arena_segment, *(segment for segment, _ in call.others))
        self._workers[worker] = call_id
        call.workers[worker] = call.n_assigned
        call.n_assigned += 1
        if worker.is_ready:
            self._note_running(worker)

    def _hand_over(self, message: CallMessage, fds: list[int], call: Call) -> WorkerProcess:
        while self._idle:
            worker, _ = self._idle.popitem()
            try:
                worker.channel.send(message, fds, wait=False)
            except OSError:  # it died while idle, or was stopped: nobody need notice
                self._dismiss(worker)
            else:
                return worker
        worker = self._nursery.start(call.request.context.environ, self._generation)
        self._watch(worker.channel.fileno(), lambda: self._hear(worker))
        worker.channel.send(message, fds, wait=False)
        return worker

    def _message(self, call_id: int, call: Call) -> tuple[CallMessage, list[int]]:
        request = call.request
        message = CallMessage(
            call=call_id,
            slot=call.n_assigned,
            n_tasks=request.n_tasks,
            n_slots=call.n_slots,
            n_workers=request.max_workers,
            chunksize=request.chunksize,
            path=request.context.path,
            context=request.context.rest,
            func=call.func,
            shared=call.shared,
            sources=call.sources,
            writable=tuple(writable for _, writable in call.others),
        )
        fds = [call.board.segment.fd, call.arena_segment.read_only_fd()]
        for segment, writable in call.others:
            fds.append(os.dup(segment.fd) if writable else segment.read_only_fd())
        return message, fds

    def _advance(self, call: Call) -> None:
        """Finish the call, or see to it that somebody works on what is left."""
        if call.is_over or any(worker.is_ready for worker in call.workers):
            return
        if call.error is not None:
            self._finish(call, "failed")
        elif call.board.stopped:
            self._finish(call, "stopped")
        elif call.board.n_done() == call.board.n_tasks:
            self._finish(call, "done")
        elif not call.workers:  # the last ones finished just before one gave items back
            self._replace(call)

    def _replace(self, call: Call) -> None:
        call.n_replaced += 1
        try:
            if call.n_replaced > MAX_REPLACED:
                raise WorkerDiedError(
                    f"{call.n_replaced} workers died one after the other before they began an "
                    "item. Something that they import may end them, or memory may be short."
                )
            self._assign(self._id_of(call), call)
        except (WorkerDiedError, OSError) as error:
            self._fail(call, error)
            self._advance(call)

    def _fail(self, call: Call, error: BaseException) -> None:
        """Note the first failure and stop the rest."""
        if call.error is None:
            call.error = error
            self._stop(call)

    def _stop(self, call: Call) -> None:
        if call.is_over:
            return
        if call not in self._calls.values():  # interrupted before it was submitted
            call.finish("stopped")
            return
        call.board.stop()
        if call.kill_at is None:
            call.kill_at = time.monotonic() + GRACE_S
        self._advance(call)

    def _finish(self, call: Call, state: Any) -> None:
        del self._calls[self._id_of(call)]
        call.workers.clear()  # late starters find the board stopped or empty, and become idle
        call.finish(state, call.error)

    def _id_of(self, call: Call) -> int:
        return next(call_id for call_id, known in self._calls.items() if known is call)

    # --------------------------------------------------------------------- workers

    def _hear(self, worker: WorkerProcess) -> None:
        """Handle one message of a worker."""
        try:
            message, fds = worker.channel.receive(wait=False)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._lose(worker)
        else:
            self._handle(worker, message, fds)

    def _hear_all(self, worker: WorkerProcess) -> None:
        """Handle what a worker has sent so far, be it dead or alive."""
        while worker in self._workers:
            try:
                message, fds = worker.channel.receive(wait=False)
            except (BlockingIOError, EOFError, OSError):
                return
            self._handle(worker, message, fds)

    def _handle(self, worker: WorkerProcess, message: Any, fds: list[int]) -> None:
        segments = [Segment.attach(fd, writable=False) for fd in fds]
        match message:
            case ("ready", pid):
                worker.greet(pid)
                self._watch(worker.pidfd, lambda: self._lose(worker))
                self._note_running(worker)
            case ("first", call_id, spec):
                self._decide(worker, self._calls.get(call_id), spec)
            case ("log", call_id, slot):
                if call_id in self._calls:
                    self._calls[call_id].results.add_log(slot, segments[0])
            case ("failed", call_id, failure):
                self._note_failure(self._calls.get(call_id), failure)
            case ("finished", _, stamps, are_gone):
                self._stamps.update(stamps)
                worker.give_back(are_gone)
                self._release(worker)

    def _note_running(self, worker: WorkerProcess) -> None:
        call = self._call_of(worker)
        if call is not None and call.state == "starting":
            call.state = "running"

    def _decide(self, worker: WorkerProcess, call: Call | None, spec: OutputSpec) -> None:
        """Tell a worker that has its first result where results go."""
        if call is None:  # it was stopped; the worker is about to be ended
            return
        try:
            if call.results.spec is None:
                call.results.decide(spec)
            reference, fds = None, []
            array = call.results.array
            if array is not None:
                found = segment_of(array)
                assert found is not None
                segment, offset = found
                worker.lend(segment)
                reference = ArrayReference(
                    0, offset, array.shape, array.strides, array.dtype, is_shared=False
                )
                fds = [segment.fd]
            worker.channel.send((call.results.spec, reference), fds, wait=False)
        except OSError:
            self._lose(worker)
        except Exception as error:  # noqa: BLE001 - no memory for the output is the call's failure
            self._fail(call, error)

    def _note_failure(self, call: Call | None, failure: Failure) -> None:
        if call is not None:
            call.failures.append(failure)
            self._fail(call, rebuild(failure))

    def _release(self, worker: WorkerProcess) -> None:
        """Make a worker idle that has nothing left to do for its call."""
        call = self._call_of(worker)
        self._workers[worker] = None
        if worker.generation == self._generation:
            self._idle[worker] = time.monotonic()
        else:
            self._dismiss(worker)
        if call is not None:
            call.workers.pop(worker, None)
            self._advance(call)

    def _call_of(self, worker: WorkerProcess) -> Call | None:
        call_id = self._workers.get(worker)
        return None if call_id is None else self._calls.get(call_id)

    def _lose(self, worker: WorkerProcess) -> None:
        """Handle a worker that has died or has to die."""
        self._hear_all(worker)
        if worker not in self._workers:
            return
        call = self._call_of(worker)
        status = self._dismiss(worker)
        if call is None or worker not in call.workers:
            return
        slot = call.workers.pop(worker)
        item = call.board.item_of(slot)
        if item == NO_ITEM:
            rest = call.board.unbegun(slot)
            give_back(call.board, rest, (self._nursery.lock_fd, self._id_of(call)))
            if not call.board.stopped and call.board.n_done() < call.board.n_tasks:
                self._replace(call)
        else:
            call.torn_rows.append(item)
            if not call.board.stopped:
                self._fail(call, _death(item, status, worker.pid))
        self._advance(call)

    def _dismiss(self, worker: WorkerProcess) -> int | None:
        """End a worker, if it lives, and return its exit status."""
        self._workers.pop(worker, None)
        self._idle.pop(worker, None)
        self._unwatch(worker.channel.fileno())
        if worker.pidfd >= 0:
            self._unwatch(worker.pidfd)
        return worker.bury()

    def _bury_all(self) -> None:
        for worker in list(self._workers):
            self._dismiss(worker)
        for call in list(self._calls.values()):
            if not call.is_over:
                call.finish("stopped", call.error)
        self._nursery.close()
        os.close(self._wake)

    def _close(self) -> None:
        self._is_closing = True

    # ------------------------------------------------------------------- freshness

    def _renew_if_stale(self, context: Context) -> None:
        """Have new workers if the environment or a file that they imported has changed."""
        born_under = (context.environ, context.path)
        edited = [path for path, stamp in self._stamps.items() if stamp_of(path) != stamp]
        if not edited and born_under == self._born_under:
            return
        self._born_under = born_under
        self._stamps.clear()
        self._generation += 1
        for worker in list(self._idle):
            self._dismiss(worker)


def _death(item: int, status: int | None, pid: int) -> WorkerDiedError:
    """Say how a worker ended in the middle of an item."""
    hint = ""
    if status is None:
        how = "ended, and nobody knows how"
    elif status >= 0:
        how = f"exited with status {status}"
        hint = " Something the function calls ends the process (sys.exit in C, os._exit)."
    else:
        name = signal.Signals(-status).name
        how = f"was ended by {name}"
        if name == "SIGKILL":
            hint = " The kernel does that when memory runs out; `dmesg` would say so."
        elif name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"):
            hint = " It crashed in compiled code; its stack is in the standard error output."
    return WorkerDiedError(f"worker {pid} {how} while it worked on item {item}.{hint}", item)
