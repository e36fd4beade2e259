"""What a process, a piece of memory, a channel, a wait and a lock are on this system.

Whatever nbshare asks the operating system for is asked here, and nowhere else: the rest of the
package is the same on all systems.
"""

import sys

if sys.platform == "linux":
    from nbshare.system.linux import channels as channels
    from nbshare.system.linux import locks as locks
    from nbshare.system.linux import processes as processes
    from nbshare.system.linux import room as room
    from nbshare.system.linux import sections as sections
    from nbshare.system.linux import waiting as waiting
    from nbshare.system.linux import workers as workers
else:
    from nbshare.system import elsewhere

    channels = locks = processes = room = sections = waiting = workers = elsewhere
