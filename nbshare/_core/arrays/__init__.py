"""Arrays and objects whose bytes are in segments.

Imported here is only what makes them travel: a worker needs a third of them, and starts the sooner.
"""

from nbshare._core.arrays.by_reference import register

register()
