"""One fresh process. It runs one contestant and writes its results, a JSON line each."""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import statistics
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import workloads as w


def main():
    """Carry out the order that the race gave in the last argument."""
    order = json.loads(sys.argv[-1])
    module = importlib.import_module(order["module"])
    with open(order["record"], "a", buffering=1) as file:

        def tell(**facts):
            print(json.dumps({**facts, "when": time.monotonic()}), file=file)

        cls = next(c for c in module.CONTESTANTS if c.name == order["contestant"])
        JOBS[order["job"]](order, cls, tell)


def digest(result) -> str:
    """Return what is the same only if type of numbers, shape, order and every bit are the same."""
    if isinstance(result, list) and not isinstance(result[0], int | float | np.generic):
        return hashlib.sha1(repr(result).encode()).hexdigest()
    array = np.ascontiguousarray(result)
    head = f"{array.dtype.str} {array.shape}".encode()
    return hashlib.sha1(head + hashlib.sha1(array).digest()).hexdigest()


def clock(call):
    """Return the seconds that a call takes, and its result."""
    gc.collect()  # otherwise the next collection, of some 0.6 ms, may fall into the call
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


# ------------------------------------------------------------------------- the race


def run_workloads(order, cls, tell):
    """Time the workloads of one group on the same workers."""
    contestant = None
    for name in order["workloads"]:
        load = w.workloads(order["size"])[name]
        data = load.data()
        try:
            if contestant is None:
                start = partial(cls, order["workers"], data)
                first, (contestant, result) = clock(partial(start_and_run, start, load))
            else:
                first = None
                result = run(contestant, load)
            digests = {digest(result)}
            seconds = []
            while len(seconds) < 7 and sum(seconds) < 0.2:
                result = None  # its memory is free before the next call begins
                spent, result = clock(partial(run, contestant, load))
                seconds.append(spent)
            digests.add(digest(result))
            times = {"first": first, "later": statistics.median(seconds)}
            tell(workload=name, digest=" ".join(sorted(digests)), **times)
        except Exception as error:
            traceback.print_exc()
            tell(workload=name, error=f"{type(error).__name__}: {error}"[:200])
    if contestant is not None:
        contestant.close()


def start_and_run(start, load):
    contestant = start()
    return contestant, run(contestant, load)


def run(contestant, load):
    """Compute a workload, in the form in which its user wants the results."""
    results = contestant.map(load.func, load.items)
    return np.stack(results) if load.stacked and isinstance(results, list) else results


def bandwidth(order, cls, tell):
    """Time the limit if bytes decide, when all CPUs read all, or write all once."""
    workers = order["workers"]
    for name in order["workloads"]:
        load = w.workloads(order["size"])[name]
        data = load.data()
        if data is None:
            size = len(load.items) * load.func(load.items[0]).nbytes // workers
            jobs = [partial(np.full, size // 8, 1.0)] * workers
        else:
            parts = np.array_split(data[: data.size // 8 * 8].view(np.uint64), workers)
            jobs = [partial(np.bitwise_or.reduce, part) for part in parts] * len(load.items)
        with ThreadPoolExecutor(workers) as executor:
            list(executor.map(abs, range(workers)))
            seconds = [
                clock(lambda jobs=jobs: [f.result() for f in [executor.submit(j) for j in jobs]])[0]
                for _ in range(3)
            ]
        tell(workload=name, first=min(seconds), later=min(seconds))


# ------------------------------------------------------------------------- how cost grows


def scale(order, cls, tell):
    """Time one call for each size of one axis, until the next would take too long."""
    measure = {"items": scale_items, "bytes": scale_bytes, "workers": scale_workers}[order["axis"]]
    limit = order["seconds"] / 3
    cls(1).close()  # what it imports counts in the race, not here
    begin = time.perf_counter()
    contestant = cls(order["workers"]) if order["axis"] == "items" else cls
    before, spent = None, 0.0
    for size in order["sizes"]:
        growth = size / before if before else 1
        if spent * growth > limit or time.perf_counter() - begin > 2 * limit:
            tell(size=size, error=f"would take over {limit:.0f} s")
            break
        seconds, ok = measure(contestant, size, order["workers"])
        tell(size=size, seconds=seconds, ok=ok)
        before, spent = size, seconds
    if contestant is not cls:
        contestant.close()


def scale_items(contestant, n, workers):
    """Time so many tiny items on running workers."""
    contestant.map(w.double, range(1000))
    seconds, result = clock(lambda: contestant.map(w.double, range(n)))
    return seconds, bool(np.array_equal(result, np.arange(n) * 2 + 1))


def scale_bytes(cls, n, workers):
    """Time the start and a call in which every worker reads an array of so many bytes."""
    data = np.zeros(n, np.uint8)
    data[-1] = 1
    ones = [1] * (4 * workers)
    return start_and_check(partial(cls, workers, data), w.count, ones)


def scale_workers(cls, n, workers):
    """Time the start of so many workers and a first call on them."""
    return start_and_check(partial(cls, n), w.same, range(8 * n))


def start_and_check(start, func, items):
    """Return the seconds of a start and a first call, and whether its results are the items."""

    def start_and_map():
        contestant = start()
        return contestant, contestant.map(func, items)

    seconds, (contestant, result) = clock(start_and_map)
    contestant.close()
    return seconds, list(result) == list(items)


# ------------------------------------------------------------------------- facts


def memory(order, cls, tell):
    """Map over a large array, while the race reads how much memory all processes use."""
    data = w.random_bytes(order["nbytes"])
    tell(at="begin")
    contestant = cls(order["workers"], data)
    contestant.map(w.count, range(8 * order["workers"]))
    tell(at="end")
    contestant.close()


def interrupted(order, cls, tell):
    """Compute long items until an interrupt, and try another call after it."""
    contestant = cls(order["workers"])
    contestant.map(w.same, range(8))
    tell(at="begin")
    try:
        contestant.map(partial(w.hold, mark=order["mark"]), range(4 * order["workers"]))
    except BaseException:
        traceback.print_exc()
    if not cls.lasting:
        contestant.close()
    tell(at="prompt")
    if not cls.lasting:
        contestant = cls(order["workers"])
    works = list(contestant.map(w.same, range(8))) == list(range(8))
    tell(at="next", works=works)


def killed(order, cls, tell):
    """Compute long items with a large array until the race kills this process."""
    contestant = cls(order["workers"], w.random_bytes(order["nbytes"]))
    contestant.map(partial(w.hold, mark=order["mark"]), range(4 * order["workers"]))


def failing(order, cls, tell):
    """Let one item of many raise."""
    contestant = cls(order["workers"])
    try:
        contestant.map(partial(w.reciprocal, pole=order["item"]), order["items"])
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        kept = isinstance(error, ZeroDivisionError)
        tell(raised=type(error).__name__, kept=kept, named=str(order["item"]) in text)
    contestant.close()


def dying(order, cls, tell):
    """Let one item of many end its worker."""
    contestant = cls(order["workers"])
    contestant.map(w.same, range(8))
    tell(at="begin")
    try:
        result = contestant.map(partial(w.die, victim=order["item"]), order["items"])
        tell(at="end", raised=None, right=list(result) == order["items"])
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        tell(at="end", raised=type(error).__name__, named=str(order["item"]) in text)


JOBS = {
    job.__name__: job
    for job in (run_workloads, bandwidth, scale, memory, interrupted, killed, failing, dying)
}
