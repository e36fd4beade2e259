"""Items that take memory, or say when they run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from tests.support.faultlab import SIGKILL


def take(i, nbytes=50_000_000, pause_s=0.05):
    """Take memory for a while. Return when."""
    began = time.monotonic()
    memory = np.ones(nbytes, np.uint8)
    time.sleep(pause_s)
    return began, time.monotonic(), int(memory[0]), os.getpid()


def be_killed_once(i, folder):
    """Be killed in the middle of item 5."""
    time.sleep(0.05)
    if i == 5 and not Path(folder, "killed").exists():
        Path(folder, "killed").touch()
        os.kill(os.getpid(), SIGKILL)
    return i
