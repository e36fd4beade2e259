"""What an owner and its workers share: the board, orders, messages, results, failures."""

import _thread
from collections.abc import Iterator
from contextlib import contextmanager

_is_worker = False
_here = _thread._local()  # of this thread: whether it runs items, in a process that is no worker


def is_worker() -> bool:
    """Return whether this process is a worker; nested calls then run inline."""
    return _is_worker


def become_worker() -> None:
    """Mark this process as a worker."""
    global _is_worker
    _is_worker = True


@contextmanager
def running_items() -> Iterator[None]:
    """Mark this thread as one that runs items, until the block ends."""
    before, _here.runs_items = runs_items(), True
    try:
        yield
    finally:
        _here.runs_items = before


def runs_items() -> bool:
    """Return whether this thread runs items of a call, in a worker or not."""
    return _is_worker or getattr(_here, "runs_items", False)
