"""Arrays and objects whose bytes are in segments.

Only the part that sends arrays is imported here. A worker needs no more, and starts sooner.
"""

from nbshare._core.arrays.by_reference import register

register()
