"""The orders that workers receive: calls, and tasks as items of calls.

They are separate from the code that executes them, which the owner need not import.
"""

# Without lazy annotations, because the classes below would compile each string, in 0.5 ms.
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from nbshare._core.arrays.inputs import Itself, Packed
from nbshare._core.functions.reference import label_of
from nbshare._core.memory import Mode
from nbshare._core.messages import cut
from nbshare._core.wire.failures import safe_repr
from nbshare._core.wire.kept import kept_result

if TYPE_CHECKING:
    from nbshare._core.arrays.ring import RingBuffer  # pipelines alone need it

STREAMS = ("stdout", "stderr")  # for each of which a worker has a pipe

N_WEIGHED = 8  # most parts of an item that are measured

Seed = tuple[Any, tuple[int, ...], int]  # a SeedSequence's entropy, spawn key and pool size


def generator(seed: Seed, i: int) -> "np.random.Generator":
    """Return the random generator of item `i`."""
    entropy, key, pool_size = seed
    child = np.random.SeedSequence(entropy, spawn_key=(*key, i), pool_size=pool_size)
    return np.random.Generator(np.random.PCG64(child))


class Policy(NamedTuple):
    """How a call treats failures, random numbers, and workers that have run many items."""

    on_error: Literal["raise", "return"] = "raise"
    retries: int = 0  # per item
    timeout_s: float | None = None  # per item
    seed: Seed | None = None
    max_tasks: int | None = None  # limit for a worker process, over all calls

    @property
    def returns_errors(self) -> bool:
        """Whether a call continues after failures."""
        return self.on_error == "return"


class Fixed(NamedTuple):
    """The objects that are the same for all items, by their places in the inputs."""

    func: Packed | Itself
    shared: Packed | None
    initializer: Packed | Itself | None
    initializer_key: bytes | None  # equal for equal initializers
    are_named: bool  # whether later pickles may name objects in these


class Sources(NamedTuple):
    """The items of a call, by their places in the inputs."""

    iterables: list[tuple[Any, ...]]  # arguments of `worker.items.ItemSource` for each
    step: int = 1  # number of items that are pickled together
    blocks: Sequence[Packed] = ()  # these pickles
    repeated: Sequence[Packed] = ()  # objects that several blocks name, see `arrays.repeated`


# The header of a block of a feed, which follows the pickle: first item, number of items, whether
# workers may see arrays in the block, offset of the header, and place of the items. Offsets are
# relative to the first block of the same write.
FeedHeader = tuple[int, int, bool, int, Packed]


class CallOrder(NamedTuple):
    """The order for all workers of a call."""

    settings: bytes  # the caller's settings, see `wire.context`
    n_threads: int  # for BLAS and similar libraries
    board: tuple[int, int | None, int]  # its offset in bytes, items, slots
    inputs: list[tuple[bytes | None, tuple[Mode, ...]]]  # small contents, modes of segments
    fixed: Fixed
    stage: Packed | None  # the rings of a pipeline's stage
    sources: Sources
    is_fed: bool  # whether items arrive by a feed, whose segment is the last input
    policy: Policy
    n_workers: int
    chunksize: int | None
    first: int = 0  # index of the first item, if this is a part of another call
    is_folded: bool = False  # whether items are blocks of the user's items


class Stage(NamedTuple):
    """The ring buffers before and after a stage."""

    source: "RingBuffer | None"  # None in the loader
    sink: "RingBuffer | None"  # None in the last stage


class Task(NamedTuple):
    """A function and its arguments, submitted to an executor."""

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
        """Approximate number of bytes to copy."""
        return nbytes_of((*self.args, *self.kwargs.values()))


def run_task(task: Task) -> Any:
    """Run a task in a worker."""
    return task.func(*task.args, **task.kwargs)


def run_chunk(func: Callable[..., Any], *items: tuple[Any, ...]) -> list[Any]:
    """Call a function for several items, for `Executor.map` with a chunksize."""
    return [kept_result(func(*args)) for args in items]


def nbytes_of(item: Any, depth: int = 3) -> int:
    """Estimate the memory of an item in bytes, which is mostly that of arrays and strings."""
    # Methods of the base classes are used, because this must not run users' code.
    if depth and isinstance(item, tuple | list):
        kind: Any = tuple if isinstance(item, tuple) else list
        some = kind.__getitem__(item, slice(N_WEIGHED))
        nbytes = 0
        for part in some:  # quicker than a generator
            nbytes += nbytes_of(part, depth - 1)
        n: int = kind.__len__(item)
        return nbytes * n // max(len(some), 1)
    if type(item) in (bytes, bytearray, str):
        return len(item)
    return int(_nbytes_of_array(item)) if isinstance(item, np.ndarray) else 64


_nbytes_of_array = np.ndarray.nbytes.__get__
