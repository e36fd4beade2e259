"""The objects that an owner and its workers share, such as boards, orders and messages."""

import _thread
from collections.abc import Iterator
from contextlib import contextmanager

_index: int | None = None  # the number of this worker, if this process is one
_here = _thread._local()  # a thread's index while it runs items outside a worker process


def is_worker() -> bool:
    """Return whether this process is a worker, in which nested calls run inline."""
    return _index is not None


def become_worker(index: int) -> None:
    """Mark this process as a worker."""
    global _index
    _index = index


@contextmanager
def running_items(index: int = 0) -> Iterator[None]:
    """Mark this thread as running items in the block. Nested blocks have no effect."""
    before = getattr(_here, "index", None)
    _here.index = index if before is None else before
    try:
        yield
    finally:
        _here.index = before


def index_here() -> int | None:
    """Return the index of the worker whose items this thread runs, or None."""
    return getattr(_here, "index", None) if _index is None else _index


def runs_items() -> bool:
    """Return whether this thread runs items of a call, in any process."""
    return index_here() is not None
