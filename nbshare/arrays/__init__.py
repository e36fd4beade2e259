"""Arrays and objects whose bytes lie in segments."""

from nbshare.arrays.create import empty, full, share, zeros
from nbshare.arrays.shared_array import SharedArray

__all__ = ["SharedArray", "empty", "full", "share", "zeros"]
