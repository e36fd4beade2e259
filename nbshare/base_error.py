"""The root of all exceptions; `nbshare.errors.NbshareError` is its name for users."""

from __future__ import annotations

__all__ = ["NbshareError"]


class NbshareError(Exception):
    """Root of all exceptions of nbshare except `MapInterrupted`.

    Each also subclasses the built-in exception that you would catch. Exceptions of your own
    function are raised as themselves, with a note.

    Examples
    --------
    >>> import nbshare
    >>> try:
    ...     nbshare.share([1, object()], mode="x")
    ... except ValueError as error:
    ...     print(error)
    mode='x': allowed are 'r+', 'r' and 'c'
    """

    __module__ = "nbshare.errors"
