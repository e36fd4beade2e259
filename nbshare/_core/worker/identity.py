"""How `multiprocessing` calls a worker: a process with a number and a parent.

Code that asks it for a worker's number, or whether it is in the main process, gets an answer like
that in a pool's process. The module takes 5 ms to import, so it is told when something imports it.
"""

from __future__ import annotations

from typing import Any

from nbshare._core.functions.imported import when_imported


def introduce(index: int, pid: int, name: str, fd: int) -> None:
    """Tell `multiprocessing` of this worker, now or when it is imported.

    Parameters
    ----------
    index : int
        The worker's number, from 0.
    pid, name : int, str
        The process that it belongs to, as `multiprocessing` calls that.
    fd : int
        A descriptor that becomes readable when that ends.
    """

    def tell(module: Any) -> None:
        here = module.current_process()  # no daemon, as those may not have children
        here.__class__ = module.BaseProcess  # not that of the main process
        here.name, here._identity = f"nbshare-worker-{index + 1}", (index + 1,)
        here._parent_pid = pid
        module._parent_process = module._ParentProcess(name, pid, fd)

    when_imported("multiprocessing.process", tell)
