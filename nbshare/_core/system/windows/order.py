"""The order in which other CPUs see memory, which x86-64 keeps (see `system.linux.order`)."""

import sys

IS_WEAK = "AMD64" not in sys.version


def after_marks() -> None:
    """Do nothing, because no worker starts where it would matter."""


def before_marks() -> None:
    """Do nothing, because no worker starts where it would matter."""


def register() -> None:
    """Refuse workers where the order of memory is weak.

    Raises
    ------
    OSError
        This is such a machine.
    """
    if IS_WEAK:
        raise OSError("nbshare has no workers on ARM yet")
