"""What the windows of a stream have given, read as if one call had."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.create import empty
from nbshare.engine.collect import as_masked, collect, masked
from nbshare.engine.growing import GrowingArray
from nbshare.engine.request import Request
from nbshare.engine.single import SingleRun

__all__ = ["Gathered"]

MOST_ERRORS = 10_000


class Gathered:
    """The results of a stream's windows.

    Parameters
    ----------
    request : Request
        Of the stream.

    Attributes
    ----------
    windows : list of SingleRun
        Whose results are kept.
    n_given : int
        Results that somebody who iterates has taken.
    is_iterated : bool
        Whether somebody does: windows all of whose results are taken are not kept then.

    Notes
    -----
    One thread adds windows; others may read, one at a time may iterate.
    """

    def __init__(self, request: Request) -> None:
        self.windows: list[SingleRun] = []
        self.n_given = 0
        self.is_iterated = False
        self._request = request
        self._n_dropped = 0  # items of the windows that are not kept
        self._errors: dict[int, BaseException] = {}  # of those
        self._growing: GrowingArray | None = None
        self._reader_s = 0.0  # what whoever iterates took for one of the results of the last look
        self._reading: tuple[float, int] | None = None  # since when, and from which on, at a look

    @property
    def n_done(self) -> int:
        """Count the items that are done."""
        gone = self._n_dropped
        return gone + sum(window.n_done for window in list(self.windows))

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors of items that failed; of those that were given, the first `MOST_ERRORS`."""
        found = dict(self._errors)
        for window in list(self.windows):
            found |= self._errors_in(window)
        return found

    @staticmethod
    def _errors_in(window: SingleRun) -> dict[int, BaseException]:
        return {window.request.first + i: e for i, e in window.errors.items()}

    def present(self, n: int) -> npt.NDArray[np.bool_]:
        """Return which of the results of `n` items are there."""
        present = np.zeros(n, np.bool_)
        for window in list(self.windows):
            first = window.request.first
            present[first : first + window.n_tasks] = window.present()
        return present

    def partial(self) -> Any:
        """Return what is there so far; None if nothing is known yet."""
        windows = list(self.windows)
        if all(window.call.results.spec is None for window in windows):
            return None
        array = self._array(windows)
        if array is not None:
            return masked(array, ~np.concatenate([window.present() for window in windows]))
        return [v for window in windows for v in window.call.results.values(gaps=True)]

    def final(self, n: int) -> Any:
        """Return the results of all `n` items."""
        if self._n_dropped:
            raise RuntimeError(
                f"{self._n_dropped} results were given away by iterating, and not kept, "
                "since the items of a generator may never end. Keep them in the loop, or call "
                "result() without one."
            )
        windows, with_errors = list(self.windows), self._request.policy.returns_errors
        array = self._array(windows)
        if array is not None and (with_errors or not self.errors):
            return masked(array, ~self.present(n)) if with_errors else array
        parts = [window.call.results.values(with_errors=with_errors) for window in windows]
        values = list(itertools.chain.from_iterable(parts))
        results = values if self._request.out is not None else collect(values, self.errors)
        return as_masked(results) if with_errors else results

    def item(self, i: int) -> tuple[Any, ...]:
        """Return an item, if it is still there."""
        for window in list(self.windows):
            first, is_kept = window.request.first, bool(window.request.iterables)
            if is_kept and i in range(first, first + window.n_tasks):
                return window.item(i - first)
        raise LookupError(
            f"item {i} of a generator is not kept once its window is over. Make a list of the "
            "items that you want to debug, and map over that."
        )

    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results that have come since the last time, and let go of them."""
        self.is_iterated = True
        self._reading = time.monotonic(), self.n_given
        for window in list(self.windows):
            first = window.request.first
            for i in window.take_new():
                self.n_given += 1
                yield first + i, window.call.results.get(i)
            if window.is_all_given:
                if len(self._errors) < MOST_ERRORS:  # the source may never end
                    self._errors |= self._errors_in(window)
                self.windows.remove(window)
                self._n_dropped += window.n_tasks
        self._reader_s, self._reading = self.reader_s(), None

    def reader_s(self) -> float:
        """Return how long whoever iterates takes for a result; 0 if that is not known."""
        if (reading := self._reading) is None or self.n_given == reading[1]:
            return self._reader_s
        return (time.monotonic() - reading[0]) / (self.n_given - reading[1])

    def fill_out(self) -> None:
        """Copy what is there to the array that the caller gave."""
        for window in list(self.windows):
            window.fill_out()

    def rows(self, first: int, n: int) -> npt.NDArray[Any] | None:
        """Return where the arrays of a window go, None if that is not known or they are none."""
        if self.is_iterated or self._request.out is not None:
            return None
        if self._growing is None:
            found = (window.call.results.spec for window in self.windows)
            spec = next((spec for spec in found if spec is not None), None)
            if spec is None or spec.dtype is None or not spec.shape:
                return None
            self._growing = GrowingArray(spec)
        return self._growing.rows(first, first + n)

    def _array(self, windows: Sequence[SingleRun]) -> npt.NDArray[Any] | None:
        """Return the results of windows as one array; None if they do not fit one."""
        n = sum(window.n_tasks for window in windows)
        if isinstance(self._request.out, np.ndarray):
            self.fill_out()
            return self._request.out[:n]
        results = [window.call.results for window in windows]
        specs = {r.spec[:2] for r in results if r.spec is not None}
        dtype, shape = specs.pop() if specs else (None, ())
        if specs or dtype is None or any(r.spec and r.has_objects for r in results):
            return None
        if self._growing is not None and not self._n_dropped:
            array: npt.NDArray[Any] = self._growing.head(n)
        else:
            array = empty((n, *shape), dtype)
        start = 0
        for window, result in zip(windows, results, strict=True):
            stop = start + window.n_tasks
            rows = array[start:stop]
            if result.array is None:
                rows[...] = np.zeros((), rows.dtype)
            elif not np.shares_memory(rows, result.array):
                rows[...] = result.array
            start = stop
        return array
