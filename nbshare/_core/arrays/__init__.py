"""Arrays and objects whose bytes are in segments.

Imported here is only what makes arrays travel, because a worker needs a third of them, and starts
sooner.
"""

from nbshare._core.arrays.by_reference import register

register()
