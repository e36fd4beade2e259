"""Functions that leave something open in their worker: files, handlers, folders, threads."""

from __future__ import annotations

import atexit
import os
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from nbshare import worker_index
from tests.support.faultlab import SIGKILL

_kept: dict[str, object] = {}  # what a worker has open, as such a function keeps it in a global


def note(i, folder):
    """Note an item in this worker's own file, which nobody closes. Return the process and it."""
    if "file" not in _kept:
        folder, pid = Path(folder), os.getpid()
        _kept["file"] = open(folder / f"log-{pid}", "w")  # noqa: SIM115
        _kept["folder"] = tempfile.TemporaryDirectory(dir=folder, prefix="temporary-")
        _kept["database"] = sqlite3.connect(folder / f"database-{pid}")
        atexit.register((folder / f"ended-{pid}").touch)
        threading.Thread(target=_await_main, args=[folder / f"thread-{pid}"]).start()
    _kept["file"].write(f"{i}\n")
    return os.getpid(), i


def new_log(folder):
    """Open a log of this worker, which nobody closes."""
    return open(Path(folder, f"log-{os.getpid()}"), "w")


def _await_main(path):
    threading.main_thread().join()
    path.touch()


def note_or_die(i, folder, fatal):
    """Note an item, but end the worker in some."""
    if i in fatal:
        Path(folder, f"killed-{os.getpid()}").touch()
        os.kill(os.getpid(), SIGKILL)
    return note(i, folder)


def left_in(folder):
    """Return the files in a folder, by the process that has written each and its kind."""
    found: dict[int, dict[str, str]] = {}
    for path in Path(folder).iterdir():
        kind, _, pid = path.name.rpartition("-")
        if kind != "temporary":
            found.setdefault(int(pid), {})[kind] = "" if kind == "database" else path.read_text()
    return found


def hang_in_handler(i):
    atexit.register(time.sleep, 3600)
    return os.getpid()


def hang_in_thread(i):
    threading.Thread(target=time.sleep, args=[3600]).start()
    return os.getpid()


class _Hanging:
    def __del__(self):
        time.sleep(3600)


def hang_in_finalizer(i):
    _kept["hanging"] = _Hanging()
    return os.getpid()


def print_at_end(i):
    atexit.register(print, f"worker {worker_index()} ends")
    return i


def break_numpy(i):
    """Leave this worker's NumPy without a function that loads calls."""
    np.frombuffer = None
    return i
