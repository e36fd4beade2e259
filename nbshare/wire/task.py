"""One task of an executor, as it is queued and as a worker runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nbshare.errors import cut
from nbshare.functions.reference import label_of
from nbshare.memory import segment_of
from nbshare.wire.failures import safe_repr

__all__ = ["Task", "nbytes_of", "run_chunk", "run_task"]


N_WEIGHED = 8  # of many, which are the items of a chunk or a batch, and much alike


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
        return _weigh(self.args) + sum(_weigh([value]) for value in self.kwargs.values())


def run_task(task: Task) -> Any:
    """Run a task; in a worker."""
    return task.func(*task.args, **task.kwargs)


def run_chunk(func: Callable[..., Any], *items: tuple[Any, ...]) -> list[Any]:
    """Call a function for several items: one task of a map with a chunksize."""
    return [func(*args) for args in items]


def _weigh(values: Sequence[Any], depth: int = 1) -> int:
    """Return about how much of some values has to be copied, and of what is in lists among them."""
    some = values[:N_WEIGHED]
    return sum(_nbytes_to_copy(value, depth) for value in some) * len(values) // max(len(some), 1)


def _nbytes_to_copy(value: Any, depth: int) -> int:
    if depth and isinstance(value, list):
        return _weigh(value, depth - 1)
    is_shared = isinstance(value, np.ndarray) and segment_of(value) is not None
    return 0 if is_shared else nbytes_of(value)


def nbytes_of(item: Any) -> int:
    """Return about how much memory an item takes; of what is no array or text, not much."""
    if isinstance(item, tuple):
        return sum(map(nbytes_of, item))
    if isinstance(item, bytes | bytearray | str):
        return len(item)
    return int(item.nbytes) if isinstance(item, np.ndarray) else 64
