"""Workers that cannot be started, for any reason. Each call says why, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nbshare
from nbshare._core import interpreter
from nbshare.errors import WorkerDiedError
from tests.support.faultlab import SOON_S


def refuse(*args, **kwargs):
    raise RuntimeError("no processes here")


CANNOT_START = {
    "a patched Popen": lambda patch: patch.setattr(subprocess, "Popen", refuse),
    "an executable with a NUL": lambda patch: patch.setattr(sys, "executable", "/usr/py\0thon"),
    "no executable": lambda patch: patch.setattr(sys, "executable", "/nowhere/python"),
    "a patched pipe": lambda patch: patch.setattr(os, "pipe", refuse),
}
CALLS = {
    "parallel_map": lambda: nbshare.parallel_map(abs, [1], progress=False),
    "a generator": lambda: nbshare.parallel_map(abs, iter([1]), progress=False),
    "map_async": lambda: nbshare.map_async(abs, [1]).result(10),
    "Executor": lambda: _submitted(),
    "pipeline": lambda: nbshare.pipeline(list, sum, shape=1, progress=False),
}


def _submitted():
    with nbshare.Executor(1) as executor:
        return executor.submit(abs, 1).result(10)


@pytest.mark.parametrize(
    ("why", "call"),
    [(why, "parallel_map") for why in CANNOT_START]
    + [("no executable", call) for call in CALLS if call != "parallel_map"],
)
def test_workers_that_cannot_be_started_are_an_error_of_each_call(why, call, monkeypatch):
    """For any reason, of every kind of call, and the next call after that is right."""
    nbshare.shutdown()
    with monkeypatch.context() as patch:
        CANNOT_START[why](patch)
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises((WorkerDiedError, RuntimeError), match=r"no worker|no processes"):
                CALLS[call]()
            assert time.monotonic() - begun < SOON_S
    assert nbshare.parallel_map(abs, [-1], progress=False).tolist() == [1]


@pytest.mark.parametrize(
    ("call", "executable"),
    [
        *(("map_async", x) for x in ("", None, "/nowhere/python", "/bin/true", "/bin/cat")),
        ("map_async", "pretender"),
        *(("detached", x) for x in ("", "pretender")),
    ],
)
def test_an_executable_that_is_no_python_is_named(executable, call, monkeypatch, tmp_path, cold):
    """As in a program with Python inside, such as QGIS. The message says what to set."""
    if executable == "pretender":
        executable = str(tmp_path / "qgis")
        Path(executable).write_text("#!/bin/sh\nexec sleep 60\n")
        Path(executable).chmod(0o700)
        monkeypatch.setattr(interpreter, "CHECK_S", 0.2)
    monkeypatch.setattr(sys, "executable", executable)
    options = {"checkpoint": tmp_path / "run", "detach": True} if call == "detached" else {}
    with pytest.raises(WorkerDiedError) as caught:
        nbshare.map_async(abs, [1], **options).result(SOON_S)
    assert f"sys.executable is {executable!r}, which is not a Python" in str(caught.value)
    assert "sys.executable = '/usr/bin/python3'" in str(caught.value)


def test_an_audit_hook_that_forbids_processes_is_told():
    """The call raises what the hook has said."""
    program = (
        "import sys, nbshare\n"
        "def hook(event, args):\n"
        "    if event == 'subprocess.Popen':\n"
        "        raise PermissionError('not in this program')\n"
        "sys.addaudithook(hook)\n"
        "nbshare.parallel_map(abs, [1], progress=False)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "WorkerDiedError" in ended.stderr
    assert "not in this program" in ended.stderr
