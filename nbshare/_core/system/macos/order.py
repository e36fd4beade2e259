"""placeholder"""

IS_WEAK = False


def after_marks() -> None:
    """Do nothing."""
