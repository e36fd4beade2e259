"""What an owner and its workers share: the board, orders, messages, results, failures."""

__all__ = ["become_worker", "is_worker"]

_is_worker = False


def is_worker() -> bool:
    """Whether this process is a worker, so that a nested map runs inline."""
    return _is_worker


def become_worker() -> None:
    """Note that it is."""
    global _is_worker
    _is_worker = True
