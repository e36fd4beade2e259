"""Processes as the system sees them, with whose they are, and whether they live."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

TAG = "NBSHARE_FAULTLAB"
IS_WINE = False  # which does not tell all that Windows does

if sys.platform == "win32":
    import ctypes

    import psutil

    IS_WINE = hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")

    def tagged(tag: str | None = None) -> set[int]:
        """Return the processes that have a tag. Default: our own tag."""
        wanted, found = tag or os.environ[TAG], set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(TAG) == wanted:
                    found.add(process.pid)
        return found

    def parent_of(pid: int) -> int:
        """Return a process's parent, 0 if it is gone."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).ppid()
        return 0

    def is_asleep(pid: int) -> bool:
        """Return whether a process waits for something, which is unknown here."""
        raise NotImplementedError

    def cpu_s(pid: int) -> float | None:
        """Return the seconds of processor time that a process has had, or None if it is gone."""
        with contextlib.suppress(psutil.Error):
            return sum(psutil.Process(pid).cpu_times()[:2])
        return None

    def lives(pid: int) -> bool:
        """Return whether a process has not ended."""
        return psutil.pid_exists(pid)

    def kill_now(pid: int) -> None:
        """Kill a process, if it has not ended."""
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()

else:

    def tagged(tag: str | None = None) -> set[int]:
        """Return the processes that have a tag, but no zombies. Default: our own tag."""
        entry = f"{TAG}={tag or os.environ[TAG]}".encode()
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(
                    f"/proc/{pid}/environ", "rb", 0
                ) as file:  # a Path takes eight times as long
                    environ = file.read()
                if entry in environ and entry in environ.split(b"\0"):
                    found.add(int(pid))
            except OSError:  # ended meanwhile, or another user's
                continue
        return found

    def parent_of(pid: int) -> int:
        """Return a process's parent, 0 if it is gone."""
        return int((_stat(pid) or ["", "0"])[1])

    def is_asleep(pid: int) -> bool:
        """Return whether a process, or rather its first thread, waits for something."""
        return bool(fields := _stat(pid)) and fields[0] == "S"

    def cpu_s(pid: int) -> float | None:
        """Return the seconds of processor time that a process has had, or None if it is gone."""
        fields = _stat(pid)
        return fields and sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def _stat(pid: int) -> Any:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields

    def lives(pid: int) -> bool:
        """Return whether a process has not ended."""
        return bool(_stat(pid))

    def kill_now(pid: int) -> None:
        """Kill a process, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_drivers() -> None:
    """End the processes of detached runs that this one has started."""
    from nbshare._core.runs import attached  # late, as workers import this module

    for driver in attached._drivers:
        if driver.poll() is None:
            kill_now(driver.pid)
        while driver.poll() is None:
            time.sleep(0.01)
