"""The base of other tests if Windows' Python runs, as under Wine (see CONTRIBUTING.md)."""

from __future__ import annotations

import _thread
import operator
import os
import subprocess
import sys

import numpy as np
import pytest

import nbshare
from nbshare._core.system import processes

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="this is not Windows")


def test_an_interrupt_while_memory_ends_is_not_lost():
    """As it would be in a `__del__`, of which Python only prints the error."""
    arrays = [nbshare.share(np.ones(100_000))]
    with pytest.raises(KeyboardInterrupt):
        any(map(operator.call, [_thread.interrupt_main, arrays.clear]))


def test_a_worker_without_an_owner_ends_before_its_imports(monkeypatch, cold):
    """Its owner was killed between two calls: the one that starts it, the one that binds it."""
    commands = []

    def start(command, **_):
        commands.append(command)
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(nbshare.errors.WorkerDiedError):
        nbshare.parallel_map(abs, [1], progress=False)
    monkeypatch.undo()
    (executable, *arguments), *_ = commands
    command = executable, "-X", "importtime", *arguments
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "encodings" in ended.stderr
    assert "nbshare" not in ended.stderr


def test_a_process_knows_its_memory_and_that_of_others():
    """Shared memory is in its peak, and not in its own memory."""
    taken = np.ones(20 << 20, np.uint8)
    own, own_peak, peak = processes.private_bytes(os.getpid())
    assert taken.nbytes < own <= own_peak
    assert processes.resident_bytes(os.getpid()) > taken.nbytes
    assert peak == processes.peak_bytes() > taken.nbytes
