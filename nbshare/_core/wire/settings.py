"""The settings of a process that its workers copy.

`SETTINGS` lists them, and `apply` sets them, in workers, in the process of a detached run, and on
other hosts. `notebooks/details.md` shows the list to users.
"""

from __future__ import annotations

import _locale  # `locale` takes 1 ms to import
import decimal
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from operator import call
from typing import Any, NamedTuple

import numpy as np

from nbshare._core.functions.files import register_files
from nbshare._core.functions.imports import import_as_the_caller
from nbshare._core.functions.modules import find_named
from nbshare._core.system import files, processes


class Setting(NamedTuple):
    """A setting of a process.

    Attributes
    ----------
    told : str
        The setting's name in the table of `details.md`, empty if it is not listed.
    read : callable, optional
        Returns the current value, which can be pickled and compared. If None, `current_context`
        supplies the value.
    set : callable
        Sets a value. Called even for an unchanged value if `read` is None.
    is_compared : bool
        Whether the value is set only if the current one differs.
    is_local : bool
        Whether the setting belongs to this machine. Workers on other machines, and runs resumed
        later, use their own value.
    is_carried : bool
        Whether workers copy the caller's value. Otherwise, each worker keeps its own from its
        start.
    may_stick : bool
        Whether the system may refuse to undo a change.
    """

    told: str
    read: Callable[[], Any] | None
    set: Callable[[Any], object]
    is_compared: bool = True
    is_local: bool = False
    is_carried: bool = True
    may_stick: bool = False


def cwd() -> str | None:
    """Return the working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _enter(folder: str) -> None:
    with suppress(OSError):  # it was removed
        files.enter(folder)


def _set_path(path: list[str]) -> None:
    sys.path = [*path]


def _argv() -> list[str]:
    return [*map(str, getattr(sys, "argv", ()))]  # missing in an embedded interpreter


def _set_argv(argv: list[str]) -> None:
    sys.argv = [*argv]


def _set_authkey(key: bytes) -> None:
    import multiprocessing.process  # imported late: few callers use managers

    multiprocessing.process.current_process().authkey = key


def _time_zone() -> tuple[Any, ...]:
    return time.tzname, time.timezone, time.altzone


def set_time_zone(_zone: object = None) -> None:
    """Set the time zone of the C library from the environment."""
    if hasattr(time, "tzset"):  # missing on Windows
        time.tzset()


_LocaleError: type[Exception] = getattr(_locale, "Error")  # noqa: B009 - unknown to mypy


def _locale_name() -> str | None:
    try:
        return _locale.setlocale(_locale.LC_ALL)
    except _LocaleError:  # the C library has no name for it
        return None


def _set_locale(name: str) -> None:
    with suppress(_LocaleError):  # it may be missing on another host
        _locale.setlocale(_locale.LC_ALL, name)


def _bytecode() -> tuple[Any, ...]:
    return sys.dont_write_bytecode, sys.pycache_prefix


def _set_bytecode(values: tuple[Any, ...]) -> None:
    sys.dont_write_bytecode, sys.pycache_prefix = values


def _socket_timeout() -> tuple[float | None]:
    socket = sys.modules.get("socket")  # without it, no time limit was set
    return (None if socket is None else socket.getdefaulttimeout(),)


def _set_socket_timeout(values: tuple[float | None]) -> None:
    import socket  # imported late: it takes 2 ms

    socket.setdefaulttimeout(*values)


def _switch_us() -> int:
    return round(sys.getswitchinterval() * 1e6)


def _set_switch_us(interval_us: int) -> None:
    sys.setswitchinterval((interval_us + 0.5) * 1e-6)  # Python stores whole µs, rounded down


def _set_recursion_limit(limit: int) -> None:
    with suppress(RecursionError):  # lower than the current depth
        sys.setrecursionlimit(limit)


def _decimal_context() -> tuple[Any, ...]:
    """Return the arguments for a copy of the current decimal context, without flags."""
    _, (*before, _, traps) = decimal.getcontext().__reduce__()
    return (*before, [], traps)


def _set_decimal_context(arguments: tuple[Any, ...]) -> None:
    decimal.setcontext(decimal.Context(*arguments))


def _set_errstate(errstate: Mapping[str, Any]) -> None:
    if np.geterrcall() is None:  # the caller's function is not sent
        errstate = {
            kind: "warn" if how in ("call", "log") else how for kind, how in errstate.items()
        }
    if errstate != np.geterr():
        np.seterr(**errstate)


_FUNCTIONS = "formatter", "override_repr"  # print options that are not sent


def _print_options() -> dict[str, Any]:
    """Return NumPy's print options, with a flag instead of each function."""
    options: dict[str, Any] = np.get_printoptions()  # type: ignore[assignment]  # a copy
    for name in _FUNCTIONS:
        if name in options:  # not in all versions
            options[name] = options[name] is not None
    return options


def _set_print_options(wanted: Mapping[str, Any]) -> None:
    present: dict[str, Any] = dict(np.get_printoptions())  # versions of NumPy differ
    options = {name: wanted[name] for name in present.keys() & wanted.keys()}
    has = {name: present[name] if options[name] else None for name in _FUNCTIONS if name in options}
    np.set_printoptions(**options | has)


def _gc() -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold()


def _set_gc(values: tuple[Any, ...]) -> None:
    is_enabled, thresholds = values
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*thresholds)


# ---------------------------------------------------------------------------- warning filters

NamedFilter = tuple[Any, ...]  # an entry of `warnings.filters`, with its category's names

# If Python runs without the GIL, `catch_warnings` changes only the filters of its thread.
_present_filters: Callable[[], Sequence[Any]] = getattr(
    warnings, "_get_filters", lambda: warnings.filters
)


def _warning_filters() -> tuple[NamedFilter, ...]:
    return _named(*_present_filters())


@lru_cache(2)
def _named(*filters: tuple[Any, ...]) -> tuple[NamedFilter, ...]:
    return tuple((*f[:2], _name_of(f[2]), *f[3:]) for f in filters)


def _name_of(category: Any) -> tuple[str, str]:
    """Return the module and name of a class, so that a worker need not import it for a filter."""
    return category.__module__, category.__qualname__


class _NamedCategory(type):
    """The class of a category that is known by its name, such as a class of the notebook.

    Its module may be imported later, or is too large to be imported for a filter.
    """

    def __subclasscheck__(cls, category: type) -> bool:
        return _name_of(cls) in map(_name_of, category.__mro__)


@cache
def _named_category(module: str, name: str) -> type:
    names = {"__module__": module, "__qualname__": name}
    return _NamedCategory(name.rpartition(".")[2], (Warning,), names)


def filter_warnings(named: tuple[NamedFilter, ...]) -> None:
    """Set warning filters."""
    filters = _filters(named)
    if warnings.filters != filters:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


_found: tuple[Any, list[Any]] = None, []  # the last filters by name, and the filters themselves


def _filters(named: tuple[NamedFilter, ...]) -> list[Any]:
    global _found
    before, filters = _found
    if before is not named:
        filters = [
            (action, text, find_named(*category) or _named_category(*category), *where)
            for action, text, category, *where in named
        ]
        _found = named, filters
    return filters


# ----------------------------------------------------------------------------------- the list


def _nothing(_: object) -> None:
    pass


SETTINGS = {
    "path": Setting("import path", lambda: [*sys.path], _set_path),
    "overridden": Setting("", None, import_as_the_caller),
    "files": Setting("", None, register_files),
    "authkey": Setting("", None, _set_authkey, is_local=True),
    "argv": Setting("`sys.argv`", _argv, _set_argv),
    "umask": Setting("umask", processes.umask, os.umask, is_compared=False),
    "affinity": Setting("CPU affinity", processes.affinity, processes.set_affinity, is_local=True),
    "limits": Setting(
        "resource limits", processes.limits, processes.set_limits, is_local=True, may_stick=True
    ),
    "priority": Setting(
        "`os.nice`, scheduling policy",
        processes.priority,
        processes.set_priority,
        is_local=True,
        may_stick=True,
    ),
    "user": Setting("", processes.user, _nothing, is_local=True, is_carried=False, may_stick=True),
    "time_zone": Setting("time zone", _time_zone, set_time_zone, is_local=True),
    "locale": Setting("locale", _locale_name, _set_locale),
    "recursion_limit": Setting("recursion limit", sys.getrecursionlimit, _set_recursion_limit),
    "int_digits": Setting(
        "`sys.set_int_max_str_digits`", sys.get_int_max_str_digits, sys.set_int_max_str_digits
    ),
    "switch_interval": Setting("`sys.setswitchinterval`", _switch_us, _set_switch_us),
    "bytecode": Setting("`sys.dont_write_bytecode`", _bytecode, _set_bytecode),
    "socket_timeout": Setting("`socket.setdefaulttimeout`", _socket_timeout, _set_socket_timeout),
    "gc": Setting("", _gc, _set_gc, is_carried=False),
    "errstate": Setting("`np.errstate`", np.geterr, _set_errstate, is_compared=False),
    "print_options": Setting("`np.set_printoptions`", _print_options, _set_print_options),
    "decimal": Setting(
        "`decimal` context", _decimal_context, _set_decimal_context, is_compared=False
    ),
    "warnings": Setting("warning filters", _warning_filters, filter_warnings, is_compared=False),
    "cwd": Setting("working directory", cwd, _enter, is_compared=False),
}

_READERS = {name: s.read for name, s in SETTINGS.items() if s.read}
_CARRIED = {name: read for name, read in _READERS.items() if SETTINGS[name].is_carried}
UNREADABLE = [name for name in SETTINGS if name not in _READERS]


def carried() -> dict[str, Any]:
    """Return the settings of this process that workers copy."""
    return _read(_CARRIED)


def present() -> dict[str, Any]:
    """Return all settings of this process that can be read."""
    return _read(_READERS)


def changed(since: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that differ from those that `present` returned."""
    if _is(present, since):  # comparing them one by one would take twice as long
        return []
    return [name for name, value in since.items() if not _is(_READERS[name], value)]


def _read(readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    return dict(zip(readers, map(call, readers.values()), strict=True))


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that apply to other machines and later runs, too."""
    return {name: value for name, value in values.items() if not SETTINGS[name].is_local}


def apply(values: Mapping[str, Any], names: Iterable[str] = SETTINGS) -> None:
    """Set the settings with these names, all by default, if they differ. None means unknown."""
    for name in names:
        if (value := values.get(name)) is None:
            continue
        setting = SETTINGS[name]
        if not (setting.is_compared and setting.read is not None and _is(setting.read, value)):
            setting.set(value)


def _is(read: Callable[[], Any], value: Any) -> bool:
    try:
        return bool(read() == value)
    except Exception:  # noqa: BLE001 - an item may have set it to anything
        return False
