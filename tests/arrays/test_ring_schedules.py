"""Every schedule of a ring buffer's transitions: no deadlock, nothing lost, in any death.

Small worlds of producers, consumers and one that closes or aborts are walked through all their
interleavings. The transitions are the real ones, on real memory that is put back to each state. The
model is of their surroundings: to sleep until a change, to wake all, to die. There are no time-outs
as long as nobody dies, so that no schedule gets along by them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from nbshare._core.arrays.ring_slots import FILLING, SlotStates, layout_of
from nbshare.errors import RingAbortedError, RingClosedError

ENDS = ("done", "closed", "aborted", "interrupted", "dead")


class Actor(NamedTuple):
    """The next action of a process, apart from what is in shared memory."""

    role: str  # "put", "get", "close", "close early" or "abort"
    left: int = 0  # slots to put
    phase: str = "ask"  # doze, asleep, use, wake, quit, or as in ENDS
    slot: int | None = None
    seen: int = 0
    log: tuple[int, ...] = ()  # what a consumer has read
    number: int | None = None  # of what it fills its slot with

    @property
    def has_ended(self) -> bool:
        """Whether it takes no step any more."""
        return self.phase in ENDS


class Hand:
    """A holder of a slot during a transition."""

    def __init__(self, index: int | None, number: int | None = None) -> None:
        self.index, self.number = index, number


class Killed(Exception):
    """The process dies here."""


class Mortal:
    """An array of which only so many stores are still to come."""

    def __init__(self, target: Any, life: list[int]) -> None:
        self._target, self._life = target, life

    def __getitem__(self, key: Any) -> Any:
        return self._target[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self._life[0]:
            raise Killed
        self._life[0] -= 1
        self._target[key] = value

    def __len__(self) -> int:
        return len(self._target)


class World:
    """Processes around a ring, in all states that they can come to.

    Parameters
    ----------
    slots : int
        Slots of the ring.
    puts : list of int
        The number of slots that each producer fills.
    gets : int
        Consumers, each of which reads to the end.
    others : tuple of str
        "close", once all producers have ended. "close early" and "abort", at any time.
    deaths, interrupts : int
        How many may die, at any store or between, and how many sleepers be interrupted.
    in_order : bool
        Whether a process with a slot to fill gets the next number, which consumers see in order.
    """

    def __init__(
        self, slots, puts, gets, others=("close",), *, deaths=0, interrupts=0, in_order=False
    ):
        layout = layout_of(slots, (1,), np.dtype(int))
        self.memory = np.zeros(8 * (sum(np.prod(s) for s, _ in layout.values())), "u1")
        self.arrays, end = {}, 0
        for name, (shape, dtype) in layout.items():
            array = np.ndarray(shape, dtype, self.memory, end)
            self.arrays[name], end = array, end + array.nbytes
        self.used = self.memory[: end - self.arrays["reason"].nbytes]  # that is written last
        self.data = self.arrays["data"].view(int)[:, 0]
        self.in_order = in_order
        self.states = SlotStates(self.arrays, (1,), np.dtype(int), in_order=in_order)
        actors = [*(Actor("put", n) for n in puts), *(Actor("get") for _ in range(gets))]
        actors += [Actor(role) for role in others]
        self.start = (self.used.tobytes(), tuple(actors), deaths, interrupts)

    def explore(self):
        """Return how many states there are, from each of which all come to a good end."""
        before, todo, ends = {self.start: []}, [self.start], []
        while todo:
            state = todo.pop()
            readers = {actor.phase for actor in state[1] if actor.role == "get"}
            if readers == {"dead"}:  # the others wait for a new one, as they should
                ends.append(state)
            elif all(actor.has_ended for actor in state[1]):
                self.check_end(*state)
                ends.append(state)
            for each in self.steps(*state):
                if each not in before:
                    before[each] = []
                    todo.append(each)
                before[each].append(state)
        can_end = set(ends)
        while ends:
            fresh = set(before[ends.pop()]) - can_end
            can_end |= fresh
            ends += fresh
        stuck = before.keys() - can_end
        assert not stuck, min(stuck, key=len)
        return len(before)

    def steps(self, memory, actors, deaths, interrupts):
        """Yield all states that can follow."""
        for me, actor in enumerate(actors):
            if actor.has_ended:
                continue
            for changed in self.moves(memory, actors, me):
                yield self.used.tobytes(), changed, deaths, interrupts
            if interrupts and actor.phase == "asleep":
                changed = actor._replace(phase="quit")
                yield memory, replaced(actors, me, changed), deaths, interrupts - 1
            if deaths and actor.role in ("put", "get"):
                for torn in self.ways_to_die(memory, actors, me):
                    yield torn, replaced(actors, me, actor._replace(phase="dead")), deaths - 1, 0

    def ways_to_die(self, memory, actors, me):
        """Yield what memory an actor may leave, before its next step, and after each store."""
        yield memory
        if actors[me].phase not in ("ask", "use"):
            return
        names = ("words", "rows", "changes", "counts", "holders")
        whole = {name: getattr(self.states, name) for name in names}
        for n in range(1, 99):
            life = [n]
            vars(self.states).update({name: Mortal(whole[name], life) for name in names})
            try:
                for _ in self.moves(memory, actors, me):
                    return
            except Killed:
                yield self.used.tobytes()
            finally:
                vars(self.states).update(whole)

    def moves(self, memory, actors, me):
        """Yield the actors after each thing that one of them can do next, with memory changed."""
        actor = actors[me]
        self.used[:] = np.frombuffer(memory, "u1")
        if actor.phase in ("wake", "quit"):
            yield woken(replaced(actors, me, after_wake(actor)))
        elif actor.phase == "doze":
            phase = "asleep" if self.states.changes[0] == actor.seen else "ask"
            yield replaced(actors, me, actor._replace(phase=phase))
        elif actor.phase == "asleep":
            if any(each.phase == "dead" for each in actors):
                yield replaced(actors, me, self.look(actors, actor._replace(phase="ask")))
        elif actor.phase == "use":
            yield replaced(actors, me, self.use(me, actor))
        elif actor.role in ("put", "get"):
            yield replaced(actors, me, self.ask(actors, me, actor))
        elif actor.role == "abort":
            self.states.abort("")
            yield replaced(actors, me, actor._replace(phase="wake"))
        elif actor.role == "close early" or all(
            each.has_ended for each in actors if each.role == "put"
        ):
            self.states.close()
            yield replaced(actors, me, actor._replace(phase="wake"))

    def ask(self, actors, me, actor):
        """Look for a slot, once."""
        if actor.role == "put" and not actor.left:
            return actor._replace(phase="done")
        hand = Hand(None)
        attempt = self.states.reserve if actor.role == "put" else self.states.take
        try:
            if attempt(hand, (me + 1, 1)):
                number = 1 + max(-1 if a.number is None else a.number for a in actors)
                number = number if self.in_order and actor.role == "put" else None
                return actor._replace(phase="use", slot=hand.index, number=number)
        except RingAbortedError:
            return actor._replace(phase="aborted")
        except RingClosedError:
            looked = self.look(actors, actor)
            return looked if looked.phase == "wake" else actor._replace(phase="closed")
        return actor._replace(phase="doze", seen=self.states.changes[0])

    def look(self, actors, actor):
        """Take back what the dead hold, as a sleeper does when its time is up."""
        dead = [i for i, (pid, _) in self.states.held() if actors[pid - 1].phase == "dead"]
        for index in dead:
            self.states.reclaim(index)
        return actor._replace(phase="wake") if dead else actor

    def use(self, me, actor):
        """Fill a slot and queue it, or read it and give it back."""
        hand = Hand(actor.slot, actor.number)
        if actor.role == "get":
            log = (*actor.log, int(self.data[actor.slot]))
            self.states.release(hand)
            return actor._replace(phase="wake", slot=None, log=log)
        self.data[actor.slot] = 100 * me + actor.left if actor.number is None else actor.number
        try:
            self.states.commit(hand)
        except RingAbortedError:
            return actor._replace(phase="aborted", slot=None)
        return actor._replace(phase="wake", slot=None, left=actor.left - 1)

    def check_end(self, memory, actors, deaths, interrupts):
        """Check what has become of what was put."""
        self.used[:] = np.frombuffer(memory, "u1")
        self.check_order(actors)
        now = self.states.stats()
        phases = {actor.phase for actor in actors}
        read = sorted(item for actor in actors for item in actor.log)
        put = sorted(
            100 * me + left
            for me, (actor, first) in enumerate(zip(actors, self.start[1], strict=True))
            for left in range(actor.left + 1, first.left + 1)
        )
        if self.in_order:  # in worlds with deaths each puts one
            is_put = [a.number for a in actors if a.role == "put" and not a.left]
            put = is_put if "dead" in phases else [*range(len(put))]
        if not phases & {"dead", "aborted"}:
            assert now.filling == now.reading == 0
            assert now.n_put == len(put) == len(read) + now.queued
        if {actor.phase for actor in actors if actor.role == "get"} & {"closed"}:
            still = {
                int(self.data[i]) for i, w in enumerate(self.states.words) if w >> 56 < FILLING
            }
            assert set(read) | still >= set(put)
            if "dead" not in phases:
                assert read == put

    def check_order(self, actors):
        """Each consumer sees what one producer put in its order, or the only one without deaths."""
        if any(actor.phase == "dead" for actor in actors):
            return
        for actor in actors:
            if self.in_order:
                assert actor.log == tuple(sorted(actor.log))
                continue
            for me in range(len(actors)):
                items = [item for item in actor.log if item // 100 == me]
                assert items == sorted(items, reverse=True)


def replaced(actors, me, changed):
    return (*actors[:me], changed, *actors[me + 1 :])


def after_wake(actor):
    """Go on after waking the others."""
    phase = "interrupted" if actor.phase == "quit" else "ask"
    return actor._replace(phase=phase if actor.role in ("put", "get") else "done")


def woken(actors):
    """Return the actors when all sleepers have been woken."""
    return tuple(a._replace(phase="ask") if a.phase == "asleep" else a for a in actors)


WORLDS = {
    "one to one": World(1, [3], 1),
    "one to one, two slots": World(2, [4], 1),
    "two to one": World(1, [2, 1], 1),
    "one to two": World(2, [2], 2),
    "two to two, one slot": World(1, [1, 1], 2),
    "two to two, two slots": World(2, [1, 1], 2),
    "nothing comes": World(2, [], 2),
    "nobody reads, aborted": World(1, [2, 2], 0, ("abort",)),
    "nobody fills, aborted": World(1, [], 2, ("abort",)),
    "closed at any time": World(1, [1], 2, ("close early",)),
    "closed at any time, one dies": World(1, [1], 2, ("close early",), deaths=1),
    "aborted at any time": World(1, [2], 2, ("close", "abort")),
    "one dies": World(1, [2], 1, deaths=1),
    "one of many dies": World(1, [1, 1], 2, deaths=1),
    "one dies, two fill": World(1, [1, 1], 1, deaths=1),
    "one dies, two read": World(1, [1], 2, deaths=1),
    "two die": World(2, [1], 2, deaths=2),
    "in order, one slot": World(1, [1, 1], 2, in_order=True),
    "in order, two to one": World(2, [2, 1], 1, in_order=True),
    "in order, two to two": World(2, [1, 1], 2, in_order=True),
    "in order, one dies": World(1, [1, 1], 1, deaths=1, in_order=True),
    "an interrupt": World(1, [1], 2, interrupts=1),
    "an interrupt of one of many": World(1, [1, 1], 2, interrupts=1),
}


LARGEST = "one of many dies"  # has as many states as all others, and is for the soak


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, id=name, marks=[pytest.mark.soak] if name == LARGEST else [])
        for name, world in WORLDS.items()
    ],
)
def test_every_schedule_comes_to_its_end(world):
    """All end, in each order of steps. Each slot is read once, or again after a death."""
    assert world.explore() > 20


def notes_nothing(states):
    """Wake processes that sleep already, but not those about to."""


def grants_first(states, turn, index, me, word):
    """Write the holder of a slot too late."""
    states.words[index] = word
    states.holders[index] = me
    turn.index = index


@pytest.mark.parametrize(
    ("name", "wrong", "world"),
    [
        ("_note_change", notes_nothing, "one to one"),
        ("_grant", grants_first, "one dies"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_the_walk_finds_what_is_wrong(monkeypatch, name, wrong, world):
    """Transitions that wake too few, or write in another order, do not pass."""
    monkeypatch.setattr(SlotStates, name, wrong)
    with pytest.raises(AssertionError):
        WORLDS[world].explore()
