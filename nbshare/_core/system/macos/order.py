"""The order in which other CPUs see memory. Data written before a mark are there after it.

See `system.linux.order` for what a mark is, and what needs none. Apple's own CPUs are ARM's, so a
mark can be seen before its data. macOS has no call by which a reader alone has all writers pass a
fence. So the writer has one between the data and the mark, and the reader one between the mark and
the data. It is OSMemoryBarrier, a full barrier, "to strictly order memory accesses on a weakly
ordered architecture", on the memory of all processors (barrier(3), libkern/OSAtomic.h). Newer
programs of C use atomic_thread_fence(memory_order_seq_cst) of C11, which is compiled into them, so
no library has it. Both sides' accesses are in other calls of compiled functions than the fence,
which no compiler moves across them.

A fence takes some nanoseconds, its call through ctypes half a microsecond.
"""

import os

from nbshare._core.system.macos import library

# Programs for Intel's CPUs, and such programs on Apple's (Rosetta), see memory in order.
IS_WEAK = os.uname().machine != "x86_64"


def after_marks() -> None:
    """Have what is read next be no older than the marks that were read, if `IS_WEAK`."""
    library.fence()


before_marks = after_marks
"""Have what was written be seen before the mark that is written next, if `IS_WEAK`."""


def register() -> None:
    """Do nothing, because no process has to heed those of others."""
