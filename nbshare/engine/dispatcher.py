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
import errno
import time
from collections.abc import Callable
from typing import Any

from nbshare import errors
from nbshare.arrays.inputs import ArrayReference
from nbshare.engine.call import MAX_REPLACED, Call, State
from nbshare.engine.crew import Crew
from nbshare.engine.deadlines import GRACE_S, Deadlines
from nbshare.engine.events import Events
from nbshare.engine.prints import PrintPipes
from nbshare.engine.process import Nursery, WorkerProcess
from nbshare.memory import Segment, segment_of
from nbshare.worker.claims import FileLock, give_back
from nbshare.worker.failures import Failure, death_of, rebuild, timed_out
from nbshare.worker.output import OutputSpec
from nbshare.worker.remote import CallMessage
from nbshare.worker.schedule import ATTEMPTS, FAILED, PRINTED, SUSPECT

__all__ = ["Dispatcher"]

ATTEND_S = 0.01  # to give a call to workers that are there; to start some takes longer
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
        self._events = Events()
        try:
            self._nursery = Nursery(use_server)
        except OSError:
            self._events.close()
            raise
        self._pipes = PrintPipes(self._events)
        self._calls: dict[int, Call] = {}
        self._crew = Crew(
            self._events, self._nursery, self._pipes, self._calls, self._hear, self._lose
        )
        self._deadlines = Deadlines(
            self._calls,
            self._hear_all,
            self._lose,
            self._advance,
            self._fail,
            self._crew.replenish,
            self.complete,
        )
        self._standing: Call | None = None  # stays for maps like it, until anybody does another
        self._is_closing = False
        self._claiming = _thread.allocate_lock()  # a call's lock does not exclude threads
        self._closed = _thread.allocate_lock()
        self._closed.acquire()

    # ------------------------------------------------------------- from any thread

    @property
    def is_closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._is_closing

    def warm_up(self) -> None:
        """Start the server, if there is none, while the caller still copies inputs."""
        if not self._nursery.is_up:
            self._events.post(self._warm_up)

    def submit(self, call: Call) -> None:
        """Begin a call."""
        standing, self._standing = self._standing, call if call.is_standing else None
        if standing is not None:
            self.complete(standing)  # its workers are wanted
        # A thread that went on would take the interpreter lock from the dispatcher's.
        self._attend(lambda: self._begin(call), ATTEND_S)

    def hear_prints(self, call: Call, *, are_all: bool) -> None:
        """Take what the workers of a call have printed so far, and maybe will: also half lines."""

        def hear() -> None:
            self._hear_prints(call)
            if are_all:
                self._pipes.end_lines(call.request.prints)

        is_half = are_all and call.request.prints.is_any
        if is_half or call.board.has_prints() or self._pipes.is_reading:
            self._attend(hear, HEAR_S)

    def _attend(self, action: Callable[[], None], timeout_s: float) -> None:
        """Have the dispatcher's thread do something, and wait until it is done."""
        done = _thread.allocate_lock()
        done.acquire()
        self._events.post(action)
        self._events.post(done.release)
        done.acquire(timeout=timeout_s)

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Wait for the end of a call; returns whether it has come."""
        return call.wait(timeout_s)

    def stop(self, call: Call) -> None:
        """End a call early: within `GRACE_S` nobody works on it any more."""
        call.halt()  # at once, even if the dispatcher has to wait for the interpreter lock
        self._events.post(lambda: self._stop(call))

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """End all calls, workers and the server."""
        self._events.post(self._close)
        if self._closed.acquire(timeout=timeout_s):
            self._closed.release()

    def withdraw(self, call: Call, i: int) -> bool:
        """Take back an item that no worker has claimed; returns whether there was time for that."""
        with self._claiming:
            if self._is_closing or call.is_over:  # asked here: `_end` closes the lock's file
                return False
            with self._lock_of(call):
                is_withdrawn = call.board.withdraw(i)
        if is_withdrawn and call.is_complete:  # it was the last, and no worker may be there
            self._post(self._advance, call)
        return is_withdrawn

    def man(self, call: Call) -> None:
        """Put workers to work on items that have come to a call."""
        self._post(self._man, call)

    def is_current(self, call: Call) -> bool:
        """Whether the workers of a call run what a new call would."""
        found: list[bool] = []
        self._attend(lambda: found.append(self._is_current(call)), HEAR_S)
        return found == [True]

    def is_still_current(self, call: Call) -> bool:
        """Whether the workers of a call run what a new call would, if they have imported nothing.

        Like `is_current`, which need not know that, and takes as long as a small call.
        """
        return self._crew.is_current(call.code, call.request.context, call.initializer_key)

    def begin_anew(self, call: Call, fill: Callable[[], None]) -> bool:
        """Have the workers of a call that stays do all items again; returns whether it still does.

        `fill` puts other items there; no worker may be in one.
        """
        with self._claiming:
            entrance = call.entrance
            if entrance is None or not entrance.is_open or self._is_closing:
                return False
            if not call.board.head(entrance.items.n_items).are_all_done:
                return False  # somebody was interrupted, and has left it to itself
            with self._lock_of(call):
                fill()
                call.board.begin_anew()
        entrance.call()
        if call.wants_worker:
            self.man(call)
        return True

    def complete(self, call: Call) -> None:
        """Have no more items come to a call."""
        with self._claiming:
            entrance = call.entrance
            if entrance is None or self._is_closing:  # it is over, or will be
                return
            entrance.is_open = False
            with self._lock_of(call):
                call.board.withdraw_from(entrance.items.n_items)
        entrance.call(call.request.max_workers)
        self._post(self._advance, call)

    def _post(self, action: Callable[[Call], None], call: Call) -> None:
        """Have something done with a call, unless it has not begun, or is over by then."""
        self._events.post(lambda: action(call) if call.id in self._calls else None)

    def forget(self) -> None:
        """In a forked child: let go of the parent's workers."""
        if not self._is_closing:
            self._is_closing = True
            self._nursery.forget()

    # ------------------------------------------------------------------- main loop

    def run(self) -> None:
        """Do what is to be done, until `shutdown`."""
        try:
            while not self._is_closing:
                self._events.wait(self._until_s())
                self._deadlines.enforce()
                self._crew.end_overdue()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            for call in self._calls.values():
                call.error = call.error or error
        finally:
            self._is_closing = True
            try:
                self._end()
            finally:
                self._closed.release()

    def _until_s(self) -> float | None:
        """Return when something has to be done though nobody says anything."""
        return min((*self._deadlines.times(), *self._crew.deadlines()), default=None)

    def _close(self) -> None:
        self._is_closing = True

    def _end(self) -> None:
        for call in self._calls.values():
            call.halt()
        for worker in self._crew:
            self._crew.dismiss(worker)
        self._standing = None
        for call in list(self._calls.values()):
            call.finish("failed" if call.error else "stopped", call.error)
        self._calls.clear()
        with self._claiming:  # somebody may hold its file's lock
            self._nursery.close()
        self._pipes.close()
        self._events.close()

    # ----------------------------------------------------------------------- calls

    def _warm_up(self) -> None:
        if not self._is_closing:
            self._nursery.warm_up()

    def _begin(self, call: Call) -> None:
        if self._is_closing:  # by another thread, since the call was submitted
            call.finish("stopped")
            return
        if call.is_over:  # stopped by another thread before it was submitted
            return
        self._calls[call.id] = call
        if call.team is None or call.team.map_id == 0:
            call.code = self._crew.renew_if_stale(call.request.context, call.initializer_key)
        else:  # a stream is one map: its later calls run the files of the first
            call.code = call.team.code
        if call.team is not None and call.team.map_id == 0:
            call.team.map_id, call.team.code = call.id, call.code
        self._man(call)
        self._advance(call)

    def _is_current(self, call: Call) -> bool:
        for worker in list(call.workers):
            self._hear_all(worker)  # what it has imported
        if call.is_over or self._is_closing:
            return False
        return self._crew.is_current(call.code, call.request.context, call.initializer_key)

    def _man(self, call: Call) -> None:
        """Put workers to work on a call, as many as it may have now."""
        try:
            while call.wants_worker and self._n_free(call) > 0:
                self._assign(call)
        except (errors.WorkerDiedError, OSError) as error:
            if not call.workers:
                self._fail(call, error.with_traceback(None))  # which holds the call

    def _n_free(self, call: Call) -> int:
        """Return how many more workers a call may have now: a stream's calls share theirs."""
        if call.team is None:
            return call.request.max_workers - len(call.workers)
        return call.team.n_workers - sum(len(c.workers) for c in self._team_of(call))

    def _team_of(self, call: Call) -> list[Call]:
        return [c for c in self._calls.values() if c.team is call.team]

    def _assign(self, call: Call) -> None:
        """Give the call one more worker."""
        slot = call.free_slots.pop()
        message = CallMessage(call.id, call.map_id, slot, call.n_threads, *call.told)
        files = [s.file if mode == "r+" else s.read_only() for s, mode in call.segments]
        fds = [call.board.segment.fd, *(file.fileno() for file in files)]
        if call.bell_fd is not None:
            fds.append(call.bell_fd)
        if call.entrance is not None:
            fds.append(call.entrance.gong.fd)
        environ, prints = call.request.context.environ, call.request.prints
        worker = self._crew.put_to_work(message, fds, environ, call.code, prints)
        if not call.is_standing:  # else they are not used again
            worker.lend(call.id, *(segment for segment, _ in call.segments))
        worker.call, worker.call_since = call, time.monotonic()
        call.workers[worker] = slot
        self._note_running(worker)

    def _advance(self, call: Call) -> None:
        """Finish the call, or see to it that somebody works on what is left."""
        if any(self._is_needed(worker, call) for worker in list(call.workers)) or call.is_over:
            return  # or it has become so: the word of a worker may have been the last
        if call.error is not None:
            self._finish(call, "failed")
        elif call.board.stopped:
            self._finish(call, "stopped")
        elif call.is_complete:
            self._finish(call, "done")
        elif not call.workers and self._n_free(call) > 0 and call.wants_worker:
            # The last ones finished just before one gave items back.
            call.n_replaced += 1
            self._replace(call)

    def _is_needed(self, worker: WorkerProcess, call: Call) -> bool:
        """Whether the end of a call has to wait for a worker's word.

        Of a tiny call it need not be waited for until all have found out that nothing is left: that
        takes as long as the call.
        """
        is_done = call.error is None and not call.board.stopped and call.is_complete
        if is_done:
            self._hear_all(worker)  # that it is there, its logs and failures
        if not worker.is_ready:
            return False
        if not is_done:
            return True
        slot = call.workers.get(worker)
        if slot is None:
            return False
        if worker.has_borrowed_for(call.id) or call.board.busy_since(slot) is not None:
            return True
        # It may be importing a file that has been edited since: the next call would not know.
        return call.board.loading_since(slot) is not None and worker.knows != call.told[0]

    def _replace(self, call: Call) -> None:
        """Put another worker to work in the place of one that has died."""
        try:
            # With their server all are lost that it has yet to start.
            max_unborn = call.request.max_workers + MAX_REPLACED
            if call.n_replaced > MAX_REPLACED or call.n_unborn > max_unborn:
                raise errors.WorkerDiedError(
                    f"{call.n_replaced + call.n_unborn} workers died one after the other before "
                    "they began an item. Something that they import may end them, memory may be "
                    "short, or the system may allow no more processes."
                )
            self._assign(call)
        except (errors.WorkerDiedError, OSError) as error:
            self._fail(call, error.with_traceback(None))
            self._advance(call)

    def _fail(self, call: Call, error: BaseException) -> None:
        """Note the first failure and stop the rest."""
        if call.error is None:
            call.error = error
            self._stop(call)

    def _stop(self, call: Call) -> None:
        if call.is_over:
            return
        if call.id not in self._calls:  # interrupted before it was submitted
            call.finish("stopped")
            return
        call.halt()
        if call.kill_at is None:
            call.kill_at = time.monotonic() + GRACE_S
        self._advance(call)

    def _finish(self, call: Call, state: State) -> None:
        del self._calls[call.id]
        if self._standing is call:
            self._standing = None
        self._hear_prints(call)
        self._pipes.end_lines(call.request.prints)
        call.workers.clear()  # late starters find the board stopped or empty, and become idle
        call.finish(state, call.error)
        self._pass_on(call)
        self._crew.end_outdated()

    def _pass_on(self, call: Call) -> None:
        """Put workers that a call of a stream does without to work on the stream's next ones."""
        if call.team is not None:
            for other in self._team_of(call):
                self._man(other)

    # --------------------------------------------------------------------- workers

    def _hear(self, worker: WorkerProcess) -> None:
        """Handle one message of a worker."""
        try:
            message, fds = worker.channel.receive(wait=False)
        except BlockingIOError:
            return
        except (EOFError, OSError) as error:
            if worker.call is not None and getattr(error, "errno", None) == errno.EMFILE:
                self._fail(worker.call, error.with_traceback(None))
            self._lose(worker)
        else:
            self._handle(worker, message, fds)

    def _hear_all(self, worker: WorkerProcess) -> None:
        """Handle what a worker has sent so far, be it dead or alive."""
        while worker in self._crew:
            try:
                message, fds = worker.channel.receive(wait=False)
            except (BlockingIOError, EOFError, OSError):
                return
            self._handle(worker, message, fds)

    def _handle(self, worker: WorkerProcess, message: Any, fds: list[int]) -> None:
        segments = [Segment.attach(fd, "r+") for fd in fds]
        match message:
            case ("ready", pid):
                self._crew.greet(worker, pid)
                if worker.call is None:  # of those who are to be there for the next call
                    self._crew.rest(worker)
                self._note_running(worker)
            case ("first", call_id, spec):
                self._decide(worker, self._calls.get(call_id), spec)
            case ("log", call_id, key):
                if call_id in self._calls:
                    self._calls[call_id].results.logs.add(key, segments[0])
            case ("failed", call_id, failure):
                self._note_failure(self._calls.get(call_id), failure)
            case ("imported", stamps):
                self._crew.note_imports(worker, stamps)
            case ("finished", call_id, stamps, are_gone):
                self._crew.note_imports(worker, stamps)
                worker.give_back(call_id, are_gone=are_gone)
                if worker.call is not None and worker.call.id == call_id:
                    worker.knows = worker.call.told[0]
                    self._release(worker)

    def _hear_prints(self, call: Call) -> None:
        """Take what workers have printed before they say that they have finished."""
        if call.board.has_prints():
            self._pipes.is_reading = True  # first, for who looks at both
            call.board.header[PRINTED] = 0  # before: what comes now may not be read
            self._pipes.read_all()

    def _note_running(self, worker: WorkerProcess) -> None:
        call = worker.call
        if call is not None and call.state == "starting" and worker.is_ready:
            call.state = "running"

    def _decide(self, worker: WorkerProcess, call: Call | None, spec: OutputSpec) -> None:
        """Tell a worker that has its first result where results go."""
        if call is None:  # it was stopped; the worker is about to be ended
            return
        try:
            call.results.decide(spec)
            reference, fds = None, []
            array = call.results.array
            if array is not None:
                found = segment_of(array)
                assert found is not None
                segment, offset = found
                worker.lend(call.id, segment)
                reference = ArrayReference(
                    0,
                    offset,
                    array.shape,
                    array.strides,
                    array.dtype,
                    is_shared=False,
                    is_writable=True,
                )
                fds = [segment.fd]
            worker.channel.send((call.results.spec, reference), fds, wait=False)
        except OSError:
            self._lose(worker)
        except Exception as error:  # noqa: BLE001 - no memory for the output is the call's failure
            self._fail(call, error.with_traceback(None))

    def _note_failure(self, call: Call | None, failure: Failure) -> None:
        if call is None:
            return
        error = rebuild(failure)
        if failure.item >= 0:
            i = failure.item - call.request.first
            call.note_error(error, range(i, i + 1))
        if failure.item < 0 or call.request.policy.on_error == "raise":
            self._fail(call, error)

    def _release(self, worker: WorkerProcess) -> None:
        """Let a worker rest that has nothing left to do for its call."""
        call, worker.call = worker.call, None
        self._crew.rest(worker)
        if call is not None:
            self._hear_prints(call)
        if call is not None and call.workers.pop(worker, None) is not None:
            self._advance(call)
            self._pass_on(call)

    def _lose(self, worker: WorkerProcess, *, is_late: bool = False) -> None:
        """Handle a worker that has died or has to die."""
        self._hear_all(worker)
        if worker not in self._crew:
            return
        call, worker.call = worker.call, None
        status = self._crew.dismiss(worker)
        if call is None or worker not in call.workers:
            return
        slot = call.workers.pop(worker)
        items, unbegun = call.board.items_of(slot), call.board.unbegun(slot)
        # One that had not turned to the call, or waited at an open one, died while it was idle:
        # that says nothing of the call.
        call.n_unborn += not worker.is_ready
        is_loading = call.board.loading_since(slot) is not None
        has_turned = is_loading or (call.entrance is None and call.board.has_begun(slot))
        call.n_replaced += not items and has_turned
        call.past_slots.append(call.board.row(slot).tolist())
        call.board.clear_slot(slot)
        call.free_slots.append(slot)
        if items:
            call.torn_rows += items
            text, timeout_s = call.request.text_of(items.start), call.request.policy.timeout_s
            first = call.request.first
            named = range(first + items.start, first + items.stop)
            if is_late and timeout_s is not None:
                error: BaseException = timed_out(worker.pid, named, text, timeout_s)
            else:
                error = death_of(worker.pid, status, named, text)
            if self._overcome(call, items, error):
                unbegun = range(items.start, max(items.stop, unbegun.stop))
        if not call.board.stopped:
            self._give_back(call, unbegun)
            if not call.is_complete and (call.entrance is None or call.wants_worker):
                self._replace(call)
        self._advance(call)

    def _overcome(self, call: Call, items: range, error: BaseException) -> bool:
        """Handle the death of a worker in the middle of items: whether they are tried again."""
        if call.board.stopped:
            return False
        attempts = call.board.attempts_to_count(items.start, items.stop)
        retries = call.request.policy.retries
        if len(items) > 1 and retries:
            attempts |= SUSPECT  # next time they are run one by one, and the guilty one is known
            return True
        attempts += 1
        if attempts.max() & ATTEMPTS <= retries:
            return True
        call.note_error(error, items)
        if call.request.policy.on_error == "raise":
            self._fail(call, error)
        else:
            call.board.done[items.start : items.stop] = FAILED
        return False

    def _give_back(self, call: Call, items: range) -> None:
        with self._claiming:
            give_back(call.board, items, self._lock_of(call))
        if call.entrance is not None:
            call.entrance.call(1)

    def _lock_of(self, call: Call) -> FileLock:
        return FileLock(self._nursery.lock_fd, call.id)
