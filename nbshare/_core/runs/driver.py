"""The process of a detached run, or of the command line: drives a run and reports its end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.format import open_memmap

from nbshare._core.arguments.options import MapOptions, checked_checkpoint, checked_request
from nbshare._core.arrays.inputs import ArrayReference, Inputs
from nbshare._core.checkpoint import writer
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.checkpoint.sweep import Sweep
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.preparing import prepare
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request
from nbshare._core.entries.mapping import map_async
from nbshare._core.jobs.job import Job, jobs
from nbshare._core.notebook.prints import Printer
from nbshare._core.runs.attached import CALL_FILE, CALL_START, check_call
from nbshare._core.runs.running import in_background
from nbshare._core.store.files import damaged, mapped, opened
from nbshare._core.store.logs import parts_in
from nbshare._core.system import files as system_files
from nbshare._core.system import processes
from nbshare._core.wire.settings import apply, portable
from nbshare.errors import CheckpointError

__all__ = ["resume", "run"]

ENDING_S = 2.0  # time for an interrupted run to end
# Signals that schedulers send before they end a process.
NOTICES = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]
AGAIN = 75  # exit code of a run that can be retried later, EX_TEMPFAIL

_interrupts: list[int] = []  # received by this process


def resume(path: Path, grace: float) -> int:
    """Run the call that is stored in a checkpoint, and return the exit code."""
    path = path.absolute()
    check_call(path)
    status, run, options = _stored_call(path)
    code = _drive(run, options, grace)
    del run, options  # because Windows does not remove a mapped file
    with suppress(OSError):
        # The stored call may be as large as the inputs. By now, another run may have stored its own
        # call.
        if code == 0 and os.path.samestat(status, (path / CALL_FILE).stat()):
            system_files.remove(path / CALL_FILE)
    return code


def _stored_call(path: Path) -> tuple[os.stat_result, Callable[[Any], bool], dict[str, Any]]:
    """Return a stored call: its file's state, the function that runs it, and its options."""
    if (file := opened(path / CALL_FILE)) is None:
        raise CheckpointError(
            f"{path} holds no call: its run is complete, or was not started with "
            "map_async(..., detach=True). Make the same call again to continue."
        )
    status = os.fstat(file.fileno())
    call = mapped(file) if status.st_size > CALL_START else np.ones(1, np.uint8)
    if zlib.crc32(call[CALL_START:].data) != int.from_bytes(call[:CALL_START].tobytes(), "little"):
        raise damaged(path / CALL_FILE, "its checksum differs")
    settings, data, *buffers = parts_in(call[CALL_START:])
    given = portable(pickle.loads(settings))  # another machine may have stored them
    apply(given)
    func, columns, options = pickle.loads(data, buffers=buffers)
    apply(given, ["warnings"])  # the function's modules may have changed them
    shared = {name: _from_file(value) for name, value in options["shared"].items()}
    options["shared"], options["checkpoint"].path = shared, path  # the folder may have been moved
    return status, partial(_run_alone, func, list(map(_from_file, columns))), options


def _from_file(value: Any) -> Any:
    return Inputs(()).array(value) if isinstance(value, ArrayReference) else value


def run(
    func: str,
    items: list[str],
    checkpoint: str,
    *,
    shared: Iterable[tuple[str, str]] = (),
    if_changed: Any = None,
    grace: float,
    **options: Any,
) -> int:
    """Run a function with items from files, and return the exit code."""
    # The function may import the files next to its own, as a script may.
    sys.path.insert(0, os.path.dirname(os.path.abspath(func.rpartition(":")[0])))
    options["shared"] = {name: _load(path) for name, path in shared}
    options["checkpoint"] = Checkpoint(checkpoint, if_changed=if_changed)
    return _drive(partial(_run_together, func, list(map(_load, items))), options, grace)


def _load(path: str) -> Any:
    """Return the contents of a file: an array, a JSON value, or the lines of a text."""
    kind = Path(path).suffix
    if kind not in (".npy", ".json", ".txt"):
        raise ValueError(f"{path}: the file name must end with .npy, .json or .txt")
    try:
        if kind == ".npy":
            return open_memmap(path, mode="r")
        text = Path(path).read_text("utf-8")
        return json.loads(text) if kind == ".json" else text.splitlines()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _run_alone(func: Any, items: list[Any], options: dict[str, Any]) -> bool:
    """Run a parallel map, and return whether the run is complete."""
    job = _ended(map_async(func, *items, **options))
    if job._error is not None:
        raise job._error
    return job.state != "stopped" or job.n_done == job.n_items


def _run_together(func: str, items: list[Any], options: dict[str, Any]) -> bool:
    """Join a run that other processes may share, and return whether the run is complete."""
    checked = MapOptions(**options)
    request, _ = checked_request(func, items, checked)
    sweep = Sweep(cast("Any", checked_checkpoint(checked)), request)
    while (is_complete := _take_part(sweep, request)) is None:
        pass
    return is_complete


def _take_part(sweep: Sweep, request: Request) -> bool | None:
    """Run missing items. Return whether the run is complete, or None to take part again."""
    made = request._replace(prints=Prints(Printer()))
    call = sweep.next_call(partial(prepare, made, dispatcher()))
    if call is None:
        return True
    job = _ended(in_background(call, request.label, True, None))
    if job._error is not None and sweep.has_place():
        raise job._error
    if sweep.is_stopped():
        raise KeyboardInterrupt
    if job.state == "stopped" and sweep.has_place():
        return False
    return None


def _ended(job: Job) -> Job:
    """Wait for the end of a job, and return the job. An interrupt stops the job."""
    try:
        if _interrupts:  # they arrived before there was a job to stop
            raise KeyboardInterrupt
        job.wait()
    except BaseException:
        job.cancel()
        job.wait(ENDING_S)  # later results are not stored
        raise
    return job


def _drive(run: Callable[[dict[str, Any]], bool], options: dict[str, Any], grace: float) -> int:
    """Run a parallel map with this process's signals handled, and return the exit code."""
    path = options["checkpoint"].path
    writer.is_driver = True
    notices: list[int] = []
    signal.signal(signal.SIGINT, _stop)
    processes.heed_interrupts()
    for number in NOTICES:
        signal.signal(number, lambda number, _: _wind_up(number, grace, notices))
    try:
        if run(options):
            return 0
        if _interrupts:
            raise KeyboardInterrupt
        return AGAIN
    except KeyboardInterrupt:
        if notices:
            return AGAIN
        raise KeyboardInterrupt(f"interrupted; finished results are in {path}") from None
    finally:
        for number in (*NOTICES, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def _stop(number: int, _: Any) -> None:
    """Stop the running jobs. This is the handler of interrupts.

    A cancelled detached run receives one interrupt. An exception alone could be lost, because
    Python drops exceptions in callbacks of weak references, and each import has such a callback.
    """
    _interrupts.append(number)
    for job in jobs():
        job.cancel()
    raise KeyboardInterrupt


def _wind_up(number: int, grace: float, notices: list[int]) -> None:
    """Finish the running items, and leave the others for the next run, after a signal."""
    notices.append(number)
    if not (running := jobs()):
        raise KeyboardInterrupt
    for job in running:
        job._run.halt()
    name = signal.Signals(number).name
    text = f"nbshare: {name}: items that run may finish within {grace:g} s\n"
    with suppress(OSError):  # the reader may have received the signal, too
        if sys.stderr is not None:  # otherwise descriptor 2 may be another file
            os.write(2, text.encode())
    signal.signal(signal.SIGALRM, lambda *_: [job.cancel() for job in running] and None)
    signal.setitimer(signal.ITIMER_REAL, max(grace, 1e-6))  # 0 would mean no limit
