"""The folder and the options of a checkpoint, which users pass as ``checkpoint=``."""

from __future__ import annotations

import os
from typing import Literal

from nbshare._core.messages import one_of
from nbshare._core.tracebacks import shown_from_its_calls

__all__ = ["Checkpoint"]


@shown_from_its_calls
class Checkpoint:
    """A folder in which a run stores its results, with options, for ``checkpoint=``.

    A plain path, such as ``checkpoint="sweep.ckpt"``, uses the default options.

    Examples
    --------
    Run all items again after a change of the function:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
    >>> again = nbshare.Checkpoint(folder, if_changed="restart")
    >>> nbshare.parallel_map(math.log2, [1.0, 4.0], checkpoint=again)
    SharedArray([0., 2.])

    For results that depend on a file that the function reads, and should survive a power failure:

    >>> stored = nbshare.Checkpoint(folder, version="survey of May", durability="power")

    Parameters
    ----------
    path : str or path-like
        The folder, which is created if it does not exist.
    if_changed : None, "restart" or "accept", optional
        The action if dependencies of stored results have changed. None (default) refuses the call.
        ``"restart"`` forgets all these results, including results of items that are not in this
        call, and runs the items again. ``"accept"`` keeps the results, which then count as new, so
        that a later ``"restart"`` keeps them as well.
    version : str, optional
        A string that results depend on. With it, objects that cannot be compared with those of an
        earlier run, such as open files, are compared only by type. Set it for dependencies that
        nbshare cannot compare, such as data files, installed packages, and files that processes
        other than the workers load.
    durability : {"process", "power"}, optional
        With ``"process"`` (default), finished results survive the end of any process, however it
        ends. With ``"power"``, they also survive a power failure, except those of the last 2 s.
        (With Dask, Ray or an executor, a killed kernel loses the results of the last 0.2 s.)
    on_full : {"continue", "stop"}, optional
        The action if results cannot be stored, such as on a full disk. ``"continue"`` (default)
        warns once, continues in memory and tries again every 5 s. ``"stop"`` stops the run with the
        error. Stored results are kept.

    Raises
    ------
    TypeError, ValueError
        If an option has a wrong type or value.

    See Also
    --------
    parallel_map : a run that stores its results with ``checkpoint=``.
    open_checkpoint : the progress of a stored run.

    Notes
    -----
    Results depend on the code that the function reaches, `shared`, `seed`, the initializer and each
    item. See the section "Checkpoints" of ``notebooks/details.md``.
    """

    __module__ = "nbshare"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        if_changed: Literal["restart", "accept"] | None = None,
        version: str | None = None,
        durability: Literal["process", "power"] = "process",
        on_full: Literal["continue", "stop"] = "continue",
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint={path!r} is not allowed: pass the path of a folder")
        _check("if_changed", if_changed, (None, "restart", "accept"))
        _check("durability", durability, ("process", "power"))
        _check("on_full", on_full, ("continue", "stop"))
        if not isinstance(version, str | None):
            raise TypeError(
                f"version={version!r} is not allowed: pass a string, such as version='1'"
            )
        from pathlib import Path  # imported late: it takes 6 ms, and most calls store nothing

        self.path = Path(path).expanduser().absolute()
        self.if_changed = if_changed
        self.version = version
        self.durability = durability
        self.on_full = on_full

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if name != "path"}
        texts = [f"{name}={value!r}" for name, value in options.items()]
        return f"Checkpoint({', '.join([repr(str(self.path)), *texts])})"


def _check(name: str, value: object, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not allowed: pass {one_of(allowed)}")
