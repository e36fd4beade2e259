"""Runs in a process of their own, which go on when the process that began them has ended.

::

    map_async(detach=True)                             python -m nbshare run
      begin ─► driver/call.pickle                        │ items and arguments from files
        └────► python -m nbshare resume DIR              ▼
                 load_call ─────────────────────► drive: parallel_map(..., checkpoint=DIR)
                                                         │
    attach ◄── results, lease.json, driver/run.json ◄────┘

Processes of ``run`` with one checkpoint share its items (`nbshare.checkpoint.sweep`).

The folder ``driver`` of the checkpoint has ``call.pickle`` (the function, its arguments, and how to
import), ``run.json`` (the driver, its start, and how it ended) and ``log.txt`` (what was printed).
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from nbshare.arrays.inputs import ArrayReference, Inputs
from nbshare.attached import CALL, DRIVER, LOG, RUN, attach, driver_of, error_of
from nbshare.checkpoint.directory import check_place
from nbshare.checkpoint.files import replace
from nbshare.checkpoint.sweep import Sweep
from nbshare.checkpoint.writer import check_free, this_process, writer_of
from nbshare.engine.local import dispatcher
from nbshare.engine.preparing import prepare
from nbshare.engine.prints import Prints
from nbshare.engine.run import Request
from nbshare.errors import CheckpointError, PartialResultWarning, UnsendableError
from nbshare.functions.files import register_files
from nbshare.functions.imports import import_as_the_caller
from nbshare.functions.pickling import dumps_apart
from nbshare.functions.reference import label_of
from nbshare.job import Job, jobs, last_job
from nbshare.mapping import in_background, parallel_map
from nbshare.memory import aligned, file_of, usable_cpus
from nbshare.notebook.prints import Printer
from nbshare.options import MapOptions, checked_checkpoint, checked_request
from nbshare.wire.failures import describe

__all__ = ["begin", "resume", "run"]

LEAST = 1 << 16  # bytes of an array that is stored next to the pickle, and mapped from there
LOOK_S = 0.01
ENDING_S = 2.0  # for a run that was interrupted
IMPORTS = "cwd", "path", "files", "overridden"  # of the caller's settings
AGAIN = 75  # exit code of what can be done later, EX_TEMPFAIL

_drivers: list[subprocess.Popen[bytes]] = []  # of this process


# ------------------------------------------------------------------- in the caller's process


def begin(request: Request, options: MapOptions, progress: Any, plot: Any) -> Job:
    """Start a driver for a call, and return the job of its run."""
    kept = checked_checkpoint(options)
    if kept is None:
        raise ValueError("detach=True needs checkpoint=, the folder in which the run is stored")
    if request.source is not None:
        raise TypeError("detach=True takes items that have a length: make a list of them")
    if isinstance(options.out, np.ndarray):
        raise TypeError("detach=True cannot fill out=, an array of this process; leave it out")
    _make_place(kept.path)
    _store(kept.path / DRIVER / CALL, request, options)
    _await_beginning(kept.path, _start_driver(kept.path))
    return attach(kept.path, progress=progress, plot=plot)


def _make_place(path: Path) -> None:
    """Make the folder of a driver, if the checkpoint is free."""
    check_place(path)
    check_free(path)
    (path / DRIVER).mkdir(mode=0o700, parents=True, exist_ok=True)


def _store(path: Path, request: Request, options: MapOptions) -> None:
    """Store a call; an array of a mapped file as where it is."""
    shared = {name: _by_file(value) for name, value in request.shared.items()}
    columns = [_by_file(column) for column in request.iterables]
    try:
        kept = options._replace(shared=shared, progress=None, plot=None)._asdict()
        data, buffers = dumps_apart((request.func, columns, kept), LEAST)
    except Exception as error:
        raise UnsendableError(
            "detach=True stores the function and its arguments, and one of them cannot be pickled "
            f"({type(error).__name__}: {error})"
        ) from error
    settings = pickle.loads(request.context.settings)
    imports = {name: settings[name] for name in IMPORTS}
    with path.with_suffix(".new").open("wb") as file:
        pickle.dump((imports, data, [buffer.nbytes for buffer in buffers]), file)
        for buffer in buffers:
            file.seek(aligned(file.tell()))
            file.write(buffer)
    path.with_suffix(".new").replace(path)


def _by_file(value: Any) -> Any:
    found = file_of(value) if isinstance(value, np.ndarray) else None
    if found is None:
        return value
    return ArrayReference(*found, value.shape, value.strides, value.dtype, False, False)


def _start_driver(path: Path) -> subprocess.Popen[bytes]:
    """Start a driver: in a session of its own, which no signal to this one reaches."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = f"import sys; sys.path = {[os.path.abspath(p) for p in sys.path]!r}; "
    code += "from nbshare.__main__ import main; sys.exit(main())"
    command = [sys.executable, *flags, "-P", "-c", code, "resume", str(path)]
    _drivers[:] = [driver for driver in _drivers if driver.poll() is None]
    with (path / DRIVER / LOG).open("ab") as log:
        kept: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        kept["env"] = {**os.environ, "MPLBACKEND": "Agg"}  # the notebook's own needs a kernel
        _drivers.append(subprocess.Popen(command, **kept, start_new_session=True))
    return _drivers[-1]


@atexit.register
def _leave_running() -> None:
    for driver in _drivers:
        driver.returncode = 0  # or Python would warn that it still runs


def _await_beginning(path: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait until a driver writes to the checkpoint; raise the error if it was refused."""
    has_ended = False
    try:
        while (writer_of(path) or {}).get("pid") != driver.pid:
            if has_ended:
                record = driver_of(path)
                error = error_of(record) if record.get("pid") == driver.pid else None
                raise error or RuntimeError(f"no run has begun: see {path / DRIVER / LOG}")
            has_ended = driver.poll() is not None  # and look once more: it may have been quick
            time.sleep(LOOK_S)
    except BaseException:  # an interrupt
        driver.terminate()
        raise


# ------------------------------------------------------------------- in the driver's process


def resume(path: Path, grace: float) -> int:
    """Run the call that is stored in a checkpoint; return the exit code."""
    try:
        file = (path / DRIVER / CALL).open("rb")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} holds no call: only map_async(..., detach=True) stores one. Make the same "
            "call again to continue."
        ) from None
    path, buffers = path.absolute(), []
    with file:
        imports, data, sizes = pickle.load(file)
        at, memory = file.tell(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for size in sizes:
        at = aligned(at)
        buffers.append(memory[at : at + size])
        at += size
    os.chdir(imports["cwd"])
    sys.path = imports["path"]
    import_as_the_caller(imports["overridden"])
    register_files(imports["files"])
    func, columns, options = pickle.loads(data, buffers=buffers)
    shared = {name: _from_file(value) for name, value in options["shared"].items()}
    options |= {"shared": shared, "checkpoint": path}
    run = partial(_run_alone, func, list(map(_from_file, columns)))
    return _drive(run, options, grace)


def _from_file(value: Any) -> Any:
    return Inputs(()).array(value) if isinstance(value, ArrayReference) else value


def run(
    func: str, items: list[str], *, shared: Iterable[tuple[str, str]] = (), **options: Any
) -> int:
    """Run a function with items from files; return the exit code."""
    grace = options.pop("grace")
    options["shared"] = {name: _load(path) for name, path in shared}
    return _drive(partial(_run_together, func, list(map(_load, items))), options, grace)


def _load(path: str) -> Any:
    """Return what a file holds: an array, a JSON value, or the lines of a text."""
    kind = Path(path).suffix
    if kind == ".npy":
        return np.load(path, mmap_mode="r")
    if kind not in (".json", ".txt"):
        raise ValueError(f"{path}: its name must end with .npy, .json or .txt")
    text = Path(path).read_text("utf-8")
    return json.loads(text) if kind == ".json" else text.splitlines()


def _run_alone(
    func: Any, items: list[Any], begin: Callable[[float], None], options: dict[str, Any]
) -> bool:
    """Run a parallel map; return whether it is complete."""
    _make_place(options["checkpoint"])
    begin(time.time())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialResultWarning)
        parallel_map(func, *items, **options)
    return (job := last_job()) is None or job.state != "stopped" or job.n_done == job.n_tasks


def _run_together(
    func: str, items: list[Any], begin: Callable[[float], None], options: dict[str, Any]
) -> bool:
    """Take part in a run that others may share; return whether it is complete."""
    checked = MapOptions(**options)
    request, _ = checked_request(func, items, checked)
    sweep = Sweep(cast("Any", checked_checkpoint(checked)), request)
    while True:
        made = request._replace(prints=Prints(Printer()))
        call = sweep.next_call(partial(prepare, made, dispatcher()))
        begin(sweep.began_at)
        if call is None:
            return True
        job = in_background(call, label_of(request.func), True, None)
        try:
            job.wait()
        except BaseException:
            job.cancel()
            job.wait(ENDING_S)  # what is stored by then is stored
            raise
        if job._error is not None and sweep.has_place():
            raise job._error
        if sweep.is_stopped():
            raise KeyboardInterrupt
        if job.state == "stopped" and sweep.has_place():
            return False


def _drive(run: Callable[..., bool], options: dict[str, Any], grace: float) -> int:
    """Run a parallel map; write to a file which process drives it and how it ended."""
    path = Path(options["checkpoint"]).expanduser().absolute()
    told = {name: options.get(name) for name in ("on_error", "out", "max_workers")}
    record = {**this_process(), **told, "began_at": None, "ended_at": None}
    record["max_workers"] = record["max_workers"] or usable_cpus()

    def begin(began_at: float) -> None:
        """Say so, once nothing else runs here that should be known instead."""
        record["began_at"] = began_at
        (path / DRIVER).mkdir(mode=0o700, parents=True, exist_ok=True)
        _tell(path, record)

    notices: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: _wind_up(number, grace, notices))
    state, error = "stopped", None
    try:
        if run(begin, options):
            state = "done"
    except KeyboardInterrupt:
        if not notices:
            raise KeyboardInterrupt(f"interrupted; finished results are in {path}") from None
    except Exception as caught:
        state, error = "failed", caught
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if record["began_at"]:
            ended = {"ended_at": time.time(), "state": state, **_described(path, error)}
            _tell(path, record | ended)
    return AGAIN if state == "stopped" else 0


def _tell(path: Path, record: dict[str, Any]) -> None:
    replace(path / DRIVER / RUN, json.dumps(record, indent=1).encode(), is_needed=False)


def _described(path: Path, error: Exception | None) -> dict[str, Any]:
    """Return how much was printed, and the error."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = path / DRIVER / LOG
    found: dict[str, Any] = {"n_printed": log.stat().st_size if log.exists() else 0}
    if error is not None:
        failure = describe(error, -1, "")
        pickled = failure.pickled or b""
        found |= {"error": f"{failure.type_name}: {failure.text}", "pickled": pickled.hex()}
    return found


def _wind_up(number: int, grace: float, notices: list[int]) -> None:
    """Let items that run finish, and leave the others for the next time; a signal's handler."""
    notices.append(number)
    if not (running := jobs()):
        raise KeyboardInterrupt
    for job in running:
        job._run.halt()
    name = signal.Signals(number).name
    os.write(2, f"nbshare: {name}: items that run may finish within {grace:g} s\n".encode())
    signal.signal(signal.SIGALRM, lambda *_: [job.cancel() for job in running] and None)
    signal.setitimer(signal.ITIMER_REAL, grace)
