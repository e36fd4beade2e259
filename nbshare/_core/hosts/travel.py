"""The carrier and the library, for hosts that may have no nbshare, or another version."""

from __future__ import annotations

import inspect
from functools import cache

from nbshare._core import PACKAGE
from nbshare._core.hosts import carrier


@cache
def traveller() -> carrier.Carry:
    """Return what clusters run."""
    return carrier.Carry(inspect.getsource(carrier))


@cache  # it takes 10 ms
def library_digest() -> bytes:
    """Return what changes with any module of this package."""
    return carrier.digest_of(PACKAGE)
