"""On a system that is not Linux, calls run in this process, and the rest is refused in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faultlab import TESTS

# Other packages have to find what they need of this system, so they are imported before.
PROGRAM = """
import sys
import asyncio, multiprocessing.reduction, subprocess, tempfile
import cloudpickle, matplotlib.figure, numpy, PIL.Image, psutil, pytest, tqdm
from tests.support import elsewhere
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.first
def test_calls_run_in_this_process(tmp_path):
    """Both backends keep the contract. `suite_elsewhere` has arrays, and refusals."""
    suite = Path(__file__).with_name("suite_elsewhere.py")
    options = ["-q", "-c", os.devnull, "--noconftest", "--basetemp", tmp_path / "tests"]
    options += ["-p", "no:cacheprovider", "-W", "error", "--rootdir", TESTS]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options, suite],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr[-2_000:]
    assert "passed" in ended.stdout
