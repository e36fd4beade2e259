"""Runs in a process of their own, which go on when the process that began them has ended.

::

    map_async(detach=True)                             python -m nbshare run
      begin ─► driver/call.pickle                        │ items and arguments from files
        └────► python -m nbshare resume DIR              ▼
                 load_call ─────────────────────► driver.drive: parallel_map(..., checkpoint=DIR)
                                                         │
    attach ◄── results, lease.json, driver/run.json ◄────┘

The folder ``driver`` of the checkpoint has ``call.pickle`` (the function, its arguments, and how to
import), ``run.json`` (who drives, since when, and how it ended) and ``log.txt`` (what was printed).
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbshare.arrays.inputs import ArrayReference, Inputs
from nbshare.attached import CALL, DRIVER, LOG, attach, driver_of, error_of
from nbshare.checkpoint.directory import check_place
from nbshare.checkpoint.writer import check_free, writer_of
from nbshare.engine.run import Request
from nbshare.errors import CheckpointError, UnsendableError
from nbshare.functions.files import register_files
from nbshare.functions.imports import import_as_the_caller
from nbshare.functions.pickling import dumps_apart
from nbshare.job import Job
from nbshare.memory import aligned, file_of
from nbshare.options import MapOptions, checked_checkpoint

__all__ = ["StoredCall", "begin", "load_call"]

LEAST = 1 << 16  # bytes of an array that is stored next to the pickle, and mapped from there
LOOK_S = 0.01
IMPORTS = "cwd", "path", "files", "overridden"  # of the caller's settings

_drivers: list[subprocess.Popen[bytes]] = []  # of this process, until they have ended


class StoredCall(NamedTuple):
    """A call of `parallel_map`."""

    func: Any
    iterables: list[Any]
    options: dict[str, Any]


def begin(request: Request, options: MapOptions, progress: Any, plot: Any) -> Job:
    """Start a driver for a call, and return the job of its run."""
    kept = checked_checkpoint(options)
    if kept is None:
        raise ValueError("detach=True needs checkpoint=, the folder in which the run is stored")
    if request.source is not None:
        raise TypeError("detach=True takes items that have a length: make a list of them")
    if isinstance(options.out, np.ndarray):
        raise TypeError("detach=True cannot fill out=, an array of this process; leave it out")
    path = kept.path
    check_place(path)
    check_free(path)
    (path / DRIVER).mkdir(mode=0o700, parents=True, exist_ok=True)
    columns = [_by_file(column) for column in request.iterables]
    shared = {name: _by_file(value) for name, value in request.shared.items()}
    arguments = options._asdict() | {"shared": shared}
    _store(path, request, StoredCall(request.func, columns, arguments))
    _await_beginning(path, _start_driver(path))
    return attach(path, progress=progress, plot=plot)


def _by_file(value: Any) -> Any:
    """Return where an array of a mapped file is; anything else unchanged."""
    found = file_of(value) if isinstance(value, np.ndarray) else None
    if found is None:
        return value
    form = value.shape, value.strides, value.dtype
    return ArrayReference(*found, *form, is_shared=False, is_writable=False)


def _store(path: Path, request: Request, call: StoredCall) -> None:
    try:
        data, buffers = dumps_apart(tuple(call), LEAST)
    except Exception as error:
        raise UnsendableError(
            "detach=True stores the function and its arguments, and one of them cannot be pickled "
            f"({type(error).__name__}: {error})"
        ) from error
    settings = pickle.loads(request.context.settings)
    imports = {name: settings[name] for name in IMPORTS}
    new = path / DRIVER / f".{CALL}"
    with new.open("wb") as file:
        pickle.dump((imports, data, [buffer.nbytes for buffer in buffers]), file)
        for buffer in buffers:
            file.seek(aligned(file.tell()))
            file.write(buffer)
    new.replace(path / DRIVER / CALL)


def load_call(path: Path) -> StoredCall:
    """Load the call that a driver runs, after setting up its imports; arrays are mapped.

    Raises
    ------
    CheckpointError
        If none is stored.
    """
    try:
        file = (path / DRIVER / CALL).open("rb")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} holds no call: only map_async(..., detach=True) stores one. Make the same "
            "call again to continue."
        ) from None
    with file:
        imports, data, sizes = pickle.load(file)
        at, memory = file.tell(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    buffers = []
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
    columns = [_from_file(column) for column in columns]
    return StoredCall(func, columns, options | {"shared": shared, "checkpoint": path})


def _from_file(value: Any) -> Any:
    return Inputs(()).array(value) if isinstance(value, ArrayReference) else value


def _start_driver(path: Path) -> subprocess.Popen[bytes]:
    """Start a driver: in a session of its own, which no signal to this one reaches."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = (
        f"import sys; sys.path = {[os.path.abspath(p) for p in sys.path]!r}; "
        "from nbshare.__main__ import main; sys.exit(main())"
    )
    with (path / DRIVER / LOG).open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", code, "resume", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _drivers[:] = [each for each in _drivers if each.poll() is None]
    _drivers.append(driver)
    return driver


@atexit.register
def _leave_running() -> None:
    for driver in _drivers:
        driver.returncode = 0  # or Python would warn that it still runs


def _await_beginning(path: Path, driver: subprocess.Popen[bytes]) -> None:
    """Wait until a driver writes to the checkpoint; raise the error if it was refused."""
    try:
        while True:
            has_ended = driver.poll() is not None  # first: it may begin and end between two looks
            if (who := writer_of(path)) is not None and who["pid"] == driver.pid:
                return
            if has_ended:
                break
            time.sleep(LOOK_S)
    except BaseException:  # an interrupt
        driver.terminate()
        raise
    record = driver_of(path)
    error = error_of(record) if record.get("pid") == driver.pid else None
    raise error or RuntimeError(f"the run did not begin; {path / DRIVER / LOG} says why")
