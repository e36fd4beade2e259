"""What a process, a piece of memory, a channel, a wait and a lock are on this system.

Whatever nbshare asks the operating system for is asked here, and nowhere else: the rest of the
package is the same on all systems.
"""

import sys

from nbshare.system.descriptors import Descriptor, opened, owned, with_room

if sys.platform == "linux":
    from nbshare.system.linux import channels, locks, processes, room, sections, waiting, workers
else:
    from nbshare.system import elsewhere

    channels = locks = processes = room = sections = waiting = workers = elsewhere
