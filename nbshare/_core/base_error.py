"""The base class of all exceptions, public as `nbshare.errors.NbshareError`."""

from __future__ import annotations

__all__ = ["NbshareError"]


class NbshareError(Exception):
    """Base class of all exceptions of nbshare except `MapInterrupted`.

    Each also derives from the built-in exception that you would catch. Exceptions of your function
    are raised unchanged, with a note.
    """

    __module__ = "nbshare.errors"
