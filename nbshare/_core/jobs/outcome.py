"""What a run returns: its results so far and at its end, and when they are enough."""

from __future__ import annotations

import _thread
import functools
import time
from typing import Any

import numpy as np

from nbshare._core.engine.collect import as_masked, masked, stack
from nbshare._core.engine.results import MISSING
from nbshare._core.engine.run import Run
from nbshare._core.functions.reference import label_of
from nbshare._core.messages import warn
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.wire.board import NUMPY, PYTHON
from nbshare.errors import UnseededWarning

_PAUSE_S = 0.01  # shortest time between two calls of ``until=``
_SHARE = 0.1  # largest share of the time for it

_told_of_chance: set[Any] = set()  # functions already warned about, by their code or name


def in_order(run: Run, results: Any) -> Any:
    """Return one result per item in the order of the results, which differs for a coarse grid."""
    items = run.request.items
    is_shaped = isinstance(items, ShapedItems) and results is not None
    return items.in_order(results) if is_shaped else results


def partial(run: Run) -> Any:
    """Return the results so far in the form that `Job.partial` describes."""
    found, items = run.partial(), _shape_of(run)
    return found if items is None or found is None else items.shaped_partly(items.in_order(found))


def final(run: Run, label: str) -> Any:
    """Return the results of a run that is done, which has this label."""
    items = _shape_of(run)
    if run.is_reduced:
        return run.final()
    if is_enough(run):
        return partial_or_gaps(run)
    results = _flat(run)
    return results if items is None else items.named(results, label)


def partial_or_gaps(run: Run) -> Any:
    """Return the results of a run that ended early."""
    found = partial(run)
    return [MISSING] * len(run.present()) if found is None and not run.is_reduced else found


def is_enough(run: Run) -> bool:
    """Return whether ``until=`` has ended a run before all items were done."""
    return run.is_enough and run.n_done != run.n_items


def _shape_of(run: Run) -> ShapedItems | None:
    """Return the items that shape the results. None without, or with ``out="list"``."""
    items, out = run.request.items, run.request.out
    is_list = isinstance(out, str) and out == "list"
    return items if isinstance(items, ShapedItems) and not is_list else None


def _flat(run: Run) -> Any:
    """Return one result for each item."""
    out, with_errors = run.request.out, run.request.policy.returns_errors
    if isinstance(out, np.ndarray):
        return masked(out, ~run.present()) if with_errors else out
    if run.n_items == 0:
        none: Any = np.empty(0) if out is None else []
        return as_masked(none) if with_errors else none
    results = run.final()
    if out != "stack":
        return results
    stacked = stack(results)
    is_tuple = with_errors and isinstance(stacked, tuple)
    return tuple(map(as_masked, stacked)) if is_tuple else stacked


def warn_of_chance(run: Run) -> None:
    """Warn, once per function, if it drew from global random numbers without a seed."""
    items, which = run.drew()
    if not which:
        return
    func = run.request.users
    name = label_of(func)
    while isinstance(func, functools.partial):
        func = func.func
    key = getattr(func, "__code__", name)  # many are called <lambda>
    if key in _told_of_chance:
        return
    _told_of_chance.add(key)
    python, numpy = "random.random() and the like", "np.random.normal() and the like"
    used = {NUMPY: numpy, PYTHON: python}.get(which, f"{python}, {numpy}")
    warn(
        f"{name} drew from global random numbers ({used}) for {items}, itself or in a library. "
        "Results that depend on these numbers cannot be repeated. Pass seed=1 to the call, and "
        "draw from the parameter rng: def f(x, rng): return rng.normal(). Pass random_state=0 "
        "to estimators of scikit-learn, because some estimators draw a number that they do not "
        "use.",
        UnseededWarning,
    )


class Until:
    """Calls the user's ``until=`` during a run, which ends if it returns true. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asking = _thread.allocate_lock()
        self._due_at, self._n_asked = 0.0, 0  # time of the next call, items at the last call

    def ask(self) -> None:
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
            found = (partial(run),) if request.reduce is None else run.folded()[::-1]
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
