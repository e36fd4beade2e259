"""A fiftieth of the soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def test_twenty_thousand_arrays_leave_nothing():
    """Arrays that are made, viewed, sent, kept and freed leave no descriptor, map or memory."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", TESTS / "soak.py", "--cycles", "20000"],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("nothing is left\n"), ended.stdout
