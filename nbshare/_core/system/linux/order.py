"""The order in which other CPUs see memory. Data written before a mark are there after it.

A process that publishes data writes them first and a mark last. Examples are a result and its
``done`` byte, a block of items and their count, the last look at a block and its release. Another
one reads the mark and then uses the data. Both must be seen in that order.

x86-64 keeps it, because stores are seen in the order of the program, and loads are made in it
(Intel's Software Developer's Manual, volume 3, "Memory Ordering"). Other machines do not, ARM among
them (Arm Architecture Reference Manual, "The AArch64 Application Level Memory Model"). There the
mark can come first.

Python has no fence, and glibc exports none, because its atomics are compiled into each program. To
lock and unlock a mutex is no fence either, as what comes before and after both may meet in between.
But Linux has membarrier(2), for programs in which one side is much more frequent. The reader of a
mark calls it, and the writer does nothing. When it returns, every running thread of all processes
that have registered has passed a point where its accesses to memory match the order of its program,
and so has the caller. A thread that does not run has passed one when it was switched off. A mark
that was seen before the call was written before that point of its writer, so the data were, too. It
remains that the writer's program has that order. The two stores are in different calls of compiled
functions, which no compiler exchanges.

Messages, events, file locks and the end of a process need no mark, because the kernel orders what a
system call hands over by locks of its own. So do the mutexes of ring buffers and
`nbshare.SharedLock`, by POSIX ("Memory Synchronization"). Figures that are only shown (the progress
of an item, stats) are read without care.

It takes a microsecond, and more if many CPUs run workers.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

MACHINE = os.uname().machine
IS_WEAK = MACHINE != "x86_64"  # where a mark may be seen before its data

# From linux/membarrier.h and each machine's unistd.h. Linux has the commands since 4.16.
GLOBAL_EXPEDITED, REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2
SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}

_call = ctypes.PyDLL(None, use_errno=True).syscall
_call.argtypes, _call.restype = (ctypes.c_long,) * 4, ctypes.c_long


def after_marks() -> None:
    """Wait until what was written before the marks that were read can be read, if `IS_WEAK`.

    If the system refuses it, no worker is started (`system.workers`).
    """
    _call(SYS_MEMBARRIER.get(MACHINE, -1), GLOBAL_EXPEDITED, 0, 0)


def before_marks() -> None:
    """Do nothing (see above)."""


def register() -> None:
    """Have this process heed `after_marks` of others, if `IS_WEAK`. Raise OSError if refused."""
    if IS_WEAK and _call(SYS_MEMBARRIER.get(MACHINE, -1), REGISTER_GLOBAL_EXPEDITED, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _register() -> None:
    with suppress(OSError):
        register()


if IS_WEAK:
    _register()
    os.register_at_fork(after_in_child=_register)
