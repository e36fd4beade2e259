"""Functions of sweeps that run hundreds of times in the process of a test."""

from __future__ import annotations

import time
from collections import UserDict

import numpy as np

CALLS: list[int] = []  # items that ran in this process
# Of each of them. A plain dict that tests change would be refused, because its file has another
# one.
PAUSE_S = UserDict({0: 0.0})


def values(x):
    CALLS.append(x)
    time.sleep(PAUSE_S[0])
    return np.array([x + 1, x * x, -x], np.float32)


def objects(x):
    CALLS.append(x)
    time.sleep(PAUSE_S[0])
    return {"x": x, "big": np.full(600, x)} if x % 2 else f"text {x}"


def twos(x):
    CALLS.append(x)
    time.sleep(PAUSE_S[0])
    return float(x) if x != 4 else "an odd one"
