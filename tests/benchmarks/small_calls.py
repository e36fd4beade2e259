"""The time of one small call: its steps, with times and threads.

``python tests/benchmarks/small_calls.py map`` traces a later map of eight items that do nothing,
``submit`` a task that is submitted and awaited. ``--nbshare FOLDER`` traces another checkout.

Each function of `STEPS` notes when it begins and ends. All processes share the monotonic clock, so
one list shows caller, dispatcher and workers. A note costs about 1 µs. The first line says how long
the call takes without them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

STEPS = """
entries.mapping.check_call arguments.options.checked_request functions.reference.bind_arguments
wire.context.current_context source.changes.warn_of_changes entries.mapping.prepared
engine.preparing.prepare engine.preparing.pack_fixed wire.board.Board.create
notebook.open_display jobs.job.Job._start engine.call.Call.start jobs.job.Job._tick
engine.call.Call.wait
jobs.job.Job._outcome entries.executor.Executor.submit engine.tasks.TaskQueue.put
engine.tasks.TaskQueue._resolve engine.tasks.TaskQueue._give_out engine.tasks.TaskQueue._join
engine.dispatcher.Dispatcher._attend engine.dispatcher.Dispatcher.is_current
engine.dispatcher.Dispatcher.notify system.posix.FdWaiter.wait
engine.dispatcher.Dispatcher._turn
engine.calls.Calls.begin engine.workers.WorkerPool.renew_if_stale
engine.workers.WorkerPool.assign engine.calls.Calls.finish_ended engine.calls.Calls._finish
engine.calls.Calls.hear engine.call.Call.finish wire.messages.Channel.send
wire.messages.Channel.receive worker.process.work_on worker.state.InheritedState.restore
wire.board.Board.__init__ worker.work.Work.__init__ worker.work.Work._loaded
worker.work.Work.step worker.work.Work._run_chunk wire.board.Claims.claim
store.writing.ResultStore.put worker.process.Mappings.end_call
worker.state.InheritedState.restore_after worker.process._RemoteCaller.close
worker.process._RemoteCaller.tidy_up worker.process._RemoteCaller.await_items
worker.process._RemoteCaller.tell_news worker.process._RemoteCaller.sends_prints
arrays.inputs.Inputs.load
"""

notes: list[tuple[int, int, str, int, str]] = []  # begin and end in ns, who, depth, step
_depth = threading.local()


def nothing(i: int) -> int:
    """Do nothing, as an item."""
    return i


def watch(who: str) -> None:
    """Have all steps note their times in this process."""
    named = threading.get_ident()

    def noting(step: str, func: Any) -> Any:
        @functools.wraps(func)
        def noted(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(_depth, "n", 0)
            _depth.n = depth + 1
            begin = time.monotonic_ns()
            try:
                return func(*args, **kwargs)
            finally:
                end, _depth.n = time.monotonic_ns(), depth
                thread = threading.current_thread().name.replace("Dummy-1", "dispatcher")
                thread = who if threading.get_ident() == named else thread
                notes.append((begin, end, thread, depth, step))

        return noted

    for step in STEPS.split():
        *path, name = step.split(".")
        for n in (len(path), len(path) - 1):
            try:
                place = importlib.import_module("nbshare._core." + ".".join(path[:n]))
                for part in path[n:]:
                    place = getattr(place, part)
                func = vars(place)[name]
            except (ImportError, AttributeError, KeyError):
                continue
            is_plain = not isinstance(func, (classmethod, staticmethod))
            wrapped = noting(step, func if is_plain else func.__func__)
            setattr(place, name, wrapped if is_plain else type(func)(wrapped))
            for module in [m for k, m in sys.modules.items() if k.startswith("nbshare")]:
                for alias, value in list(vars(module).items()):
                    if value is func:
                        setattr(module, alias, wrapped)
            break
        else:
            print(f"{step} is not there", file=sys.stderr)


def watch_worker(i: int) -> None:
    """Have a worker note its steps, while the other one does the same."""
    watch(f"worker {i}")
    time.sleep(0.3)


def collect(i: int) -> list[Any]:
    """Return the notes of a worker."""
    time.sleep(0.3)
    return notes


def main() -> None:
    """Trace the calls, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["map", "submit"])
    parser.add_argument("--nbshare", metavar="FOLDER", help="the folder with the package")
    parser.add_argument("--calls", type=int, default=400, metavar="N", help="in each round")
    parser.add_argument("--pause", type=float, default=0, metavar="MS", help="after each call")
    args = parser.parse_args()
    if args.nbshare:
        sys.path.insert(0, args.nbshare)
    import small_calls  # this file, by the name that workers import

    import nbshare

    print("nbshare in", Path(nbshare.__file__).parent)
    spans: list[tuple[int, int]] = []

    def repeat() -> float:
        spans.clear()
        for _ in range(args.calls):
            begin = time.monotonic_ns()
            if executor is None:
                nbshare.parallel_map(small_calls.nothing, range(8), max_workers=2, progress=False)
            else:
                executor.submit(small_calls.nothing, 1).result()
            spans.append((begin, time.monotonic_ns()))
            time.sleep(args.pause / 1e3)
        return statistics.median(end - begin for begin, end in spans) / 1e3

    executor = None if args.what == "map" else nbshare.Executor(2)
    repeat()
    bare = repeat()
    in_both = functools.partial(
        nbshare.parallel_map, max_workers=2, chunksize=1, progress=False, out="list"
    )
    if executor is not None:  # which has workers of its own as long as it is busy
        in_both = executor.map
    list(in_both(small_calls.watch_worker, range(2)))
    small_calls.watch("caller")
    repeat()
    small_calls.notes.clear()
    traced = repeat()
    print(f"{bare:.0f} µs a call; {traced:.0f} µs while it is traced")
    mine = list(small_calls.notes)
    theirs = list(in_both(small_calls.collect, range(2)))
    report(spans, [*mine, *theirs[0], *theirs[1]])
    if executor is not None:
        executor.shutdown()


def report(spans: list[tuple[int, int]], found: list[Any]) -> None:
    """Print the steps in the order of their begins, medians over the calls."""
    found.sort()
    rows: dict[tuple[str, str, int, int], list[tuple[float, float]]] = {}
    position = 0
    next_begins = [begin for begin, _ in spans[1:]] + [spans[-1][1]]
    for (begin, _), next_begin in zip(spans, next_begins, strict=True):
        counts: dict[tuple[str, str, int], int] = {}
        while position < len(found) and found[position][0] < next_begin:
            start, stop, who, depth, step = found[position]
            position += 1
            if start >= begin:
                key = who, step, depth
                counts[key] = nth = counts.get(key, -1) + 1
                rows.setdefault((*key, nth), []).append(
                    ((start - begin) / 1e3, (stop - start) / 1e3)
                )
    print(f"{'µs':>6} {'takes':>6}  {'of':>4}  thread            step")
    table = []
    for (who, step, depth, _), times in rows.items():
        if len(times) >= len(spans) / 2:
            at, takes = (statistics.median(column) for column in zip(*times, strict=True))
            table.append((at, takes, len(times) / len(spans), who, depth, step))
    for at, takes, share, who, depth, step in sorted(table):
        print(f"{at:6.0f} {takes:6.0f}  {share:4.0%}  {who:<17} {'  ' * depth}{step}")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
