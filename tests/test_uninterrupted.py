"""An interrupt waits for the end of the steps that it must not come between."""

from __future__ import annotations

import signal
import threading

import pytest

from nbshare._core import interrupts
from nbshare._core.interrupts import uninterrupted
from tests.support.interrupts import each_interrupt


def interrupt():
    """Have the system send one."""
    signal.raise_signal(signal.SIGINT)


def raised_by(work):
    """Do something in the main thread. Return the interrupt that came out of it."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler
    return caught.value


def test_an_interrupt_is_raised_at_the_end_of_the_block():
    """All steps are done by then, also if blocks are in one another."""
    done = []

    def work():
        with uninterrupted():
            with uninterrupted():
                interrupt()
                done.append(1)
            done.append(2)
        done.append(3)

    raised_by(work)
    assert done == [1, 2]


def test_a_second_interrupt_is_not_held_back():
    """A block that hangs can be left."""
    done = []

    def work():
        with uninterrupted():
            interrupt()
            done.append(1)
            interrupt()
            done.append(2)

    raised_by(work)
    assert done == [1]


def test_an_error_of_the_block_is_not_lost():
    """It is the context of the interrupt."""

    def work():
        with uninterrupted():
            interrupt()
            raise OSError

    assert isinstance(raised_by(work).__context__, OSError)


def test_a_handler_of_the_users_is_called_once_and_stays():
    """Whether it raises or not."""
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append(len(done)))
    done = []
    try:
        mine = signal.getsignal(signal.SIGINT)
        with uninterrupted():
            interrupt()
            done.append(1)
        assert calls == [1]
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_the_system_does_by_itself_is_left_alone(action):
    """An ignored signal is not remembered."""
    before = signal.signal(signal.SIGINT, action)
    try:
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is action
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_nothing_to_do_and_hold_nothing_back():
    """No handler may be set there, and no interrupt arrives."""
    handlers = []

    def work():
        with uninterrupted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_an_interrupt_at_any_moment_comes_between_no_steps():
    """Nor does it change the handler for good."""
    begun, done = [], []

    def work():
        with uninterrupted():
            begun.append(1)
            len(begun)
            done.append(1)

    for _ in each_interrupt(work, {interrupts.__file__, __file__}):
        assert begun == done
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
