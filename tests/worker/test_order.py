"""On machines that may show a mark before its data, readers of marks call a fence of the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from nbshare._core.system import SYSTEM
from tests.support.faultlab import SYSTEM as PLAYED
from tests.support.faultlab import TESTS

pytestmark = [
    pytest.mark.skipif(SYSTEM == "windows", reason="no worker starts there where it would matter"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines do it in all tests"),
]

# In each process, workers too, this machine counts as another one, and fences are counted.
SITE = """
import itertools
from nbshare._core.system import waiting
waiting.IS_WEAKLY_ORDERED, fence, n_fences = True, waiting.after_marks, itertools.count()
def counted():
    fence()
    next(n_fences)
waiting.after_marks = counted
waiting.register_fences()
"""
TASKS = """
import numpy as np, sitecustomize
def n_fences(*_):
    return int(repr(sitecustomize.n_fences)[6:-1])
def as_object(x):
    return {"n": n_fences(), "x": x.sum()}
"""


@pytest.fixture
def weak(tmp_path):
    """Run a program on such a machine, where it must end well. Return what it printed."""
    played = [(TESTS / name / "sitecustomize.py").read_text() for name in PLAYED.values()]
    (tmp_path / "sitecustomize.py").write_text("".join([*played, SITE]))
    (tmp_path / "weak_tasks.py").write_text(TASKS)

    def run(program):
        path = os.pathsep.join([str(tmp_path), str(TESTS.parent)])
        ended = subprocess.run(
            [sys.executable, "-c", f"import nbshare, numpy as np, weak_tasks\n{program}"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.split()

    return run


PROGRAMS = {
    "an array": "r = nbshare.parallel_map(weak_tasks.n_fences, range(40), chunksize=1)",
    "objects": """
r = [d["n"] for d in nbshare.parallel_map(weak_tasks.as_object, np.ones((40, 3)), chunksize=1)]""",
    "a generator": """
r = nbshare.parallel_map(weak_tasks.n_fences, (np.ones(9) for _ in range(40)), chunksize=1)""",
    "a loop": """
r = [n for _, n in nbshare.map_async(weak_tasks.n_fences, range(40))]""",
    "an executor": """
with nbshare.Executor(2) as pool:
    r = [pool.submit(weak_tasks.n_fences).result() for _ in range(40)]""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_who_reads_a_mark_calls_it(weak, program):
    """The results are right. A worker calls it when it claims, the owner when results have come."""
    before = "before = weak_tasks.n_fences()"
    after = "print(len(r), min(r) > 0, weak_tasks.n_fences() > before)"
    code = f"{before}\n{PROGRAMS[program]}\n{after}"
    assert weak(code) == ["40", "True", "True"]


def test_a_ring_buffer_calls_it(weak):
    """For slots that were freed without the lock."""
    code = """
ring = nbshare.RingBuffer(1, 3)
with ring.put() as slot:
    slot[:] = 5
with ring.get() as slot:
    print(slot.sum(), weak_tasks.n_fences())
"""
    assert weak(code) == ["15.0", "2"]


@pytest.mark.skipif(SYSTEM != "linux", reason="macOS has no call for it that could be refused")
def test_where_it_is_refused_no_worker_starts(weak):
    """In words, which name the call. Threads have the interpreter's own order."""
    code = """
from tests.support import refused
refused.refuse(324)
print(nbshare.parallel_map(len, ["ab"] * 3, backend="threads").sum())
try:
    nbshare.parallel_map(len, ["ab"] * 3)
except nbshare.errors.WorkerDiedError as error:
    print("membarrier" in str(error))
"""
    assert weak(code) == ["6", "True"]


def test_x86_64_calls_nothing():
    """It keeps the order itself."""
    code = """
import nbshare
from nbshare._core.system import waiting
assert not waiting.IS_WEAKLY_ORDERED
waiting.after_marks = None  # a call would fail
assert nbshare.parallel_map(abs, [-1, -2], progress=False).tolist() == [1, 2]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TESTS.parent, timeout=100)
