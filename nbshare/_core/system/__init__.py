"""Processes, shared memory, files, messages, waits and locks of this system.

This package alone calls the operating system. The rest of nbshare is the same on all systems. Each
system has a folder with the modules below, and the folder of the present system is imported::

    linux/ macos/ windows/
        waiting      packets and pipes between processes, waits, events, the order of memory
        processes    identity, memory, CPUs, signals; workers, which end with their owner
        sections     memory that several processes map
        files        reading and writing at an offset, renaming, flushing, the space on a disk
        locks        locks between processes, released if their holder dies
    macos/library    functions of the system's library that Python and psutil lack
    windows/handles  handles, and the system's functions on them
    windows/starting the start of a worker in a job

    posix            code shared by Linux and macOS
    portable         code for any system, and stubs for missing functions
    descriptors      descriptors that an object owns and closes, and the limit of open files
    shell            words of command lines

Code for macOS alone is in `macos/`, which imports the rest from `posix` and `portable`. The
rest of nbshare reads properties, such as `waiting.IS_WEAKLY_ORDERED` and `sections.CAN_BE_FILES`.
How workers start depends on `SYSTEM` (`engine.launching`). A system without worker processes uses
`portable` alone.
"""

import os
import sys
from typing import TYPE_CHECKING

from nbshare._core.interrupts import refuse_patched_modules
from nbshare._core.system.descriptors import Descriptor, close, opened, owned, with_room

refuse_patched_modules()  # otherwise an import below would fail for lack of a name

_SYSTEMS = {"linux": "linux", "win32": "windows", "darwin": "macos"}

# Tests may set another system than the real one.
SYSTEM = os.environ.get("NBSHARE_SYSTEM") or _SYSTEMS.get(sys.platform, "elsewhere")

if sys.platform == "win32":
    from nbshare._core.system.windows import files, locks, processes, sections, waiting
    from nbshare._core.system.windows.handles import close
elif TYPE_CHECKING or SYSTEM == "linux":
    from nbshare._core.system.linux import files, locks, processes, sections, waiting
elif SYSTEM == "macos":
    from nbshare._core.system.macos import files, locks, processes, sections, waiting
else:
    from nbshare._core.system import portable

    files = locks = processes = sections = waiting = portable
