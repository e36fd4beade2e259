"""Runs in a process of their own, which go on when the process that began them has ended.

::

    map_async(detach=True)                             python -m nbshare run
      begin ─► driver/call.pickle                        │ items and arguments from files
        └────► python -m nbshare resume DIR              ▼
                 load_call ─────────────────────► drive: parallel_map(..., checkpoint=DIR)
                                                         │
    attach ◄── results, lease.json, driver/log.txt ◄─────┘

Processes of ``run`` with one checkpoint share its items (`nbshare.checkpoint.sweep`).

The folder ``driver`` of the checkpoint has ``call.pickle`` (the function, its arguments, and how to
import) and ``log.txt`` (what was printed). The lease of the checkpoint tells which process drives
the run, when it began, and how it ended. `nbshare.driver` is the driver's side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from nbshare.arrays.inputs import ArrayReference
from nbshare.attached import CALL_FILE, CALL_START, attach, check_call
from nbshare.checkpoint.directory import LOG_FILE, check_place
from nbshare.checkpoint.files import read, size_of, write
from nbshare.checkpoint.writer import check_free, writer_of
from nbshare.engine.run import Request
from nbshare.errors import CheckpointError, UnsendableError
from nbshare.functions.pickling import dumps_apart
from nbshare.job import Job
from nbshare.memory import file_of
from nbshare.memory.disk import open_own, write_all
from nbshare.options import MapOptions, checked_checkpoint
from nbshare.wire.results import entry_parts

__all__ = ["begin"]

LEAST = 1 << 16  # bytes of an array that is stored next to the pickle, and mapped from there
LOOK_S = 0.01

_drivers: list[subprocess.Popen[bytes]] = []  # of this process


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
    (path / CALL_FILE).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_call(path)
    _store(path / CALL_FILE, request, options._replace(checkpoint=kept))
    n_printed = size_of(path / LOG_FILE)
    _await_beginning(path, _start_driver(path), n_printed)
    return attach(path, progress=progress, plot=plot)


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
    parts, _ = entry_parts(request.context.settings, [memoryview(data), *buffers])
    file, crc, end = write(path.with_suffix(".new"), b""), 0, 0
    for offset, part in parts:
        gap = bytes(offset - end)
        end = offset + part.nbytes
        write_all(file.fileno(), part, CALL_START + offset)
        crc = zlib.crc32(part, zlib.crc32(gap, crc))
    write_all(file.fileno(), crc.to_bytes(CALL_START, "little"), 0)
    path.with_suffix(".new").replace(path)


def _by_file(value: Any) -> Any:
    found = file_of(value) if isinstance(value, np.ndarray) else None
    if found is None:
        return value
    return ArrayReference(*found, value.shape, value.strides, value.dtype, False, False)


def _start_driver(path: Path) -> subprocess.Popen[bytes]:
    """Start a driver: in a session of its own, which no signal to this one reaches."""
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = f"import sys; sys.path = {[os.path.abspath(p) for p in sys.path]!r}; "
    code += "from nbshare.__main__ import main; sys.exit(main())"
    command = [sys.executable, *options, "-P", "-c", code, "resume", str(path)]
    _drivers[:] = [driver for driver in _drivers if driver.poll() is None]
    log = open_own(path / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kept: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    kept["env"] = {**os.environ, "MPLBACKEND": "Agg"}  # the notebook's own needs a kernel
    _drivers.append(subprocess.Popen(command, **kept, start_new_session=True))
    return _drivers[-1]


def _await_beginning(path: Path, driver: subprocess.Popen[bytes], n_printed: int) -> None:
    """Wait until a driver writes to the checkpoint; raise what it says if it was refused.

    `n_printed`: size of the log before.
    """
    has_ended = False
    try:
        while (writer_of(path) or {}).get("pid") != driver.pid:
            if has_ended:
                said = (read(path / LOG_FILE) or b"")[n_printed:].decode("utf-8", "replace")
                said = said.strip().removeprefix("nbshare resume: ")
                raise CheckpointError(said or f"{path}: the process of the run was killed")
            has_ended = driver.poll() is not None  # and look once more: it may have been quick
            time.sleep(LOOK_S)
    except BaseException:  # an interrupt
        driver.terminate()
        raise
