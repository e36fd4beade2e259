"""Arrays and objects whose bytes lie in segments."""

from nbshare.arrays.by_reference import register
from nbshare.arrays.create import empty, full, share, zeros
from nbshare.arrays.shared_array import SharedArray

register()

__all__ = ["SharedArray", "empty", "full", "share", "zeros"]
