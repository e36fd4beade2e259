"""What the dispatcher does with calls and workers, in its thread: gives out work, hears answers.

::

    begin ──► find or start workers, send the call   ──►   claim chunks, run items,
                                                           write results and done flags
              allocate the output                    ◄──   first result
              note                                   ◄──   failed / log / imported / finished
    …
    finish the call, when nobody has anything left to say or to do
"""

from __future__ import annotations

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
from nbshare.engine.losses import take_off
from nbshare.engine.prints import PrintPipes
from nbshare.engine.process import Nursery, WorkerProcess
from nbshare.memory import Segment, segment_of
from nbshare.wire.board import PRINTED
from nbshare.wire.failures import Failure, rebuild
from nbshare.wire.orders import CallMessage
from nbshare.wire.results import OutputSpec

__all__ = ["Foreman"]


class Foreman:
    """Runs calls on worker processes.

    Parameters
    ----------
    events : Events
        Of the thread that it is for.
    nursery : Nursery
        Where workers come from.
    give_back : callable
        Lets others claim items of a call.

    Attributes
    ----------
    calls : dict
        Those that run, by their ids.
    crew : Crew
        The workers.
    pipes : PrintPipes
        What they print into.
    is_closing : bool
        Whether no more calls are begun; set by the dispatcher.

    Notes
    -----
    For one thread.
    """

    def __init__(
        self,
        events: Events,
        nursery: Nursery,
        give_back: Callable[[Call, range], None],
    ) -> None:
        self._give_back = give_back
        self.is_closing = False
        self.calls: dict[int, Call] = {}
        self.pipes = PrintPipes(events)
        self.crew = Crew(events, nursery, self.pipes, self.calls, self._hear, self._lose)
        self._deadlines = Deadlines(
            self.calls,
            self._hear_all,
            self._lose,
            self.advance,
            self.crew.replenish,
        )

    def until_s(self) -> float | None:
        """Return when something has to be done though nobody says anything."""
        return min((*self._deadlines.times(), *self.crew.deadlines()), default=None)

    def do_what_is_due(self) -> None:
        """Do what has to be done at this moment."""
        self._deadlines.enforce()
        self.crew.end_overdue()

    def end(self) -> None:
        """End all calls and workers."""
        for call in self.calls.values():
            call.halt()
        try:
            self._end_workers()
        finally:  # nobody may wait for ever
            self.crew.close()
            for call in list(self.calls.values()):
                call.workers.clear()  # which know the call
                call.finish("failed" if call.error else "stopped", call.error)
            self.calls.clear()

    def _end_workers(self) -> None:
        for worker in self.crew:
            worker.kill()
        for worker in self.crew:
            if worker in self.crew:  # what another has said may have dismissed it, and its number
                worker.end()  # may mean another process by now
                self._hear_all(worker)
            if worker in self.crew:
                self.crew.dismiss(worker)

    # ----------------------------------------------------------------------- calls

    def begin(self, call: Call) -> None:
        """Begin a call."""
        if call.is_over:  # stopped by another thread before it was submitted
            return
        if self.is_closing:  # by another thread, since the call was submitted
            call.finish("stopped")
            return
        team = call.team
        # A stream is one map: its later calls run the files of the first.
        code = None if team is None else team.code
        try:
            call.code = code or self.crew.renew_if_stale(call.request.context, call.initializer_key)
        except OSError as error:
            call.finish("failed", errors.without_frames(error))
            return
        if team is not None:
            team.code = call.code
        self.calls[call.id] = call
        self.man(call)
        self.advance(call)

    def hear_workers(self, call: Call) -> None:
        """Handle what the workers of a call have sent so far."""
        for worker in list(call.workers):
            self._hear_all(worker)

    def man(self, call: Call) -> None:
        """Put workers to work on a call, as many as it may have now."""
        try:
            while call.wants_worker and self._n_free(call) > 0 and self._is_to_assign(call):
                self._assign(call)
        except (errors.WorkerDiedError, OSError) as error:
            if not call.workers:
                self._fail(call, errors.without_frames(error))

    def _is_to_assign(self, call: Call) -> bool:
        """Whether a call is not to go on without those who are late, until they come."""
        generation = call.code.generation
        if self.crew.free_worker(generation) is not None:
            return True
        for worker in self.crew.late(generation):
            self._hear_all(worker)
            if worker.is_behind and worker.is_stopped:
                self._lose(worker)
        n_late = len(self.crew.late(generation)) if call.workers else 0
        return call.wants_worker and self._n_free(call) > n_late

    def _n_free(self, call: Call) -> int:
        """Return how many more workers a call may have now: a stream's calls share theirs."""
        if call.team is None:
            return call.request.max_workers - len(call.workers)
        return call.team.n_workers - sum(len(c.workers) for c in self._team_of(call))

    def _team_of(self, call: Call) -> list[Call]:
        return [c for c in self.calls.values() if c.team is call.team]

    def _assign(self, call: Call) -> None:
        """Give the call one more worker."""
        slot = call.free_slots[-1]
        message = CallMessage(call.id, slot, call.n_threads, *call.told)
        files = [s if mode == "r+" else s.read_only() for s, mode in call.segments]
        fds = [call.board.segment.fd, *(file.fileno() for file in files)]
        if call.bell_fd is not None:
            fds.append(call.bell_fd)
        if call.entrance is not None:
            fds.append(call.entrance.gong.fd)
        environ, prints = call.request.context.environ, call.request.prints
        worker = self.crew.put_to_work(
            message, fds, environ, call.code, prints, is_urgent=not call.workers
        )
        worker.lend(call.id, *(segment for segment, _ in call.segments))
        worker.call, worker.call_since = call, time.monotonic()
        call.workers[worker] = call.free_slots.pop()
        self._note_running(worker)

    def advance(self, call: Call) -> None:
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
        return worker.has_borrowed_for(call.id) or call.board.busy_since(slot) is not None

    def _replace(self, call: Call) -> None:
        """Put another worker to work in the place of one that has died."""
        try:
            # With their server all are lost that it has yet to start.
            max_unborn = call.request.max_workers + MAX_REPLACED
            if call.n_replaced > MAX_REPLACED or call.n_unborn > max_unborn:
                raise errors.WorkerDiedError(
                    f"{call.n_replaced + call.n_unborn} workers died one after the other before "
                    "they began an item. Something that they import may end them, or the "
                    "initializer; memory may be short, or the system may allow no more processes."
                )
            self._assign(call)
        except (errors.WorkerDiedError, OSError) as error:
            self._fail(call, errors.without_frames(error))
            self.advance(call)

    def _fail(self, call: Call, error: BaseException) -> None:
        """Note the first failure and stop the rest."""
        if call.error is None:
            call.error = error
            self.stop(call)

    def stop(self, call: Call) -> None:
        """End a call early."""
        if call.is_over:
            return
        if call.id not in self.calls:  # interrupted before it was submitted
            call.finish("stopped")
            return
        call.halt()
        if call.kill_at is None:
            call.kill_at = time.monotonic() + GRACE_S
        self.advance(call)

    def _finish(self, call: Call, state: State) -> None:
        del self.calls[call.id]
        self.hear_prints(call)
        self.pipes.end_lines(call.request.prints)
        for worker in call.workers:  # late ones find nothing to do, and become idle
            worker.call = None  # which holds the items
        call.workers.clear()
        call.finish(state, call.error)
        self._man_others()
        self.crew.end_outdated()

    def _man_others(self) -> None:
        """Put workers to work on calls that have had to go on with fewer than they may have."""
        for call in list(self.calls.values()):
            self.man(call)

    # --------------------------------------------------------------------- workers

    def _hear(self, worker: WorkerProcess) -> None:
        """Handle one message of a worker."""
        try:
            message, segments = self._receive(worker)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            worker.note_closed()
            self._lose(worker)
        else:
            self._handle(worker, message, segments)

    def _hear_all(self, worker: WorkerProcess) -> None:
        """Handle what a worker has sent so far, be it dead or alive."""
        while worker in self.crew:
            try:
                message, segments = self._receive(worker)
            except (BlockingIOError, EOFError, OSError):
                return
            self._handle(worker, message, segments)

    def _receive(self, worker: WorkerProcess) -> tuple[Any, list[Segment]]:
        """Return the next message of a worker, and the memory that came with it."""
        try:
            message, fds = worker.channel.receive(wait=False)
            return message, [Segment.attach(fd, "r+") for fd in fds]
        except OSError as error:
            # With the descriptor, for which there is no room, the results in its memory are lost.
            if worker.call is not None and error.errno == errno.EMFILE:
                self._fail(worker.call, type(error)(*error.args))
            raise

    def _handle(self, worker: WorkerProcess, message: Any, segments: list[Segment]) -> None:
        match message:
            case ("ready", pid):
                self.crew.greet(worker, pid)
                if worker.has_nothing_to_do:  # of those who are to be there for the next call
                    self.crew.rest(worker)
                self._note_running(worker)
            case ("first", call_id, spec):
                self._decide(worker, self.calls.get(call_id), spec)
            case ("log", call_id, key):
                if call_id in self.calls:
                    self.calls[call_id].results.logs.add(key, segments[0])
            case ("failed", call_id, failure):
                self._note_failure(self.calls.get(call_id), failure)
            case ("imported", stamps):
                self.crew.note_imports(worker, stamps)
            case ("finished", call_id, stamps, are_gone):
                self.crew.note_imports(worker, stamps)
                worker.give_back(call_id, are_gone=are_gone)
                if (call := worker.call) is not None and call.id == call_id:
                    self._release(worker, call)
                elif worker.has_nothing_to_do:
                    self.crew.rest(worker)
                    self._man_others()
                else:
                    worker.call_since = time.monotonic()

    def hear_prints(self, call: Call) -> None:
        """Take what workers have printed before they say that they have finished."""
        if call.board.has_prints():
            self.pipes.is_reading = True  # first, for who looks at both
            call.board.header[PRINTED] = 0  # before: what comes now may not be read
            self.pipes.read_all()

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
        except Exception as error:  # noqa: BLE001 - no memory for the output is the call's failure
            self._fail(call, errors.without_frames(error))
            return
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
        try:
            worker.channel.send((call.results.spec, reference), fds, wait=False)
        except ConnectionError:
            pass  # it has died, which is about to be noticed
        except OSError:
            self._lose(worker)

    def _note_failure(self, call: Call | None, failure: Failure) -> None:
        if call is None:
            return
        error = rebuild(failure)
        if failure.item >= 0:
            i = failure.item - call.request.first
            call.note_error(error, range(i, i + 1))
        if failure.item < 0 or not call.request.policy.returns_errors:
            self._fail(call, error)

    def _release(self, worker: WorkerProcess, call: Call) -> None:
        """Let a worker rest that has nothing left to do for its call."""
        worker.call = None
        self.crew.rest(worker)
        self.hear_prints(call)
        if call.workers.pop(worker, None) is not None:
            self.advance(call)
        self._man_others()

    def _lose(self, worker: WorkerProcess, *, is_late: bool = False) -> None:
        """Handle a worker that has died or has to die."""
        if worker not in self.crew:
            return
        worker.end()  # first: what it does until then counts, and is heard
        ended_at = time.monotonic()
        self._hear_all(worker)
        if worker not in self.crew:
            return
        call, worker.call = worker.call, None
        status = self.crew.dismiss(worker)
        if call is None or worker not in call.workers:
            self._man_others()  # it may have been late
            return
        unbegun, error = take_off(call, worker, status, ended_at if is_late else None)
        if error is not None:
            self._fail(call, error)
        if not call.board.stopped:
            self._give_back(call, unbegun)
            if not call.is_complete and (call.entrance is None or call.wants_worker):
                self._replace(call)
        self.advance(call)
