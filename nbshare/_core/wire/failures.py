"""Sends failures of workers to the caller, as the same exception if possible."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nbshare import errors
from nbshare._core.arrays.remedies import IN_SHELL
from nbshare._core.functions.modules import (
    MAIN,
    file_of,
    find_named,
    is_module,
    loaded,
    loader_of,
)
from nbshare._core.functions.pickling import dumps
from nbshare._core.messages import cut, is_interrupt, is_ours, noted
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.system import processes
from nbshare._core.wire import is_worker
from nbshare.errors import TaskError, TaskTimeoutError

MAX_PICKLE = 1 << 20  # bytes. A larger exception holds data, and is sent as text
MAX_ITEM = 60  # characters of an item's repr in a message
MAX_PART = 10_000  # characters of an exception's text, or of one frame of a traceback
COPY = "the function called os.fork. This copy of the process ends here, the original continues"
# The first error compiles the patterns below, each in 0.2 ms. This one matches errors of objects
# that work in one thread only, such as database cursors.
_OF_A_THREAD = "(?i)thread|greenlet|event loop|outside of .* context|ContextVar"
# Errors of a module's code that uses the shell of a notebook.
_IN_SHELL = (
    "NameError: .*'get_ipython'.*|AttributeError: 'NoneType' object has no attribute "
    "'(getoutput|system|run_line_magic|run_cell_magic)'.*"
)
# Errors of NumPy, SciPy, Numba, OpenCV, h5py, xarray, ctypes and others that write to an array, and
# errors that do not concern arrays.
_READ_ONLY = (
    r"(?i)read-?only|WRITEABLE|not writ(e)?able|and writable|read-write bytes|not own its data"
    r"|destination is a view"
)
_OF_FILES = (
    r"(?i)(read-?only|not writ(e)?able)[ -](\w+[ -])?(attribute|connection|database|file|mode"
    r"|property|replica|store|table|transaction)"
)
# Errors of lookups among names that programs register.
_OF_REGISTERED = (
    r"(?i)unregistered|\bnot?\b.*\bregist(ered|ry)|unknown (error handler|encoding)|colormap"
    r"|\bvalid unit"
)
# Errors of Python, pandas, patsy, DuckDB and polars about names in a text. The last two patterns
# are of objects that are pickled by name, such as those of toolz.curry.
_OF_NAMES = (
    r"(?:name|variable|relation) '?(\w+)'? (?:is not defined|does not exist|was not found)"
    r"|module '__main__' has no attribute '(\w+)"
    r"|attribute '(\w+)' on <module '__main__'"
)
UNSENT = (
    "Workers do not have {0!r} of the notebook or script. They get the variables that the code of "
    "the function names, and not those that a text names, such as a query or a formula. Pass it "
    "as an argument, for example with shared={{{0!r}: {0}}}, or define it in a .py file."
)
REGISTERED = (
    "Workers do not have what the calling process has registered with a library, or added to its "
    "classes and modules. Do the same in initializer=, or at the top of a worker file."
)
READ_ONLY = (
    "Arrays in shared= and among the items, also in lists, dicts and tables, are read-only in the "
    "workers. To change values, work on a copy (x = x.copy()). Or pass share(x, mode='c'): each "
    "worker sees only its own changes. Or pass share(x) as an item or in a functools.partial: all "
    "workers write to the same memory."
)
NO_TERMINAL = (
    "a debugger needs a terminal, which workers do not have. Run the item in this process, with "
    "nbshare.last_job().debug(i), or all items with backend='serial'"
)
OF_TUPLE = (
    "The item is a tuple, which is one argument, as in map. To pass its parts, use "
    "parallel_map(func, *zip(*items)). For the rows of a DataFrame, pass nbshare.rows(df)."
)
MOST_CAUSES = 10  # causes of an error that are searched
CRASHED = " It crashed in compiled code. A stack trace was printed to stderr."
LEAST_CRASH = 1 << 31  # smallest exit code of a process that Windows has ended
CRASHES = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC0000374: "heap corruption",
    0xC0000409: "abort",
}
MAX_LINES = 40  # most lines of the beginning, and of the end, of a traceback

# A different object in each forked process, because `os.getpid` takes five times as long.
this_process = [object()]
processes.at_fork(after_in_child=lambda: this_process.__setitem__(0, object()))


class ItemStopped(BaseException):
    """Raised to leave an item of a stopped call. ``except Exception`` does not catch it."""


class Failure(NamedTuple):
    """The description of a failure, usually of an item, to be sent to the caller."""

    item: int  # its index, -1 before the first item
    item_repr: str  # cut
    pickled: bytes | None  # the exception, if it can be pickled and unpickled
    type_name: str
    text: str
    traceback: str  # the worker's, without the engine's frames
    notes: list[str]  # notes on the exception, if its pickle omits them
    advice: str = ""  # the last note, if the cause decides it
    lacking: tuple[str, str] | None = None  # a module and a qualified name that is not in it

    def as_error(self, name: str, worker: object) -> BaseException:
        """Return the exception to raise in the caller, with a note that names item and worker.

        `worker` is the worker's number, from 1, or None if the item ran in the caller's process.
        """
        where = f"for {name}" if self.item >= 0 else ""
        if worker is not None:
            where = f"{where} in worker {worker}".lstrip()
        error: BaseException | None = None
        if self.pickled is not None:
            # The class may exist only in the worker.
            with suppress(Exception, SystemExit):
                error = pickle.loads(self.pickled)
        notes = [*self.notes, _note(self, where)]
        if not isinstance(error, BaseException) or not all(noted(error, note) for note in notes):
            error = _task_error(self, where)
        if worker is not None:
            if name := self._unsent():
                noted(error, UNSENT.format(name))
            elif self._is_of_registered():
                noted(error, REGISTERED)
        return error if self.advice and noted(error, self.advice) else explained(error)

    def _unsent(self) -> str:
        """Return the variable of the script that the worker seems to lack, or ""."""
        found = re.search(_OF_NAMES, self.text)
        name: str = found[found.lastindex or 0] if found else ""
        if self.type_name == "KeyError" and "global_dict[" in self.traceback:  # by numexpr
            name = self.text.strip("'")
        return name if find_named(MAIN, name) is not None else ""

    def _is_of_registered(self) -> bool:
        """Return whether a worker seems to lack what this process has registered or added."""
        with suppress(Exception):  # descriptors and metaclasses may raise anything
            if self.lacking is not None and find_named(*self.lacking) is not None:
                return True
        return re.search(_OF_REGISTERED, self.text) is not None


class Death(NamedTuple):
    """The description of a worker's death."""

    item: int  # the running item, -1 for none
    status: int | None
    has_closed: bool  # whether it closed its channel before it ended
    doing: str = ""  # if it ran none
    timeout_s: float | None = None  # set if the item took longer and the worker was killed

    def as_error(self, name: str, worker: object) -> BaseException:
        """Return the error for a death while an item, of this name, was running."""
        if self.timeout_s is not None:
            return TaskTimeoutError(
                f"{name} took longer than timeout={self.timeout_s:g} s, so worker {worker}, which "
                "was running it, was killed",
                self.item,
            )
        hint, doing = "", self.doing or f"worked on {name}"
        if self.has_closed:
            how = "was ended because it closed its connection to this process"
            hint = (
                " os.exec closes it: run other programs with subprocess. Or the function closed "
                "file descriptors that it had not opened (os.closerange)."
            )
        elif self.status is None:
            how = "ended for an unknown reason"
        elif self.status >= LEAST_CRASH:
            how = f"crashed with 0x{self.status:X} ({CRASHES.get(self.status, 'an exception')})"
            hint = CRASHED
        elif self.status >= 0:
            how = f"exited with status {self.status}"
            hint = (
                " The function, or a library, ended the process (os._exit and os.exec do, "
                "sys.exit does not)."
            )
        else:
            name = name_of_signal(-self.status)
            how = f"was ended by {name}"
            if name == "SIGXCPU":
                hint = " It had used all the CPU time that a process may use here (ulimit -t)."
            elif name == "SIGKILL":
                hint = (
                    " Probably memory ran out (check `dmesg`): try fewer workers (max_workers=) or "
                    "smaller items."
                )
                if processes.has_cpu_limit():
                    hint += " Or it had used all the CPU time that it may use (ulimit -t)."
            elif name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL"):
                hint = CRASHED
        return errors.WorkerDiedError(f"worker {worker} {how} while it {doing}.{hint}", self.item)


def describe(error: BaseException, index: int, item: str, n: int = 200) -> Failure:
    """Describe an exception of an item, in the worker, with up to `n` characters of its text.

    Never raises.
    """
    pickled, lost = _pickled(error)
    # IPython shows nothing for an error of the debugger.
    is_debugger = _is_of_debugger(error)
    return Failure(
        item=index,
        item_repr=item,
        pickled=None if is_debugger else pickled,
        type_name=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        text=NO_TERMINAL if is_debugger else cut(_text(error), n),
        traceback="" if is_debugger else traceback_of(error, with_notes=pickled is None),
        notes=lost,
        advice=READ_ONLY if _is_of_read_only(error) else "",  # causes are not sent
        lacking=_lacking(error),
    )


def _lacking(error: BaseException) -> tuple[str, str] | None:
    """Return the module and the qualified name of an attribute that a class or module lacks."""
    if not issubclass(type(error), AttributeError):
        return None
    with suppress(Exception):  # likewise
        owner, name = error.obj, error.name  # type: ignore[attr-defined]
        if is_module(owner):
            place = owner.__name__, name
        else:
            cls = owner if isinstance(owner, type) else type(owner)
            if find_named(cls.__module__, cls.__qualname__) is not cls:
                return None  # sent by value, with all of its attributes
            place = cls.__module__, f"{cls.__qualname__}.{name}"
        return place if name and find_named(*place) is None else None
    return None


def _is_of_debugger(error: BaseException) -> bool:
    """Return whether the item was ended by a debugger that found no terminal.

    The frame that raised the error decides, because its type is BdbQuit, or SystemExit from Python
    3.14 on.
    """
    known = BaseException.__dict__["__traceback__"]  # even if its class overrides the name
    last = known.__get__(error)
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_globals.get("__name__") in ("bdb", "pdb")


class SharedName(str):
    """A name in ``shared=``. Loading it records the name of the object that follows."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _load_next, (str(self),)


_loading = threading.local()


def _load_next(name: str) -> str:
    _loading.name = name
    return name


@contextmanager
def naming_shared() -> Iterator[None]:
    """Within the block, add to errors the name of the ``shared=`` object that was being loaded."""
    _loading.name = None
    try:
        yield
    except Exception as error:
        if _loading.name is not None:
            what = f"raised while shared[{_loading.name!r}] was loaded"
            noted(error, f"{what}: pass the data it is made from, and create it in initializer=")
        raise


def raised_by_source(
    error: BaseException, index: int, *, by_other_thread: bool = False
) -> BaseException:
    """Return the error of a run whose iterable raised an error."""
    where = f"when item {index} was taken from the iterable"
    if by_other_thread and re.search(_OF_A_THREAD, f"{type(error).__name__}: {_text(error)}"):
        where += " by a thread of nbshare: pass list(...) of it instead"
    if not isinstance(error, Exception):  # SystemExit must not end the caller
        return _task_error(describe(error, index, ""), where)
    noted(error, f"raised {where}")
    return error


def _task_error(failure: Failure, where: str) -> TaskError:
    error = TaskError(
        f"{failure.type_name} was raised {where}: {failure.text}",
        failure.item,
        failure.item_repr,
        failure.type_name,
    )
    if failure.pickled is None:
        for note in failure.notes:
            error.add_note(note)
    error.add_note(_note(failure, where))
    return error


def _note(failure: Failure, where: str) -> str:
    return f"raised {where}:\n{failure.traceback}" if failure.traceback else f"raised {where}"


def end_copy(process: object) -> None:
    """End this process if an item, or a module, has forked it from `process`."""
    if this_process[0] is not process:
        end_fork(sys.exception())


def end_fork(error: BaseException | None) -> NoReturn:
    """End a process that a function has forked, where the function returns or raises."""
    status = int(error is not None or not is_worker())  # 1 if items run in the caller's process
    with suppress(BaseException):
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif status:
            traceback.print_exception(error or RuntimeError(COPY))
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)


def explained(error: BaseException) -> BaseException:
    """Return an error, with a note if it is about read-only arrays, the keyboard or modules."""
    if _is_of_read_only(error):
        noted(error, READ_ONLY)
    elif re.fullmatch(_IN_SHELL, f"{type(error).__name__}: {_text(error)}"):
        noted(error, IN_SHELL)
    elif type(error) is EOFError and _text(error) == "EOF when reading a line":
        noted(error, "Workers have no keyboard. Call input() before the run, and pass the answer.")
    elif type(error) is ModuleNotFoundError and (name := error.name or "") in sys.modules:
        if (path := file_of(module := sys.modules[name])) and not os.path.exists(path):
            noted(error, f"Its file {path!r} does not exist. Restore it, or import its new file.")
        elif name in loaded().unknown:
            loader = loader_of(module)
            made_by = "created by code, not loaded from a file"
            if loader is not None:
                cls = loader if isinstance(loader, type) else type(loader)
                made_by = f"loaded by {cls.__name__}, which workers do not have"
            made_by = f"In the calling process, {name!r} was {made_by}"
            noted(error, f"{made_by}. Move its code to a .py file.")
    return error


def _is_of_read_only(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is about a read-only array."""
    cause: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        text = _text(cause)
        is_of_system = issubclass(type(cause), OSError)
        if not is_of_system and re.search(_READ_ONLY, text) and not re.search(_OF_FILES, text):
            return True
        known = BaseException.__dict__  # because the class may override them
        cause, context, hides = (
            known[name].__get__(cause)
            for name in ("__cause__", "__context__", "__suppress_context__")
        )
        cause = context if cause is None and not hides else cause
    return False


def note_on_iterables(error: BaseException, iterables: Sequence[Any], item: str) -> BaseException:
    """Return the error of an item, with a note if wrong iterables may be the cause.

    An argument that is the same for all calls may have been passed as an iterable, so that the
    function gets a part of it. Or the function gets a pair, such as from `zip`, as its only
    argument. `item` is the item's repr.
    """
    is_of_kind = issubclass(type(error), TypeError | LookupError | AttributeError)
    if (
        is_of_kind
        and len(iterables) == 1
        and item[:1] == "("
        and re.search("tuple|sequence", _text(error))
    ):
        noted(error, OF_TUPLE)
    elif is_of_kind and len(iterables) > 1:
        kinds = ", ".join("iterator" if x is None else type(x).__name__ for x in iterables)
        noted(
            error,
            f"Each call gets one item of each of the {len(iterables)} iterables ({kinds}). Pass "
            "an argument that is the same for every call, as a whole, in shared={name: ...}.",
        )
    for items in iterables:
        if isinstance(items, ShapedItems):
            items.note_on(error)
    return error


def name_of_signal(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def text_of(args: Sequence[Any]) -> str:
    """Return the text of an item for messages: its repr, or `str` for numbers and paths."""
    texts = [str(x) if _is_plain(x) else safe_repr(x) for x in args]
    return texts[0] if len(texts) == 1 else cut(f"({', '.join(texts)})")


def _is_plain(x: Any) -> bool:
    """Return whether an object is a number or a path, whose `str` is clearer than its repr."""
    return isinstance(x, np.number) or type(x).__module__.partition(".")[0] == "pathlib"


def name_of_item(i: int, text: str) -> str:
    """Return the name of an item for messages, on one line. `text` is its repr."""
    line = cut(" ".join(text.split()), MAX_ITEM)
    if line in ("", str(i)):
        return f"item {i}"
    return f"item {i} {line}" if line[0] == "(" else f"item {i} ({line})"


def safe_repr(item: Any) -> str:
    """Return a repr of at most 200 characters. Raise nothing but the user's interrupt."""
    try:
        # Strings are cut first, because their repr is long. NumPy summarizes that of arrays.
        return cut(repr(item[:200] if isinstance(item, str | bytes) else item))
    except BaseException as error:  # noqa: BLE001 - a user's __repr__
        _heed_interrupt(error)
        return f"<{type(item).__qualname__} whose repr fails>"


def _heed_interrupt(error: BaseException) -> None:
    """Raise the user's interrupt if it arrived in a method of the user. Workers receive none."""
    if is_interrupt(error) and not is_worker():
        raise error


def _text(error: BaseException) -> str:
    """Return the beginning of an exception's text. Searching a text of 60 MB would take seconds."""
    try:
        return str(error)[:MAX_PART]
    except BaseException as problem:  # noqa: BLE001 - a user's __str__
        _heed_interrupt(problem)
        return f"<{type(error).__qualname__} whose str fails>"


def _pickled(error: BaseException) -> tuple[bytes | None, list[str]]:
    """Return the pickle of an exception if it can be loaded, and the notes that it lacks."""
    # SystemExit and KeyboardInterrupt must not end the caller.
    if not issubclass(type(error), Exception):
        return None, []
    try:
        data = dumps(error)
        # Many exceptions can be pickled but not unpickled.
        if len(data) > MAX_PICKLE or type(copy := pickle.loads(data)) is not type(error):
            return None, []
        kept = getattr(copy, "__notes__", ())
        return data, [note for note in getattr(error, "__notes__", ()) if note not in kept]
    except BaseException as problem:  # noqa: BLE001 - its __reduce__ may raise anything
        _heed_interrupt(problem)
        why = f"{type(problem).__name__}: {cut(_text(problem))}"
        return None, [f"Its type is not kept, because it cannot be pickled ({why})."]


def traceback_of(error: BaseException, *, with_notes: bool = False) -> str:
    """Return the traceback without nbshare's frames, or "" if it would only repeat the message."""
    frames = _own_frames(object.__getattribute__(error, "__traceback__"))  # not an override
    try:
        # A deep recursion may have 100,000 frames. The limit is for the causes of the error.
        shown = traceback.TracebackException(
            type(error), error, frames, limit=2 * MAX_LINES, compact=True
        )
        if not with_notes:  # notes are sent with the error
            shown.__notes__ = None
            if frames is None and shown.__cause__ is shown.__context__ is None:
                return ""
        parts = list(shown.format())
    except BaseException as problem:  # noqa: BLE001 - formatting calls the exception's methods
        _heed_interrupt(problem)
        parts = [*traceback.format_tb(frames), type(error).__name__]
    lines = [cut(line) for part in parts for line in part[:MAX_PART].splitlines()]
    if len(lines) > 2 * MAX_LINES:  # the ends of a recursion show most
        lines[MAX_LINES:-MAX_LINES] = ["  …"]
    return "\n".join(lines)


def _own_frames(tb: TracebackType | None) -> TracebackType | None:
    """Drop the frames of nbshare, which do not help a user, and the middle ones of many."""
    found = []
    while tb is not None:
        if not is_ours(tb.tb_frame):
            found.append(tb)
        tb = tb.tb_next
    found[MAX_LINES : max(MAX_LINES, len(found) - MAX_LINES)] = []
    for each in reversed(found):
        tb = TracebackType(tb, each.tb_frame, each.tb_lasti, each.tb_lineno or 0)
    return tb
