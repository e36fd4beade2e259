"""A worker process: waits for calls, claims chunks, runs items and stores results.

::

    started ──► ready ──► call ──► claim ─► run items ─► claim … nothing left ──► finished ─┐
                  ▲                                                                          │
                  └──────────────────────────────────────────────────────────────────────────┘

A worker never runs the caller's ``__main__``. It ends with its owner, however the owner ends. Only
the owner holds the writing end of a pipe, the *life pipe*. When the owner ends, the kernel closes
this end and signals the workers. That needs no Python code, so a worker is killed even in C code
that holds the interpreter lock.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

from nbshare._core.arrays.inputs import Inputs, opened
from nbshare._core.functions.freshness import ImportLog, use_snapshot
from nbshare._core.memory import Mode, OwnBytes, Segment, View, silence_warnings
from nbshare._core.store.logs import LogKey
from nbshare._core.store.rows import Decided, RowWriter
from nbshare._core.store.specs import OutputSpec
from nbshare._core.system import close, locks, processes, sections, waiting
from nbshare._core.wire import become_worker
from nbshare._core.wire.board import NO_ITEM, Board
from nbshare._core.wire.failures import ItemStopped, describe
from nbshare._core.wire.messages import Channel
from nbshare._core.wire.orders import CallOrder
from nbshare._core.worker import streams
from nbshare._core.worker.identity import introduce
from nbshare._core.worker.left_open import flush_files, watch_files
from nbshare._core.worker.state import InheritedState, leave, restore_variables, show_crashes
from nbshare._core.worker.work import Caller, Work

KEEP_S = 0.5  # so that memory is freed within a second
CLAIM_CHECK_S = 0.1  # interval of checks for unannounced items, and for a stop


class InheritedFds(NamedTuple):
    """The descriptors and facts that a worker starts with."""

    owner_fd: int  # becomes readable when the owner ends, or -1
    life_fd: int  # reading end of the owner's life pipe
    channel_fd: int
    lock_fd: int  # locked to claim a chunk
    out_fd: int  # pipes to the owner for printed output
    err_fd: int


def run(inherited: InheritedFds) -> None:
    """Work until the owner dismisses this worker. The process must exit normally afterwards.

    A normal exit joins threads, runs ``atexit`` handlers, and flushes files that functions left
    open. The owner waits for it, but not long. If the owner ends, this process ends immediately.
    """
    try:
        channel = _set_up(inherited)
        # A child that an item forks must not keep the channel open, because its closing signals the
        # death of this process.
        processes.at_fork(after_in_child=channel.close)
        channel.send(("ready", os.getpid()))
    except (EOFError, ConnectionError, RuntimeError):
        os._exit(1)  # the owner has ended or timed out, or no thread can be started
    state, mappings = InheritedState(), Mappings()
    lock = locks.FileLock(inherited.lock_fd)
    imports, is_idle, is_restored = ImportLog(), True, True
    while True:
        try:
            message, fds = channel.receive(timeout_s=None if is_idle else KEEP_S)
        except TimeoutError:
            mappings.drop()
            processes.return_freed_memory()
            is_idle = True
            continue
        except (EOFError, OSError):
            # The owner has ended. The kernel would signal this group too, but not if this process
            # closes its end of the life pipe first.
            processes.kill_group()
        if message is None:
            break
        call, slot, order = message
        caller = _RemoteCaller(call, channel, imports, mappings, state)
        if is_restored:
            work_on(order, slot, fds, caller, lock)
        else:
            caller.refuse(fds)
        if caller.is_dismissed:
            break
        is_idle = False
        channel.send(("finished", call, imports.take(), mappings.end_call(), caller.is_spent))
        mappings.drop_written()
        # Restored immediately, because descriptors of the next message could reuse the numbers of
        # closed ones, but after the message, because the caller waits for that.
        is_restored = state.restore_after()
    leave()
    faulthandler.disable()  # all results are delivered, so a crash at exit does not matter
    channel.keep_open()  # closing it would report the end of this process


def _set_up(inherited: InheritedFds) -> Channel:
    """Set up this process as a worker: its group, settings, streams and number."""
    silence_warnings()  # the owner has issued the warning about the kind of memory
    processes.lead_group(inherited.owner_fd, inherited.life_fd)
    processes.raise_oom_score()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel = Channel.from_fd(inherited.channel_fd, inherited.owner_fd)
    (index, owner, environ), (sources_fd,) = channel.receive()
    become_worker(index)
    # Without a descriptor of the owner, the end of the life pipe has the same effect.
    end_fd = inherited.owner_fd if inherited.owner_fd >= 0 else inherited.life_fd
    pid, name = owner
    introduce(index, pid, name, end_fd)
    use_snapshot(sources_fd)
    os.environ.clear()
    os.environ.update(environ)
    os.environ["MPLBACKEND"] = "Agg"  # the notebook's backend needs a kernel
    has_low = any(0 <= fd <= streams.HIGHEST for fd in inherited)
    if not has_low:  # the owner has no standard streams
        streams.replace_streams((inherited.out_fd, inherited.err_fd))
    show_crashes()
    watch_files()
    if "numpy.random" in sys.modules:  # because all forked workers would draw the same numbers
        sys.modules["numpy.random"].seed()
    return channel


SegmentKey = tuple[Any, ...]  # the key of `system.sections.key_of`, and the mode

Seen = list[weakref.ref[Any]]  # roots of views


class Mappings:
    """The mapped segments of a worker process, kept from one call to the next.

    Mapping 1 GiB again costs 0.2 s of page faults, so a next call with the same segments reuses the
    mappings. Any other call drops them, and so does an idle worker after `KEEP_S`, because a
    mapping keeps memory that its owner may have freed.

    Notes
    -----
    For one thread.
    """

    def __init__(self) -> None:
        self._kept: dict[SegmentKey, Segment] = {}
        self._used: dict[SegmentKey, Segment] = {}  # in this call
        self._seen: Seen = []
        self._n_faults = 0  # page faults of this process at the last check of its mappings

    def inputs(self, fds: Iterable[int], modes: Sequence[Mode]) -> list[View]:
        """Return views of the segments of inputs or outputs."""
        views = [View(self.segment(fd, mode)) for fd, mode in zip(fds, modes, strict=True)]
        self._seen += [weakref.ref(view.root) for view in views]
        return views

    def end_call(self) -> bool:
        """End a call but keep its mappings. Return whether all views of them have been released."""
        self._kept, self._used = self._used, {}
        seen, self._seen = self._seen, []
        return are_gone(seen)

    @contextmanager
    def own_faults(self) -> Iterator[None]:
        """Run a block whose page faults are no writes to private mappings."""
        before = processes.n_faults()
        yield
        self._n_faults += processes.n_faults() - before

    def drop_written(self) -> None:
        """Drop private mappings of the last call that its items have written to."""
        private = [(key, segment) for key, segment in self._kept.items() if segment.mode == "c"]
        if not private:
            return
        before, self._n_faults = self._n_faults, processes.n_faults()
        if self._n_faults == before:  # writing to a page would have been a fault
            return  # a check would take 15 ms per GB
        for key, segment in private:
            if View(segment).is_written(0, segment.nbytes):
                del self._kept[key]

    def drop(self, *, but_outputs: bool = False) -> None:
        """Drop the mappings of earlier calls that this call does not use."""
        self._kept = {k: s for k, s in self._kept.items() if but_outputs and s.mode == "r+"}

    def segment(self, fd: int, mode: Mode) -> Segment:
        """Return the segment of a descriptor, mapped in a mode."""
        key = *sections.key_of(fd), mode
        segment = self._kept.get(key) or self._used.get(key)
        if segment is None:
            segment = Segment.sent(fd) if mode == "c" else Segment.open(fd, mode)
        else:
            close(fd)
        self._used[key] = segment
        return segment


def are_gone(seen: Seen) -> bool:
    """Return whether this process has released all views of a call's memory."""
    if any(ref() is not None for ref in seen):
        gc.collect()  # a cycle, such as a function with its globals, may hold one
    return all(ref() is None for ref in seen)


def work_on(
    packed: bytes, slot: int, fds: Sequence[int], caller: _RemoteCaller, lock: locks.FileLock
) -> None:
    """Work on a call until no items are left to claim. Report failures to the owner.

    The descriptors are those of the board, the inputs and, in some calls, events.
    """
    mappings = caller.mappings
    try:
        caller.order = order = CallOrder(*pickle.loads(packed))
        caller.state.restore(order.settings, order.n_threads)
        is_private = any("c" in modes for _, modes in order.inputs)
        with mappings.own_faults() if is_private else nullcontext():
            board = Board(mappings.segment(fds[0], "r+"), *order.board)
            if is_private:
                board.touch()
        inputs, rest = [], iter(fds[1:])
        for small, modes in order.inputs:
            inputs.append(inputs_of(small, mappings.inputs(islice(rest, len(modes)), modes)))
        caller.news_fd, caller.items_fd = next(rest, -1), next(rest, -1)
        mappings.drop(but_outputs=True)  # outputs arrive with the first result
        work = Work(order, board, slot, inputs, caller, lock)
        del inputs
        caller.tell_news()  # the function is loaded
        try:
            while work.step():
                mappings.drop()
                caller.is_tidy = False
        except KeyboardInterrupt:  # between items, sent only to this process
            os._exit(1)
        except ItemStopped:  # dismissed while it waited for a reply
            pass
        work.note_peak()
        if work.has_variables:
            flush_files()
        caller.is_spent |= work.is_spent
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        # An item of an earlier call may have broken this process, for example by a change in NumPy,
        # so the next call uses another process.
        caller.is_spent = True
        caller.failed(NO_ITEM, error, "")
    finally:
        caller.close()


def inputs_of(small: bytes | None, segments: list[View]) -> Inputs:
    """Return the inputs of a call. Small inputs are part of the message."""
    return Inputs(segments if small is None else [OwnBytes(small), *segments])


class _RemoteCaller(Caller):
    """The caller of a worker in another process."""

    in_process = False
    order: CallOrder  # set when it is loaded

    def __init__(
        self,
        call: int,
        channel: Channel,
        imports: ImportLog,
        mappings: Mappings,
        state: InheritedState,
    ) -> None:
        self._call = call
        self._channel, self._imports = channel, imports
        self.mappings, self.state = mappings, state
        self.news_fd = self.items_fd = -1  # events, if there are any
        self._tokens: waiting.TokenWaiter | None = None
        self._n_looks = 0  # checks for items since the last ones arrived
        self.is_tidy = False  # whether settings are restored for the next item
        self.is_spent = False  # whether this process must be replaced
        self.is_dismissed = False  # whether the owner ends this worker

    def tell_news(self) -> None:
        if self.news_fd >= 0:
            waiting.set_event(self.news_fd)

    def await_items(self) -> bool:
        if self._tokens is None:
            self._tokens = waiting.TokenWaiter(self.items_fd)
        if not self.tidy_up():  # now, because no item is waiting
            return False
        self._n_looks = 0 if self._tokens.wait(CLAIM_CHECK_S) else self._n_looks + 1
        return self._n_looks * CLAIM_CHECK_S < KEEP_S  # otherwise other calls may need this worker

    def tidy_up(self) -> bool:
        if not self.is_tidy:
            self.is_spent = not self.state.restore_after()
            self.state.restore(self.order.settings, self.order.n_threads)
            self.is_tidy = True
        return not self.is_spent

    def tell_imports(self) -> bool:
        # When all items are done, the next call may begin, and it needs the list of imported files.
        if stamps := self._imports.take():
            self._channel.send(("imported", stamps))
        return bool(stamps)

    def refuse(self, fds: Iterable[int]) -> None:
        """Leave the call to other processes, as the settings of this one cannot be restored."""
        for fd in fds:
            close(fd)
        self.is_spent = True

    def close(self) -> None:
        """Close the descriptors of the call."""
        opened.clear()
        restore_variables()
        if self._tokens is not None:
            self._tokens.close()
        for fd in (self.news_fd, self.items_fd):
            if fd >= 0:
                close(fd)

    def decide(self, spec: OutputSpec) -> Decided:
        self._channel.send(("wanted", self._call, spec))
        (decided, place, files), fds = self._receive()
        writer = None if files is None else RowWriter(files)
        views = self.mappings.inputs(fds, ["r+"] * len(fds))
        return decided, None if place is None else place.rows(views), writer

    def make_room(self, n: int) -> int:
        self._channel.send(("wanted", self._call, n))
        return int(self._receive()[0])

    def _receive(self) -> tuple[Any, list[int]]:
        reply, fds = self._channel.receive()
        if reply is None:  # `shutdown` has dismissed this worker instead of replying
            self.is_dismissed = True
            raise ItemStopped
        return reply, fds

    def add_log(self, key: LogKey, log: Segment) -> None:
        self._channel.send(("log", self._call, key), [log.fd])

    def sends_prints(self) -> bool:
        return streams.flush()

    def failed(self, i: int, error: BaseException, item: str) -> None:
        self._channel.send(("failed", self._call, describe(error, i, item)))
