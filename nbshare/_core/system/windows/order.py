"""The order in which other CPUs see memory: x86-64 keeps it (see `system.linux.order`)."""

import sys

IS_WEAK = "AMD64" not in sys.version


def after_marks() -> None:
    """Do nothing: no worker starts where it would matter."""


def before_marks() -> None:
    """Do nothing: no worker starts where it would matter."""


def register() -> None:
    """Refuse workers where the order of memory is weak.

    Raises
    ------
    OSError
        This is such a machine.
    """
    if IS_WEAK:
        raise OSError("nbshare has no workers on ARM yet")
