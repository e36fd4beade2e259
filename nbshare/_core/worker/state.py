"""Restores the state of a worker process at the start of each call.

The state is that of the caller, with the changes by the initializer, which does not run again.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes 0.5 µs per signal
import faulthandler
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from types import GeneratorType
from typing import Any

from nbshare._core.arrays.inputs import Inputs
from nbshare._core.functions.namespaces import Namespaces
from nbshare._core.functions.reference import label_of
from nbshare._core.messages import noted
from nbshare._core.system import processes
from nbshare._core.wire import settings
from nbshare._core.wire.context import encoded_environ
from nbshare._core.wire.orders import Fixed
from nbshare._core.wire.threads import LibraryThreads, fixed_variables, numbers_in, thread_variables
from nbshare._core.worker import streams

_SIGNALS = sorted(map(int, signal.valid_signals()))

_mine: InheritedState | None = None  # None outside of workers


class InheritedState:
    """The state with which this worker started. There is one object per process."""

    def __init__(self) -> None:
        global _mine
        _mine = self
        self._environ = dict(os.environ)
        self._restored: Any = None  # the environment that was set last, encoded
        self._n_threads = 0
        self._numbers: dict[str, int] = {}  # numbers of threads, by environment variable
        self._threads = LibraryThreads()
        self._sent = b""  # the caller's settings, pickled
        self._own = settings.present()
        self._kept: dict[str, Any] = {}  # set by an initializer, for all calls
        self._wanted: dict[str, Any] = {}  # all of these: the settings for items
        self._reached = self._own  # the settings at the call's start, as far as they can be read
        self._note_signals()

    def restore(self, sent: bytes, n_threads: int) -> None:
        """Restore the environment, then apply the thread limits and the caller's settings.

        `sent` holds the settings, pickled (see `wire.settings`).
        """
        # Comparing the encoded environment takes 3 µs, the decoded one 100 µs.
        if n_threads != self._n_threads or encoded_environ() != self._restored:
            environ = {**thread_variables(n_threads), **self._environ}
            self._numbers = numbers_in(environ)
            os.environ.clear()
            os.environ.update(environ | fixed_variables())
            self._restored, self._n_threads = encoded_environ(), n_threads
            settings.set_time_zone()
        self._threads.limit(self._numbers)
        if sent == self._sent:
            settings.apply(self._wanted, ["cwd"])  # a new folder may have the same name
        else:
            self._wanted = {**self._own, **pickle.loads(sent), **self._kept}
            settings.apply(self._wanted)
            self._reached, self._sent = settings.present(), sent

    def restore_after(self) -> bool:
        """Undo what items have changed in this process. Return whether the system has allowed it.

        Signals and timers could end or slow down an idle worker.
        """
        processes.stop_timers(self._timers)
        processes.block_signals(self._blocked)
        if self._handlers != [*map(_signal.getsignal, _SIGNALS)]:
            for number, handler in zip(_SIGNALS, self._handlers, strict=True):
                if handler is not None and handler != _signal.getsignal(number):
                    signal.signal(number, handler)
            faulthandler.disable()
        if not faulthandler.is_enabled():
            show_crashes()
        streams.restore()
        changed = settings.changed(self._reached)
        try:
            settings.apply(self._wanted, [*settings.UNREADABLE, *changed])
        except Exception:  # noqa: BLE001 - items may have changed them to anything
            self._sent = b""  # so that the next call sets all of them
        if changed:
            changed = settings.changed(self._reached)
        return not any(settings.SETTINGS[name].may_stick for name in changed)

    def note_imports(self) -> None:
        """Set filters for newly imported warnings, and keep thread limits set by modules."""
        settings.apply(self._wanted, ["warnings"])
        self._threads.keep(is_initialized=False)

    @contextmanager
    def keep_changes(self) -> Iterator[None]:
        """Keep the changes made in the block for all later calls."""
        environ, before = dict(os.environ), settings.present()
        yield
        for name in environ.keys() | os.environ.keys():
            if environ.get(name) != os.environ.get(name):
                self._environ.pop(name, None)
                if name in os.environ:
                    self._environ[name] = os.environ[name]
        self._reached = now = settings.present()
        self._kept |= {name: now[name] for name in now if now[name] != before[name]}
        self._wanted |= self._kept
        self._threads.keep(is_initialized=True)
        self._note_signals()
        streams.keep()

    def _note_signals(self) -> None:
        self._handlers = [*map(_signal.getsignal, _SIGNALS)]
        self._blocked, self._timers = processes.blocked_signals(), processes.running_timers()


def note_imports() -> None:
    """Apply `InheritedState.note_imports` if this process is a worker."""
    if _mine is not None:
        _mine.note_imports()


def show_crashes() -> None:
    """Print the stack to stderr when C code crashes."""
    with suppress(RuntimeError, ValueError, AttributeError):  # there may be no stderr
        faulthandler.enable()


# The initializers that have run in this process, and the variables of their functions.
_initialized: dict[bytes, Namespaces] = {}
_initializing = threading.RLock()  # runs one at a time. It may start calls with another one
_entered = ExitStack()  # contexts that initializers have returned


def initialized(inputs: Inputs, fixed: Fixed) -> Namespaces:
    """Return the variables for the functions of a call, set by its initializer.

    The initializer, if any, is loaded and run, unless it has already run in this process.
    """
    global _initialized
    key = fixed.initializer_key
    if fixed.initializer is None or key is None:
        return Namespaces()
    with _initializing:
        if key not in _initialized:
            with Namespaces() as namespaces:
                initializer, initargs = inputs.load(fixed.initializer)
            _run(initializer, initargs)
            namespaces.adopt(initializer)
            namespaces.keep()
            _initialized = {key: namespaces}
        return Namespaces(_initialized[key])


@contextmanager
def initializing_anew() -> Iterator[ExitStack]:
    """Within the block, run a call's initializer once, although the call is loaded often.

    For calls that run in this process. Yields the contexts that the initializer returned. The
    initializer of a worker process has already run. Other threads wait meanwhile.
    """
    global _entered, _initialized
    with _initializing:
        outer = _entered, _initialized
        _entered = ExitStack()
        try:
            yield _entered
        except BaseException:
            leave()
            raise
        finally:
            _entered, _initialized = outer


def leave(entered: ExitStack | None = None) -> None:
    """Exit the contexts of initializers. Print errors, because no caller waits for them."""
    try:
        (_entered if entered is None else entered).close()
    except BaseException:  # noqa: BLE001 - a user's
        traceback.print_exc()
    streams.flush()


def _enter_returned(context: Any) -> None:
    """Enter an initializer's return value if it is a context manager or a generator."""
    if isinstance(context, AbstractContextManager):
        _entered.enter_context(context)
    elif isinstance(context, GeneratorType):
        _entered.enter_context(contextmanager(lambda: context)())


def _run(initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    try:
        # Changes by the initializer stay, in a worker as elsewhere.
        with _mine.keep_changes() if _mine else nullcontext():
            _enter_returned(initializer(*initargs))
    except BaseException as error:
        noted(error, f"raised by the initializer {label_of(initializer)}")
        raise


def restore_variables() -> None:
    """Release the variables of a call's functions, after the call."""
    for namespaces in _initialized.values():
        namespaces.restore()
