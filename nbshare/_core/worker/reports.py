"""`report` and `worker_index`, which a function calls inside a worker.

A report is written to the worker's row of the board, with the start time of its item. The report of
an earlier item has another time, so no report must be cleared when an item begins.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from nbshare._core.tracebacks import shown_from_the_call
from nbshare._core.wire import index_here
from nbshare._core.wire.board import (
    FRACTION,
    ITEM,
    MILLIONTHS,
    NO_ITEM,
    NOT_TOLD,
    REPORTED,
    SINCE,
    Board,
    write_text,
)
from nbshare._core.wire.failures import ItemStopped


@shown_from_the_call
def report(fraction: float, text: str = "") -> None:
    """Report the progress of a long item from inside the function.

    The progress display shows the report in its table of workers until the item is done. If the run
    was stopped, the item ends at this call. Outside of workers, such as in a plain loop or a test,
    `report` has no effect.

    Examples
    --------
    The fraction that is done, and a text:

    >>> import nbshare
    >>> def simulate(n_steps):
    ...     energy = 1.0
    ...     for step in range(n_steps):
    ...         nbshare.report(step / n_steps, f"step {step}")
    ...         energy *= 0.999
    ...     return energy
    >>> nbshare.parallel_map(simulate, [1000, 1000]).round(3)
    array([0.368, 0.368])

    An iteration whose length is unknown:

    >>> def root(x):
    ...     guess, error = x, x
    ...     while error > 1e-9:
    ...         guess, before = (guess + x / guess) / 2, guess
    ...         error = abs(guess - before)
    ...         nbshare.report(float("nan"), f"error {error:.1e}")
    ...     return guess
    >>> nbshare.parallel_map(root, [4.0, 9.0])
    SharedArray([2., 3.])

    Parameters
    ----------
    fraction : float
        Completed part, from 0 to 1, or NaN if unknown.
    text : str, optional
        The current step. About 60 characters are shown. Other objects are converted by `str`.

    Raises
    ------
    TypeError
        If `fraction` is not a number.

    See Also
    --------
    parallel_map

    Notes
    -----
    A call takes about a microsecond and makes no system call, so there may be many. They must come
    from the thread that runs the item. With ``backend="serial"`` the display is not updated while
    an item runs. In a nested call, the report belongs to an item of the nested call, which has no
    display.

    To end the item, `report` raises an exception that does not inherit from `Exception`.
    ``finally`` and ``with`` clean up as usual. The item counts as not done.
    """
    try:
        share = float(fraction)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"report() needs a fraction from 0 to 1, or NaN, not {fraction!r:.200}"
        ) from None
    reporter = _present.reporter
    if reporter is not None:
        reporter.write(share, text)


@shown_from_the_call
def worker_index() -> int | None:
    """Return the number of the worker that runs this code, or None outside of workers.

    Use it to give each worker one of several GPUs, licences, ports or sets of CPUs.

    Examples
    --------
    One GPU for each worker, chosen before a library looks for GPUs:

    >>> import os
    >>> import nbshare
    >>> def choose_gpu(n_gpus):
    ...     os.environ["CUDA_VISIBLE_DEVICES"] = str(nbshare.worker_index() % n_gpus)
    >>> def gpu_of(x):
    ...     return os.environ["CUDA_VISIBLE_DEVICES"]
    >>> names = nbshare.parallel_map(gpu_of, range(100), initializer=choose_gpu, initargs=[2])
    >>> set(names) <= {"0", "1"}
    True

    In this process there is no worker:

    >>> print(nbshare.worker_index())
    None

    Returns
    -------
    int or None
        The number, counted from 0. With one run at a time, numbers are below `max_workers`. Workers
        of simultaneous runs have different numbers, which may be larger, so use the remainder to
        choose one of a few devices, as in the example.

    See Also
    --------
    parallel_map

    Notes
    -----
    A worker process keeps its number from one run to the next, so resources that an initializer has
    opened for a number stay valid. Tasks of an `Executor` and stages of a `pipeline` run in the
    same workers. On a cluster the numbers are those of the workers of one machine.

    Threads of ``backend="threads"`` have numbers within their run. Their initializer runs once for
    all of them, as worker 0. With ``backend="serial"`` there is only worker 0. A nested call in a
    worker process runs in that process and has its number.

    Any thread of a worker process may call `worker_index`.
    """
    return index_here()


class Reporter:
    """Writes the reports of one worker's items to its row of the board.

    Parameters
    ----------
    board : Board
        The call's board.
    slot : int
        The worker's row.
    """

    def __init__(self, board: Board, slot: int) -> None:
        self._board, self._row = board, board.row(slot)
        self._before: list[Reporter | None] = []
        self._shown: Any = ""  # the last text

    def __enter__(self) -> None:
        """Report from items that run in this thread."""
        self._before.append(_present.reporter)
        _present.reporter = self

    def __exit__(self, *_: object) -> None:
        _present.reporter = self._before.pop()

    @property
    def item(self) -> int | None:
        """The index of the current item, or None."""
        item = self._row[ITEM]
        return None if item == NO_ITEM else item

    def write(self, share: float, text: Any) -> None:
        """Record the progress of the current item. Raise `ItemStopped` if the call was stopped."""
        if self._board.stopped:
            raise ItemStopped
        row = self._row
        if math.isnan(share):
            row[FRACTION] = NOT_TOLD
        else:
            row[FRACTION] = 1 + int(MILLIONTHS * min(max(share, 0.0), 1.0))
        if text is not self._shown or not isinstance(text, str):
            self._shown = text
            write_text(row, str(text))
        row[REPORTED] = row[SINCE]


class _Present(threading.local):
    """The reporter of the item that this thread is running."""

    reporter: Reporter | None = None


_present = _Present()
