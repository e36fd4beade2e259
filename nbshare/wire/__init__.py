"""What an owner and its workers share: the board, orders, messages, results, failures."""

_is_worker = False


def is_worker() -> bool:
    """Return whether this process is a worker; nested calls then run inline."""
    return _is_worker


def become_worker() -> None:
    """Mark this process as a worker."""
    global _is_worker
    _is_worker = True
