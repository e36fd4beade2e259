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
each call would have to be compared. Their other arguments are the same objects, none of which can
change, so that those of a lap need no look.
"""

from __future__ import annotations

import _thread
import math
import os
import pickle
import sys
import time
from collections.abc import Sequence
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import plain_pickle
from nbshare.arrays.shared_array import shared_view
from nbshare.arrays.tray import ROOM, Tray
from nbshare.engine.bell import Bell
from nbshare.engine.call import State
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.placing import PLAIN
from nbshare.engine.preparing import prepare, prepare_standing
from nbshare.engine.request import Request, has_rows
from nbshare.engine.single import SingleRun
from nbshare.functions import is_known_to_fit
from nbshare.functions.pickling import MAINS
from nbshare.memory import slab
from nbshare.worker.context import current_context
from nbshare.worker.orders import Policy
from nbshare.worker.output import ASK
from nbshare.worker.schedule import COMING, IN_LOG, KIND, SMALL_TASKS

__all__ = ["StandingCall", "encore", "standing_for"]

AGAIN_S = 0.5  # from the beginning of one map to that of the next; a first one starts workers
# A lap that ends so soon is waited for busily: to go to sleep and wake up takes 0.05 ms. Others are
# not, after the first, since workers may want all CPUs.
QUICK_S = 3e-4
_ITEMS = list, tuple, range, np.ndarray  # arrays that are not shared: workers get read-only rows
_IMMUTABLE = {bool, int, float, str, tuple, type(None)}
_PLAIN_POLICY = Policy()

# What maps have in common that can be laps of one call: their arguments but for the items, how many
# of those they take, and the number of items. All the same objects: then they need not be checked.
_Form = tuple[Any, ...]


class _Latest:
    """What the last map of this process was like."""

    form: _Form | None = None
    begun_at = -math.inf  # on the monotonic clock
    unfit: _Form | None = None  # with items or results that do not lie in a call's own memory
    call: StandingCall | None = None  # that stays for maps like it


def standing_for(asked: tuple[Any, ...], iterables: Sequence[Any]) -> StandingCall | None:
    """Return the call that stays, if it is for a map that asks for this.

    Parameters
    ----------
    asked : tuple
        The arguments of the map, but for the items; nothing need have been checked.
    iterables : sequence
        The items.
    """
    standing, now = _Latest.call, time.monotonic()
    is_it = standing is not None and standing.is_for(asked, iterables)
    return standing if is_it and now < _Latest.begun_at + AGAIN_S else None


def encore(request: Request, asked: tuple[Any, ...], engine: Dispatcher) -> SingleRun | None:
    """Return the run of a small map that is like the one before it, for which no call stays yet.

    None if it is not like it.

    Raises
    ------
    UnsendableError
        If the function or an item cannot be pickled.
    """
    form = (*asked, len(request.iterables), request.n_tasks)
    now, is_simple = time.monotonic(), _is_simple(form, request)
    comes_soon, is_again = now < _Latest.begun_at + AGAIN_S, _is_like(form, _Latest.form)
    _Latest.begun_at, _Latest.form = now, form if is_simple else None
    if not (is_simple and is_again and comes_soon) or _is_like(form, _Latest.unfit):
        return None
    if (pickles := _pickles(request.iterables)) is None:
        _Latest.unfit = form
        return None
    return _Lap(StandingCall(form, request, pickles, engine), request, pickles)


def _is_like(form: _Form, other: _Form | None) -> bool:
    return other is not None and all(map(is_, form, other))


def _is_simple(form: _Form, request: Request) -> bool:
    """Whether a map can be a lap."""
    return (
        0 < request.n_tasks < SMALL_TASKS
        and _IMMUTABLE.issuperset(map(type, form[1:]))  # else the same may mean something else
        and request.initializer is None
        and request.policy == _PLAIN_POLICY
        and all(type(column) in _ITEMS for column in request.iterables)
        and request.func is form[0]  # not named as a text
        and _is_known(request.func)
    )


def _is_known(func: Any) -> bool:
    """Whether workers know a function by its name; others go by value, with a state."""
    if type(func) not in (FunctionType, BuiltinFunctionType):
        return False
    module, name = func.__module__, func.__name__
    if func.__qualname__ != name or module in MAINS:
        return False
    return getattr(sys.modules.get(module), name, None) is func


def _pickles(columns: Sequence[Any]) -> list[Any] | None:
    """Return the pickles of all items; None if they are large or refer to shared memory.

    One for each column, if nobody can tell; else of each item alone: what items had in common they
    would have in common in a worker, too.
    """
    if all(map(_is_immutable, columns)):
        pickles = [_dumps(column) for column in columns]
    else:
        places = range(len(columns[0]))
        pickles = [_pickle(column[i : i + 1], i) for i in places for column in columns]
    are_small = None not in pickles and sum(map(len, pickles)) <= ROOM
    return pickles if are_small else None


def _is_immutable(column: Any) -> bool:
    if isinstance(column, np.ndarray | range):
        return True
    kinds = set(map(type, column))
    if kinds == {tuple}:
        kinds = set(map(type, chain.from_iterable(column)))
    return kinds <= PLAIN


def _pickle(items: Any, first: int) -> Any:
    return _dumps(items) if _is_immutable(items) else plain_pickle(items, "item", first)


def _dumps(items: Any) -> Any:
    is_large = isinstance(items, np.ndarray) and items.nbytes > ROOM
    return None if is_large else pickle.dumps(items, 5)


def _has_rows(column: Any, n: int) -> bool:
    """Whether a column of items is taken as it is, and has so many."""
    # A range may be longer than `len` can say.
    return type(column) in _ITEMS and has_rows(column) and len(column[: n + 1]) == n


class StandingCall:
    """A call that stays for maps of one form."""

    def __init__(
        self, form: _Form, request: Request, pickles: Sequence[Any], engine: Dispatcher
    ) -> None:
        self.form, self.engine = form, engine
        self.bell = Bell()  # that workers ring when they have loaded the function, and all is done
        n_columns = len(request.iterables)
        self._tray = Tray(request.n_tasks, n_columns, len(pickles) // n_columns)
        self._n_pickles = len(pickles)
        self._tray.fill(pickles)
        self.has_begun = False
        self.is_quick = True  # the last lap was: it is not worth going to sleep until it ends
        self.call = prepare_standing(request, self._tray)
        self.call.bell_fd, self.call.tell = self.bell.fd, self._note_end
        self._in_use = _thread.allocate_lock()  # by a lap
        self._in_use.acquire()

    def is_for(self, asked: tuple[Any, ...], iterables: Sequence[Any]) -> bool:
        """Whether a map is like those that it stays for."""
        func, n_tasks = self.call.request.func, self.form[-1]
        return (
            _is_like((*asked, len(iterables), n_tasks), self.form)
            and all(_has_rows(column, n_tasks) for column in iterables)
            and _is_known(func)
            and is_known_to_fit(func, len(iterables))
            and not _is_like(self.form, _Latest.unfit)
            and not self.engine.is_closed
        )

    def next_lap(self, iterables: Sequence[Any]) -> _Lap | None:
        """Return the next lap, which has to `leave` then; for any thread.

        None if workers would not do what those of a call of its own would, or another one is on.

        Raises
        ------
        UnsendableError
            If an item cannot be pickled.
        """
        call, lap, now = self.call, None, time.monotonic()
        if not self._in_use.acquire(blocking=False):
            return None
        try:
            call.announce()  # first: a worker wakes up and gets ready meanwhile
            iterables = [column[:] for column in iterables]  # the caller's own may change
            pickles = _pickles(iterables)
            if pickles is None:
                _Latest.unfit = self.form
            elif len(pickles) == self._n_pickles and self._is_current():
                lap = _Lap(self, call.request._replace(iterables=iterables), pickles)
                _Latest.begun_at = now
        finally:
            if lap is None:
                self.leave()
        return lap

    def begins(self, lap: _Lap, request: Request, pickles: Sequence[Any]) -> bool:
        """Begin a lap, if the call still stays."""
        call = self.call

        def fill() -> None:
            request.prints.begin_anew()
            self._tray.fill(pickles)
            call.renew(request)
            lap.has_begun = True

        try:
            return self.engine.begin_anew(call, fill)
        except BaseException:  # an interrupt: nobody would wait for what may have begun
            self.engine.stop(call)
            raise

    def _is_current(self) -> bool:
        """Whether workers run what those of a new call would, and tell it in the same place."""
        request = self.call.request
        is_it = request.context == current_context() and request.prints.is_here
        return is_it and self.engine.is_current(self.call)

    def leave(self) -> None:
        """Let another lap begin."""
        self.call.board.header[COMING] = 0
        self._in_use.release()

    def _note_end(self) -> None:
        if _Latest.call is self:
            _Latest.call = None
        self.bell.ring()


class _Lap(SingleRun):
    """A map as its job sees it."""

    def __init__(self, standing: StandingCall, request: Request, pickles: Sequence[Any]) -> None:
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
            request = request._replace(prints=request.prints.anew())
            standing = StandingCall(standing.form, request, pickles, standing.engine)
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
        standing, now = self._standing, time.monotonic()
        quick_until, until_s = now + QUICK_S, now + timeout_s
        while not self._has_ended():
            now = time.monotonic()
            if now >= until_s:
                return False
            if standing.is_quick and now < quick_until:
                os.sched_yield()  # to a worker, if there is no other CPU for it
            else:
                standing.bell.wait(until_s - now)
        standing.is_quick = time.monotonic() < quick_until
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

    def final(self) -> Any:
        found = super().final()
        is_made = self.call.board.header[KIND] == ASK  # an array, for this map
        return _copy_of(found) if found is self.call.results.array and not is_made else found

    def let_go(self) -> None:
        if self.call.board.header[KIND] == ASK:
            _Latest.unfit = self._standing.form
            self._standing.engine.complete(self.call)
        self.forget_items()
        self._standing.leave()


def _copy_of(array: Any) -> npt.NDArray[Any]:
    """Return a copy in shared memory: the next lap's results take the place of the original."""
    segment, offset = slab.take(array.nbytes)
    copy = np.frombuffer(segment, array.dtype, len(array), offset)
    copy[:] = array.view(np.ndarray)
    return shared_view(copy)
