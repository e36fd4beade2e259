"""Arrays and objects whose bytes lie in segments."""

from nbshare.arrays.buffer import SharedBuffer
from nbshare.arrays.by_reference import register
from nbshare.arrays.create import empty, empty_like, full, zeros, zeros_like
from nbshare.arrays.lock import SharedLock
from nbshare.arrays.objects import SharedObject
from nbshare.arrays.ring import RingBuffer
from nbshare.arrays.share import share
from nbshare.arrays.shared_array import SharedArray

register()

__all__ = [
    "RingBuffer",
    "SharedArray",
    "SharedBuffer",
    "SharedLock",
    "SharedObject",
    "empty",
    "empty_like",
    "full",
    "share",
    "zeros",
    "zeros_like",
]
