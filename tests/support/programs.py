"""Programs whose memory is looked at, and what is left of it."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil

from nbshare._core import interrupts
from nbshare._core.memory import (
    Segment,
    copying,
    handle_of,
    kinds,
    segment,
    warm,
)
from nbshare._core.system import descriptors, sections
from tests.support.faultlab import PYTHON_PATH

SETTING = "NBSHARE_MEMORY"


# In which interrupts come.
MODULES = copying, descriptors, interrupts, kinds, sections, segment, warm


FILES = {m.__file__ for m in MODULES}


def held(name="nbshare-"):
    """Count the descriptors and mappings of this process whose file's name holds a text.

    Windows only tells whether a name is in use.
    """
    gc.collect()
    if sys.platform == "win32":
        known = (other for other in segment.known_segments if name in other)
        return sum(map(_is_used, {name, *known}))
    count = Path("/proc/self/maps").read_text().count(name)
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            count += name in os.readlink(f"/proc/self/fd/{fd}")
    return count


def _is_used(name):
    import _winapi

    try:
        handle = _winapi.OpenFileMapping(_winapi.FILE_MAP_READ, False, name)
    except FileNotFoundError:
        return False
    _winapi.CloseHandle(handle)
    return True


def n_open():
    """Count the descriptors, or handles, of this process."""
    if sys.platform == "win32":
        return psutil.Process().num_handles()
    return len(os.listdir("/proc/self/fd"))


def names_left(pid, *folders):
    """Return the names that a process has left in directories."""
    places = [Path("/dev/shm"), *folders]
    return [path for place in places for path in Path(place).glob(f"nbshare-{pid:x}-*")]


class Program:
    """Runs code in a new interpreter, where it must end well. Returns what it printed.

    `before` are shell commands, which may mount things that nobody else sees.
    """

    def __init__(self, folder):
        self.folder = folder

    def start(self, code, before="", **environ):
        """Start it. The end is the caller's to see to."""
        path = self.folder / "program.py"
        path.write_text(code)
        inherited = {name: value for name, value in os.environ.items() if name != SETTING}
        command = [sys.executable, str(path)]
        if before:
            command = ["unshare", "-m", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
        return subprocess.Popen(
            command,
            env={**inherited, "PYTHONPATH": PYTHON_PATH, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, code, before="", **environ):
        """Run it."""
        process = self.start(code, before, **environ)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, f"{process.returncode}: {stderr}"
        assert not stderr
        return stdout


def make(setting=None):
    if setting is not None:
        os.environ[SETTING] = setting
    return handle_of(Segment.filled(8000, [(0, np.arange(1000.0))]))
