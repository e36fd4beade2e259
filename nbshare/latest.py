"""The newest job that did not simply succeed: its results are there until the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbshare.job import Job

__all__ = ["last_job", "remember"]

_last_job: Job | None = None


def last_job() -> Job | None:
    """Return the newest job, if it runs, was stopped, interrupted or failed; else None.

    Its results are kept until the next call.

    Returns
    -------
    Job or None
        Its ``partial()`` has the results, its ``errors`` what went wrong.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.last_job() is None
    True
    """
    return _last_job


def remember(job: Job | None) -> None:
    """Make a job the last one; None lets go of the one before."""
    global _last_job
    _last_job = job
