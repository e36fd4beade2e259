"""What each call finds in a worker, whatever items have done: what its caller and initializer set.

What an initializer has changed of it stays, since it is not run again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` makes of it takes 0.5 µs a signal
import faulthandler
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nbshare.functions.files import register_files
from nbshare.functions.imports import import_as_the_caller
from nbshare.wire import context
from nbshare.wire.context import limit_threads, thread_variables
from nbshare.worker import streams

__all__ = ["Belongings", "changes_stay", "show_crashes"]

_SIGNALS = sorted(map(int, signal.valid_signals()))
_NAMES = "ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"
_TIMERS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]  # Windows has none

_mine: Belongings | None = None  # none outside of workers


class Belongings:
    """What this worker was born with; there is one."""

    def __init__(self) -> None:
        global _mine
        _mine = self
        self._environ = dict(os.environ)
        self._restored: Any = None  # the environment as it was last set, encoded
        self._n_threads = 0
        self._settings: tuple[bytes, Any] = b"", {}  # the caller's, pickled, and what they mean
        self._kept: dict[str, Any] = {}  # what has been set here, and stays whatever the caller has
        self._note_signals()

    def restore(self, settings: bytes, n_threads: int) -> None:
        """Before a call: set the environment right, threads of libraries, and what the caller has.

        `settings`: see `nbshare.wire.context`.
        """
        # Encoded it is compared in 3 µs, else in 100.
        if n_threads != self._n_threads or context.encoded_environ() != self._restored:
            os.environ.clear()
            os.environ.update({**thread_variables(n_threads), **self._environ})
            self._restored, self._n_threads = context.encoded_environ(), n_threads
        limit_threads(n_threads)
        if settings != self._settings[0]:
            self._settings = settings, pickle.loads(settings)
            self._apply()
        self._enter()

    def restore_after(self) -> None:
        """After a call: set right what could end an idle worker, and all that takes its time."""
        for timer in self._unused_timers:
            signal.setitimer(timer, 0)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        if self._handlers != [_signal.getsignal(number) for number in _SIGNALS]:
            for number, handler in zip(_SIGNALS, self._handlers, strict=True):
                if handler is not None and handler != _signal.getsignal(number):
                    signal.signal(number, handler)
            faulthandler.disable()
            show_crashes()
        streams.restore()
        try:
            self._apply()
            self._enter()
        except Exception:  # noqa: BLE001 - items may have changed them to anything
            self._settings = b"", {}  # the next call will tell

    def _apply(self) -> None:
        values = {**self._settings[1], **self._kept}
        if sys.path != values["path"]:
            sys.path = list(values["path"])
        import_as_the_caller(values["overridden"])
        register_files(values["files"])
        if values["authkey"]:
            import multiprocessing.process  # late: few callers have managers

            multiprocessing.process.current_process().authkey = values["authkey"]
        os.umask(values["umask"])
        if warnings.filters != values["warnings"]:
            warnings.filters[:] = values["warnings"]  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        if values["affinity"] is not None:
            with suppress(OSError):  # the cpuset was changed in between
                os.sched_setaffinity(0, values["affinity"])

    def _enter(self) -> None:
        """Stand where the caller does: always, as a new directory may have the old one's name."""
        cwd = self._kept.get("cwd", self._settings[1]["cwd"])
        if cwd is not None:
            with suppress(OSError):  # removed under the caller, who would not notice either
                os.chdir(cwd)

    @contextmanager
    def keep_changes(self) -> Iterator[None]:
        """Let what changes meanwhile stay, but for what is changed again later."""
        environ, settings = dict(os.environ), context.settings()
        yield
        for name in environ.keys() | os.environ.keys():
            if environ.get(name) != os.environ.get(name):
                self._environ.pop(name, None)
                if name in os.environ:
                    self._environ[name] = os.environ[name]
        now = context.settings()
        self._kept |= {name: now[name] for name in now if now[name] != settings[name]}
        self._note_signals()
        streams.keep()

    def _note_signals(self) -> None:
        self._handlers = [_signal.getsignal(number) for number in _SIGNALS]
        self._blocked = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._unused_timers = [timer for timer in _TIMERS if not any(signal.getitimer(timer))]


@contextmanager
def changes_stay() -> Iterator[None]:
    """Let what an initializer changes in its process stay, in a worker as anywhere else."""
    if _mine is None:
        yield
    else:
        with _mine.keep_changes():
            yield


def show_crashes() -> None:
    """Have the stack of a crash in C go to the standard error output."""
    with suppress(RuntimeError, ValueError, AttributeError):  # there may be no such output
        faulthandler.enable()
