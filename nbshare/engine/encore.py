"""Small maps that are called again and again: one call serves them all, lap by lap.

::

    parallel_map(f, a)   a call as any other
    parallel_map(f, b)   a call that stays: workers that are done wait for other items
    parallel_map(f, c)   its next lap:  items ─► tray, gong ──► workers: results, bell ──► c
    …
    another map, or none for a while: the call is over, and its workers are free

An ordinary call takes most of a millisecond to begin and to end. A lap needs no message and nothing
of the dispatcher, unless something goes wrong: then the call has failed, was stopped or has lost a
worker, as any other.

Laps of one call are maps that are alike in all but their items, and only where nobody can tell the
difference: workers know the function by its name, and nothing is shared, since what is copied at
each call would have to be compared.
"""

from __future__ import annotations

import _thread
import math
import pickle
import sys
import time
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import plain_pickle
from nbshare.arrays.shared_array import shared_view
from nbshare.arrays.tray import ROOM, Tray
from nbshare.engine.bell import Bell
from nbshare.engine.call import State, prepare, prepare_standing
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.placing import PLAIN
from nbshare.engine.request import Request
from nbshare.engine.single import SingleRun
from nbshare.memory import slab
from nbshare.worker.output import ASK
from nbshare.worker.schedule import IMPORTED, IN_LOG, KIND, SMALL_TASKS
from nbshare.worker.work import Policy

__all__ = ["encore"]

AGAIN_S = 0.5  # from the beginning of one map to that of the next; a first one starts workers
_ITEMS = list, tuple, range, np.ndarray  # arrays that are not shared: workers get read-only rows
_PLAIN_POLICY = Policy()

_Form = tuple[Any, ...]  # what maps have in common that can be laps of one call


class _Latest:
    """What the last map of this process was like."""

    form: _Form | None = None
    begun_at = -math.inf  # on the monotonic clock
    unfit: _Form | None = None  # with items or results that do not lie in a call's own memory
    call: _StandingCall | None = None  # that stays for maps like it


def encore(request: Request, engine: Dispatcher) -> SingleRun | None:
    """Return the run of a small map that is like the one before it; None if it is not.

    Raises
    ------
    UnsendableError
        If the function or an item cannot be pickled.
    """
    form, now = _form_of(request), time.monotonic()
    comes_soon, _Latest.begun_at = now < _Latest.begun_at + AGAIN_S, now
    is_again, _Latest.form = form == _Latest.form, form
    if form is None or not is_again or not comes_soon or form == _Latest.unfit:
        return None
    if (pickles := _pickles(request)) is None:
        _Latest.unfit = form
        return None
    standing = _Latest.call
    if standing is None or not standing.is_free_for(form, engine):
        standing = _StandingCall(form, request, pickles, engine)
    return _Lap(standing, request, pickles)


def _form_of(request: Request) -> _Form | None:
    """Return what a map has in common with those that can be laps of one call with it."""
    func, out = request.func, request.out
    is_simple = (
        0 < request.n_tasks < SMALL_TASKS
        and not request.shared
        and request.initializer is None
        and request.policy == _PLAIN_POLICY
        and not isinstance(out, np.ndarray)
        and all(type(column) in _ITEMS for column in request.iterables)
    )
    if not is_simple or type(func) not in (FunctionType, BuiltinFunctionType):
        return None
    module = func.__module__  # of the notebook, or without a name, it goes by value, with a state
    is_known = func.__qualname__ == func.__name__ and module != "__main__"
    if not is_known or getattr(sys.modules.get(module), func.__name__, None) is not func:
        return None
    n_columns = len(request.iterables)
    return func, request.n_tasks, n_columns, request.max_workers, request.chunksize, out


def _pickles(request: Request) -> list[Any] | None:
    """Return the pickles of all items; None if they are large or refer to shared memory."""
    pickles = [_pickle(column) for column in request.iterables]
    are_small = None not in pickles and sum(map(len, pickles)) <= ROOM
    return pickles if are_small else None


def _pickle(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return pickle.dumps(column, 5) if column.nbytes <= ROOM else None
    items = list(column)
    is_plain = PLAIN.issuperset(map(type, items))
    return pickle.dumps(items, 5) if is_plain else plain_pickle(items, "item", 0)


class _StandingCall:
    """A call that stays for maps of one form."""

    def __init__(
        self, form: _Form, request: Request, pickles: Sequence[Any], engine: Dispatcher
    ) -> None:
        self.form, self.engine = form, engine
        self.bell = Bell()  # that workers ring when they have loaded the function or done a chunk
        self._tray = Tray(request.n_tasks, len(pickles))
        self._tray.fill(pickles)
        self.has_begun = False
        self.call = prepare_standing(request, self._tray)
        self.call.bell_fd, self.call.tell = self.bell.fd, self._note_end
        self._in_use = _thread.allocate_lock()  # by a lap
        self._in_use.acquire()

    def is_free_for(self, form: _Form, engine: Dispatcher) -> bool:
        """Whether it can be tried to begin a lap, which has to `leave` then."""
        is_it = engine is self.engine and form == self.form
        return is_it and self._in_use.acquire(blocking=False)

    def begins(self, lap: _Lap, request: Request, pickles: Sequence[Any]) -> bool:
        """Begin a lap, if workers do what those of a call of its own would."""
        call, prints = self.call, self.call.request.prints

        def fill() -> None:
            prints.is_attended = True
            self._tray.fill(pickles)
            call.renew(request._replace(prints=prints))
            lap.has_begun = True

        try:
            return (
                request.context == call.request.context
                and request.prints.appears_with(prints)
                and self._is_current()
                and self.engine.begin_anew(call, fill)
            )
        except BaseException:  # an interrupt: nobody would wait for what may have begun
            self.engine.stop(call)
            raise

    def _is_current(self) -> bool:
        """Whether workers run what those of a new call would."""
        header = self.call.board.header
        if header[IMPORTED]:
            header[IMPORTED] = 0  # first: what they import from now on is for the next look
            return self.engine.is_current(self.call)
        return self.engine.is_still_current(self.call)

    def leave(self) -> None:
        """Let another lap begin."""
        self._in_use.release()

    def _note_end(self) -> None:
        if _Latest.call is self:
            _Latest.call = None
        self.bell.ring()


class _Lap(SingleRun):
    """A map as its job sees it."""

    def __init__(self, standing: _StandingCall, request: Request, pickles: Sequence[Any]) -> None:
        super().__init__(standing.call, standing.engine)
        self._standing = standing
        self._asked = request, pickles
        self.has_begun = self._is_done = False

    @property
    def state(self) -> State:
        return "done" if self._is_done else super().state

    @property
    def is_over(self) -> bool:
        return self._is_done or super().is_over

    def start(self) -> None:
        standing, (request, pickles) = self._standing, self._asked
        if standing.has_begun and standing.begins(self, request, pickles):
            return
        if standing.has_begun:
            standing = _StandingCall(standing.form, request, pickles, standing.engine)
            self._belong_to(standing.call)
            self._standing = standing
        _Latest.call = standing
        standing.has_begun = self.has_begun = True
        super().start()

    def stop(self) -> None:
        if not self.has_begun:  # on the call are the results of another lap
            request, _ = self._asked
            self._belong_to(prepare(request, self._standing.engine.warm_up))
        super().stop()

    def wait(self, timeout_s: float) -> bool:
        if not self.has_begun:  # it was interrupted
            return super().wait(timeout_s)
        until_s = time.monotonic() + timeout_s
        while not self._has_ended():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._standing.bell.wait(left_s)
        return True

    def _has_ended(self) -> bool:
        entrance = self.call.entrance
        # Of a call that is about to end, the end is that of the lap: then its workers are free.
        is_staying = entrance is not None and entrance.is_open and not self._board.stopped
        if is_staying and not self._is_done and self._are_all_done():
            self._standing.engine.hear_prints(self.call, are_all=True)
            self._is_done = True
        return self.is_over

    def _are_all_done(self) -> bool:
        """Whether all results are there, and all else that workers tell of them."""
        board = self._board
        if not board.is_at_rest:
            return False
        if IN_LOG in board.done.tobytes() and board.index[board.done == IN_LOG, 0].any():
            # Their logs come with messages, which the end of the call waits for.
            self._standing.engine.complete(self.call)
            return False
        return True

    def final(self, *, with_errors: bool) -> Any:
        results = self.call.results
        found = super().final(with_errors=with_errors)
        if self.call.board.header[KIND] == ASK:  # an array that was made for this map
            _Latest.unfit = self._standing.form
            self._standing.engine.complete(self.call)
        elif results.array is not None and found is results.array:
            found = _copy_of(results.array)
        self.forget_items()
        self._standing.leave()
        return found


def _copy_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in shared memory: the next lap's results take the place of the original."""
    segment, offset = slab.take(array.nbytes)
    copy = np.frombuffer(segment, array.dtype, len(array), offset)
    copy[:] = array.view(np.ndarray)
    return shared_view(copy)
