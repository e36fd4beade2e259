"""Processes, shared memory, files, messages, waits and locks of this system.

nbshare asks the operating system for things here, and nowhere else. The rest of the package is the
same on all systems. A system has these names, which are chosen once::

    waiting     packets and pipes between processes, waits, events, the order of memory
    processes   identity, memory, CPUs, signals; workers, which start and end with their owner
    sections    memory that several processes map
    files       reading and writing at an offset, renaming, the space on a disk
    locks       between processes; they are released if their holder dies

`shell` has the words of command lines, for all of them.
"""

import os
import sys
from typing import TYPE_CHECKING

from nbshare._core.interrupts import refuse_patched_modules
from nbshare._core.system.descriptors import Descriptor, close, opened, owned, with_room

refuse_patched_modules()  # or an import below would fail for what they lack

_SYSTEMS = {"linux": "linux", "win32": "windows", "darwin": "macos"}

# Tests choose another one than this is.
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
