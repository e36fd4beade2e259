"""Introduces a worker to `multiprocessing`, as a process with a number and a parent.

Code that asks `multiprocessing` for a worker's number, or for the main process, gets an answer as
in a pool. The import takes 5 ms, so `multiprocessing` is set up only when other code imports it.
"""

from __future__ import annotations

from typing import Any

from nbshare._core.functions.modules import when_imported


def introduce(index: int, pid: int, name: str, fd: int) -> None:
    """Introduce this worker to `multiprocessing`, now or when it is imported.

    Parameters
    ----------
    index : int
        The worker's number, from 0.
    pid, name : int, str
        The parent process and its name in `multiprocessing`.
    fd : int
        A descriptor that becomes readable when the parent ends.
    """

    def tell(module: Any) -> None:
        here = module.current_process()  # not a daemon, which could not have children
        here.__class__ = module.BaseProcess  # not the class of the main process
        here.name, here._identity = f"nbshare-worker-{index + 1}", (index + 1,)
        here._parent_pid = pid
        module._parent_process = module._ParentProcess(name, pid, fd)

    when_imported("multiprocessing.process", tell)
