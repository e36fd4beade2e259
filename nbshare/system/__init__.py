"""What a process, a piece of memory, a channel, a wait and a lock are on this system.

Whatever nbshare asks the operating system for is asked here, and nowhere else: the rest of the
package is the same on all systems.
"""
