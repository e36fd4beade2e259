"""Set-ups and questions of tests of ring buffers."""

from __future__ import annotations

import contextlib
import multiprocessing

from tests.support import rings

WAITED = {"put": "producers_waited_s", "get": "consumers_waited_s"}

# Joblib adds others, if it is imported.
STARTS = [m for m in multiprocessing.get_all_start_methods() if "loky" not in m]
SPAWN = multiprocessing.get_context("spawn")
QUICK = multiprocessing.get_context("fork" if "fork" in STARTS else "spawn")


@contextlib.contextmanager
def running(context, target, *args):
    """Run a process, which must be over soon after the block."""
    process = context.Process(target=target, args=args)
    process.start()
    try:
        yield process
        process.join(20)
        assert not process.is_alive()
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def held_by_other(ring, way, context=QUICK):
    """Let another process take a slot. Return the process."""
    held = context.Event()
    with running(context, rings.hold, ring, way, held) as process:
        assert held.wait(20)
        yield process
        process.kill()


def figures(ring):
    """Return how many slots are queued, in use for reading and filling, and free."""
    now = ring.stats
    return now.queued, now.reading, now.filling, now.free


def fill(ring):
    """Put until no slot is free."""
    while figures(ring)[3]:
        rings.put_numbers(ring, 0, 1)
