"""The root of all exceptions, `nbshare.errors.NbshareError` to users."""

from __future__ import annotations

__all__ = ["NbshareError"]


class NbshareError(Exception):
    """Root of all exceptions of nbshare except `MapInterrupted`.

    Each also subclasses the built-in exception that you would catch. Exceptions of your own
    function are raised as themselves, with a note.

    Examples
    --------
    Each is also the built-in exception of its kind:

    >>> import nbshare
    >>> try:
    ...     nbshare.zeros(10**15)
    ... except MemoryError as error:
    ...     print(isinstance(error, nbshare.errors.NbshareError))
    True

    Tell what nbshare refuses from errors of your own function:

    >>> import threading
    >>> def try_it(items):
    ...     try:
    ...         return nbshare.parallel_map(float, items)
    ...     except nbshare.errors.NbshareError as error:
    ...         return f"refused: {type(error).__name__}"
    ...     except Exception as error:
    ...         return f"failed: {error}"
    >>> try_it([threading.Lock()]), try_it(["off"])
    ('refused: UnsendableError', "failed: could not convert string to float: 'off'")
    """

    __module__ = "nbshare.errors"
