"""The settings that workers take over: what changes each of them, and what is seen of it."""

from __future__ import annotations

import decimal
import gc
import locale
import os
import socket
import sys
import tempfile
import time
import warnings

import numpy as np

from nbshare._core.system import SYSTEM

# On macOS the owner raises its own limit of open files when it starts a worker.
LIMITS = ("STACK", "FSIZE", "AS", *(["NOFILE"] if SYSTEM == "linux" else []))


def _change_limits(i):
    import resource

    for name in LIMITS:
        number = getattr(resource, f"RLIMIT_{name}")
        size = (1 << 10 if name == "NOFILE" else 1 << 23 if name == "STACK" else 1 << 40) + i * 4096
        resource.setrlimit(number, (size, resource.getrlimit(number)[1]))


def _limits():
    import resource

    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in LIMITS}


def _change_priority(i):
    os.nice(1)
    if SYSTEM == "linux":
        policy = [os.SCHED_BATCH, os.SCHED_OTHER][i - 1]
        os.sched_setscheduler(0, policy, os.sched_param(0))


def _priority():
    policy = os.sched_getscheduler(0) if SYSTEM == "linux" else None
    return os.getpriority(os.PRIO_PROCESS, 0), policy


def _change_time_zone(i):
    os.environ["TZ"] = f"XYZ-{i}"
    time.tzset()


def _change_bytecode(i):
    sys.dont_write_bytecode, sys.pycache_prefix = i == 1, f"/nowhere/{i}"


# Their i-th change (the first is the caller's, the second an item's), and what is seen of them.
CHANGES = {
    "path": lambda i: sys.path.append(f"/nowhere/{i}"),
    "argv": lambda i: sys.argv.append(str(i)),
    "time_zone": _change_time_zone,
    "cwd": lambda i: os.chdir([tempfile.gettempdir(), os.sep][i - 1]),
    "locale": lambda i: locale.setlocale(locale.LC_TIME, ["C.UTF-8", "C"][i - 1]),
    "recursion_limit": lambda i: sys.setrecursionlimit(2_000 + i),
    "int_digits": lambda i: sys.set_int_max_str_digits(5_000 + i),
    "switch_interval": lambda i: sys.setswitchinterval(i / 128),
    "bytecode": _change_bytecode,
    "socket_timeout": lambda i: socket.setdefaulttimeout(10.0 + i),
    "errstate": lambda i: np.seterr(over=["raise", "ignore"][i - 1]),
    "print_options": lambda i: np.set_printoptions(
        precision=i, formatter={"bool": str} if i == 2 else None
    ),
    "decimal": lambda i: setattr(decimal.getcontext(), "prec", 5 + i),
    "warnings": lambda i: warnings.filterwarnings("ignore", f"message {i}"),
}
LOOKS = {
    "path": lambda: [folder for folder in sys.path if "nowhere" in folder],
    "argv": lambda: sys.argv,
    "time_zone": lambda: (time.localtime(0).tm_hour, time.tzname),
    "cwd": lambda: os.getcwd(),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "recursion_limit": lambda: sys.getrecursionlimit(),
    "int_digits": lambda: sys.get_int_max_str_digits(),
    "switch_interval": lambda: sys.getswitchinterval(),
    "bytecode": lambda: (sys.dont_write_bytecode, sys.pycache_prefix),
    "socket_timeout": lambda: socket.getdefaulttimeout(),
    "errstate": lambda: np.geterr(),
    "print_options": lambda: str(np.array([np.pi, True])) + str(np.array([True])),
    "decimal": lambda: decimal.getcontext().prec,
    "warnings": lambda: [f[1].pattern for f in warnings.filters if "message" in str(f[1])],
}
if SYSTEM != "windows":
    CHANGES |= {"limits": _change_limits, "priority": _change_priority}
    LOOKS |= {"limits": _limits, "priority": _priority}
if SYSTEM == "linux":
    first = min(os.sched_getaffinity(0))
    CHANGES |= {
        "umask": lambda i: os.umask(0o20 + i),
        "affinity": lambda i: os.sched_setaffinity(0, [{first}, range(os.cpu_count())][i - 1]),
    }
    LOOKS |= {
        "umask": lambda: (umask := os.umask(0), os.umask(umask))[0],
        "affinity": lambda: os.sched_getaffinity(0),
    }

HOME = {"path", "argv", "time_zone"}  # new ones need new workers


def change(i, names=CHANGES):
    """Change what the names say, in this process."""
    for name in names:
        CHANGES[name](i)
    return i


def spoil(i):
    """Change everything in a worker, also what it has for itself."""
    gc.disable()
    gc.set_threshold(7, 7, 7)
    return change(i)


def seen(_):
    """Return what is seen of everything, and of the garbage collector."""
    return {name: look() for name, look in LOOKS.items()}, gc.isenabled(), gc.get_threshold()


def lower_for_good(i):
    """Change what an ordinary user cannot undo. Return the process."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    os.nice(3)
    if os.getuid() == 0:  # who could undo that
        os.setuid(65534)
    return os.getpid()


def user_and_limits(_):
    """Return them, and the process."""
    return os.getuid(), _limits(), os.getpriority(os.PRIO_PROCESS, 0), os.getpid()
