"""Calls ``until=`` during a run, and stops the run when its results are enough."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any

from nbshare._core.engine.run import Run

_PAUSE_S = 0.01  # shortest time between two calls
_SHARE = 0.1  # largest share of the time for the user's function


class Until:
    """Calls the user's ``until=`` during a run. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asking = _thread.allocate_lock()
        self._due_at, self._n_asked = 0.0, 0  # time of the next call, items at the last call

    def ask(self, partial: Callable[[], Any]) -> None:
        """Call ``until=`` if it is due, and stop the run if the partial results are enough."""
        run, request = self._run, self._run.request
        if request.until is None:
            return
        began, n_done = time.monotonic(), run.n_done
        if began < self._due_at or n_done == self._n_asked:
            return
        if run.is_over or not self._asking.acquire(blocking=False):
            return
        try:
            found = (partial(),) if request.reduce is None else run.folded()[::-1]
            if found[0] is not None:
                self._n_asked = n_done
                if request.until(*found):
                    run.is_enough = True
                    run.stop()
        except Exception as error:  # noqa: BLE001 - of the user's function
            run.stop(error)
        finally:
            self._asking.release()
            now = time.monotonic()
            self._due_at = now + max(_PAUSE_S, (now - began) / _SHARE)
