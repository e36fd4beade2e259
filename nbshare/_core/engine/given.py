"""Records the results that a loop over a job has consumed, which are not kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from nbshare._core.store.pages import Page


class Given:
    """The results that a loop has consumed.

    Attributes
    ----------
    n : int
        Number of these results.
    is_iterated : bool
        Whether a loop consumes results. Pages of an open board are freed when all results of a page
        are consumed.

    Notes
    -----
    One thread at a time consumes results. Any thread may read.
    """

    def __init__(self) -> None:
        self.n = 0
        self.is_iterated = False
        self._by_page: dict[int, npt.NDArray[np.bool_]] = {}
        self._reader_s = 0.0  # the reader's time per result, at the last check
        self._reading: tuple[float, int] | None = None  # start time and first result of a check

    def of(self, page: Page) -> npt.NDArray[np.bool_]:
        """Return a flag per result of a page, True if it was consumed."""
        given = self._by_page.get(page.first)
        if given is None:  # in one step, because any thread may be the first
            given = self._by_page.setdefault(page.first, np.zeros(page.n, np.bool_))
        return given

    def add(self, page: Page, i: int) -> None:
        """Record that the result of an item was consumed."""
        self.of(page)[i - page.first] = True
        self.n += 1

    def has_all_of(self, page: Page) -> bool:
        """Return whether the results of all items of a page were consumed."""
        given = self._by_page.get(page.first)
        return given is not None and bool(given.all())

    def forget(self, page: Page) -> None:
        """Forget a page that was freed."""
        self._by_page.pop(page.first, None)

    @contextmanager
    def look(self) -> Iterator[None]:
        """Measure how long the reader takes for the results that it gets in this block."""
        self.is_iterated = True
        self._reading = time.monotonic(), self.n
        yield
        self._reader_s, self._reading = self.reader_s(), None

    def reader_s(self) -> float:
        """Return the reader's time per result, 0 if unknown."""
        if (reading := self._reading) is None or self.n == reading[1]:
            return self._reader_s
        return (time.monotonic() - reading[0]) / (self.n - reading[1])
