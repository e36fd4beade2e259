"""One task of an executor, as it is queued and as a worker runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nbshare.errors import cut
from nbshare.functions.reference import label_of
from nbshare.wire.failures import safe_repr

__all__ = ["Task", "nbytes_of", "run_chunk", "run_task"]


N_WEIGHED = 8  # of many, which are the items of a chunk, and much alike


class Task(NamedTuple):
    """A function and what it is called with."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __repr__(self) -> str:
        func = self.func
        while isinstance(func, partial) and func.func is run_chunk:
            (func,) = func.args
        given = [*map(safe_repr, self.args)]
        given += [f"{name}={safe_repr(value)}" for name, value in self.kwargs.items()]
        return cut(f"{label_of(func)}({', '.join(given)})")

    @property
    def nbytes(self) -> int:
        """About how much of it has to be copied."""
        return nbytes_of((*self.args, *self.kwargs.values()))


def run_task(task: Task) -> Any:
    """Run a task; in a worker."""
    return task.func(*task.args, **task.kwargs)


def run_chunk(func: Callable[..., Any], *items: tuple[Any, ...]) -> list[Any]:
    """Call a function for several items: one task of a map with a chunksize."""
    return [func(*args) for args in items]


def nbytes_of(item: Any, depth: int = 3) -> int:
    """Return about how much memory an item takes; of what is no array or text, not much."""
    if depth and isinstance(item, tuple | list):
        some = item[:N_WEIGHED]
        nbytes = sum(nbytes_of(part, depth - 1) for part in some)
        return nbytes * len(item) // max(len(some), 1)
    if isinstance(item, bytes | bytearray | str):
        return len(item)
    return int(item.nbytes) if isinstance(item, np.ndarray) else 64
