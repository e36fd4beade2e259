"""The process of a detached run, and of ``python -m nbshare run``: a parallel map until the end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from nbshare.attached import DRIVER, LOG, RUN
from nbshare.checkpoint.directory import check_place
from nbshare.checkpoint.files import replace
from nbshare.checkpoint.writer import check_free, this_process
from nbshare.detached import load_call
from nbshare.errors import PartialResultWarning, TaskError
from nbshare.functions.pickling import dumps
from nbshare.job import jobs, last_job
from nbshare.mapping import parallel_map
from nbshare.memory import usable_cpus
from nbshare.wire.failures import describe

__all__ = ["resume", "run"]

AGAIN = os.EX_TEMPFAIL  # 75: what is left to do can be done later


def run(arguments: argparse.Namespace) -> int:
    """Run a function of a file with items from files."""
    names = "max_workers", "seed", "retries", "timeout", "out", "on_error", "if_changed"
    given = {name: getattr(arguments, name) for name in names}
    options = {name: value for name, value in given.items() if value is not None}
    options["shared"] = {name: load(file) for name, file in arguments.shared}
    options["checkpoint"] = arguments.checkpoint
    items = [load(file) for file in arguments.items]
    return drive(arguments.function, items, options, progress=True, grace_s=arguments.grace)


def resume(arguments: argparse.Namespace) -> int:
    """Run the call that is stored in a checkpoint."""
    call = load_call(arguments.checkpoint.absolute())
    return drive(*call, progress=None, grace_s=arguments.grace)


def load(path: str) -> Any:
    """Return what a file holds: an array, a JSON value, or the lines of a text."""
    kind = Path(path).suffix
    if kind == ".npy":
        return np.load(path, mmap_mode="r")
    if kind == ".json":
        return json.loads(Path(path).read_text("utf-8"))
    if kind == ".txt":
        return Path(path).read_text("utf-8").splitlines()
    raise ValueError(f"{path}: its name must end with .npy, .json or .txt")


def drive(
    func: Any, items: Sequence[Any], options: Mapping[str, Any], *, progress: Any, grace_s: float
) -> int:
    """Run a parallel map with a checkpoint; tell in a file who drives it and how it ended."""
    path = Path(options["checkpoint"]).expanduser().absolute()
    check_place(path)
    check_free(path)
    (path / DRIVER).mkdir(mode=0o700, parents=True, exist_ok=True)
    told = {name: options.get(name) for name in ("on_error", "out") if options.get(name)}
    n_workers = options.get("max_workers") or usable_cpus()
    record = this_process() | told | {"max_workers": n_workers, "began_at": time.time()}
    _tell(path, record | {"ended_at": None})
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, partial(_begin_no_more, grace_s))
    state, error = "stopped", None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PartialResultWarning)
            parallel_map(func, *items, progress=progress, **options)
        if (job := last_job()) is None or job.state != "stopped":
            state = "done"
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; finished results are kept in {path}") from None
    except Exception as caught:
        state, error = "failed", caught
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        sys.stdout.flush()
        sys.stderr.flush()
        log = path / DRIVER / LOG
        end = {"n_printed": log.stat().st_size if log.exists() else 0, **_described(error)}
        _tell(path, record | end | {"ended_at": time.time(), "state": state})
    return AGAIN if state == "stopped" else 0


def _tell(path: Path, record: dict[str, Any]) -> None:
    replace(path / DRIVER / RUN, json.dumps(record, indent=1).encode(), is_needed=False)


def _described(error: Exception | None) -> dict[str, Any]:
    if error is None:
        return {}
    failure = describe(error, -1, "")
    text = f"{failure.type_name}: {failure.text}"
    return {"error": text, "pickled": (failure.pickled or dumps(TaskError(text))).hex()}


def _begin_no_more(grace_s: float, number: int, _: FrameType | None) -> None:
    """Let items that run finish, and leave the others for the next time; a signal's handler."""
    if not (running := jobs()):
        sys.exit(AGAIN)
    name = signal.Signals(number).name
    os.write(2, f"nbshare: {name}: items that run may finish within {grace_s:g} s\n".encode())
    for job in running:
        job._run.halt()
    signal.signal(signal.SIGALRM, lambda *_: [job.cancel() for job in running] and None)
    signal.setitimer(signal.ITIMER_REAL, grace_s)
