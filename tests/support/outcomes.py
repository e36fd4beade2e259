"""Questions of tests of runs on results and errors."""

from __future__ import annotations

import contextlib

import numpy as np
import psutil
import pytest

from nbshare import MapInterrupted
from tests.support.faultlab import N_SERVERS


def notes_of(error):
    return "\n".join(error.__notes__)


BACKENDS = [None, "serial", "threads"]

MANY = 10_000  # tiny items, hundreds to thousands of which run together

SOON_S = 8.0  # for what takes a fraction of it on a machine with nothing else to do

backends = pytest.mark.parametrize("backend", BACKENDS, ids=["processes", "serial", "threads"])


def runs(tally, n):
    return np.fromfile(tally, np.uint8)[:n].tolist()


def worker_pids():
    """Return the workers, which are the children of the server, or of this process."""
    children = [child for child in psutil.Process().children() if not _is_kernel(child)]
    if N_SERVERS:
        children = [worker for server in children for worker in server.children()]
    return {worker.pid for worker in children}


def _is_kernel(process):
    """Whether a process is the kernel that tests share."""
    with contextlib.suppress(psutil.Error):  # it has ended
        return "ipykernel_launcher" in process.cmdline()
    return False


def said(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@contextlib.contextmanager
def no_interrupt():
    """Have an interrupt that comes through fail the test, not end them all."""
    try:
        yield
    except MapInterrupted:
        raise
    except KeyboardInterrupt:
        pytest.fail("a KeyboardInterrupt came through")
