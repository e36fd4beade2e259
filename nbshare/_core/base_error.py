"""The root of all exceptions, `nbshare.errors.NbshareError` to users."""

from __future__ import annotations

__all__ = ["NbshareError"]


class NbshareError(Exception):
    """Root of all exceptions of nbshare except `MapInterrupted`.

    Each also subclasses the built-in exception that you would catch. Exceptions of your function
    are raised unchanged, with a note.
    """

    __module__ = "nbshare.errors"
