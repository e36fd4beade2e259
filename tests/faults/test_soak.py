"""A hundredth of each soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).resolve().parent


def soak(script: str, *arguments: str) -> str:
    """Run a soak that must end well. Returns what it printed."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", FAULTS / script, *arguments],
        env={**os.environ, "PYTHONPATH": str(FAULTS.parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_ten_thousand_arrays_leave_nothing():
    """Arrays that are made, viewed, sent, kept and freed leave no descriptor, map or memory."""
    printed = soak("soak.py", "--cycles", "10000")
    assert printed.endswith("nothing is left\n"), printed


def test_a_hundred_calls_are_right_whatever_disturbs_them():
    """Calls of every kind, interrupted, cancelled, edited and robbed of workers, are right."""
    printed = soak("soak_calls.py", "--calls", "100")
    assert printed.endswith("nothing is wrong\n"), printed
