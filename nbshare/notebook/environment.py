"""Where we are: in a Jupyter kernel, at a terminal, or in a log."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal


def surroundings() -> Literal["kernel", "terminal", "log"]:
    """Tell what kind of place shows our output.

    A kernel is asked for before the terminal: Jupyter's stderr is no terminal, but a kernel
    started by hand in one may well be.
    """
    if _in_kernel():
        return "kernel"
    isatty = getattr(sys.stderr, "isatty", None)
    return "terminal" if isatty is not None and isatty() else "log"


def is_static() -> bool:
    """Tell whether the output is for a document that is rebuilt (``NBSHARE_STATIC=1``)."""
    return os.environ.get("NBSHARE_STATIC", "") not in ("", "0")


def _in_kernel() -> bool:
    # Where a kernel runs IPython is loaded. It is not imported just to learn that it was not.
    get_ipython: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


class KernelOutput:
    """One output of a cell, shown once and then replaced in place."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        # Its id is chosen now: after an interrupt inside the first display, the last frame still
        # replaces what that may have shown.
        self._handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        self._is_shown = False

    def show(self, bundle: dict[str, str], metadata: dict[str, Any] | None = None) -> None:
        """Show a bundle of MIME types, in the place of the one shown before."""
        if self._is_shown:
            self._handle.update(bundle, metadata=metadata, raw=True)
        else:
            self._handle.display(bundle, metadata=metadata, raw=True)
            self._is_shown = True
