"""The processes, memory, channels, waits and locks of this system.

nbshare asks the operating system for things here, and nowhere else. The rest of the package is the
same on all systems. A system has these names, which are chosen once::

    descriptors   owned by an object, closed with it
    processes     who one is, what it takes, whether it lives; its end, with its children
    files         reading and writing at a place, what the disk has
    sections      memory that several processes map
    room          how much memory is left, and how many CPUs
    waiting       packets and pipes between processes; waits for several; events; order of memory
    locks         between processes; they are released if their holder dies
    workers       born in a group, they die with their owner

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
    from nbshare._core.system.windows import (
        files,
        locks,
        processes,
        room,
        sections,
        waiting,
        workers,
    )
    from nbshare._core.system.windows.handles import close
elif TYPE_CHECKING or SYSTEM == "linux":
    from nbshare._core.system.linux import (
        files,
        locks,
        processes,
        room,
        sections,
        waiting,
        workers,
    )
elif SYSTEM == "macos":
    from nbshare._core.system.macos import (
        files,
        locks,
        processes,
        room,
        sections,
        waiting,
        workers,
    )
else:
    from nbshare._core.system import elsewhere

    files = locks = processes = room = sections = waiting = workers = elsewhere
