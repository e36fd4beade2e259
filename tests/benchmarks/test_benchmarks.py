"""The benchmark checks every result, and its report says what is wrong, missing and faster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repo

HERE = Path(__file__).parent

CHEATS = """
import contestants

class Wrong(contestants.Loop):
    name = "wrong"
    module = "cheats"

    def map(self, func, items):
        results = super().map(func, items)
        return [*results[:-1], results[-1] + 1]

class Rounded(contestants.Loop):
    name = "rounded"
    module = "cheats"

    def map(self, func, items):
        return [float(result) for result in super().map(func, items)]

class Broken(contestants.Loop):
    name = "broken"
    module = "cheats"

    def map(self, func, items):
        raise OSError("no such luck")

class Missing(contestants.Loop):
    name = "missing"
    package = "a-package-that-nobody-has"

CONTESTANTS = [Wrong, Rounded, Broken, Missing]
"""


def benchmark(folder, *arguments):
    """Run the benchmark in its smallest size. Return its exit status, text and measurements."""
    (folder / "cheats.py").write_text(CHEATS)
    command = [sys.executable, HERE, "--size", "smoke", "--rounds", "1", "--json", "race.json"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, json.loads((folder / "race.json").read_text())


def test_what_is_right_is_timed(tmp_path):
    """Every workload of every contestant is timed and verified, and tables and picture come."""
    outputs = ["--markdown", "race.md", "--picture", "race.png"]
    status, text, saved = benchmark(
        tmp_path, "--parts", "race", "--only", "pool (fork)", "executor", "nbshare", *outputs
    )
    assert status == 0, text
    names = {"loop", "nbshare", "Pool (fork)", "ProcessPoolExecutor", "ThreadPoolExecutor"}
    for workload in ("start", "tiny", "dicts", "medium", "uneven", "input", "results"):
        mine = [each for each in saved["race"] if each["workload"] == workload]
        timed = {each["contestant"]: each["digest"] for each in mine if "digest" in each}
        assert timed.keys() == names, text
        assert len(set(timed.values())) == 1, text
    assert len((tmp_path / "race.md").read_text().splitlines()) > 10
    assert 5_000 < (tmp_path / "race.png").stat().st_size < 80_000


def test_wrong_results_are_reported(tmp_path):
    """A wrong value and a wrong type are wrong, an error is an error, and the loop is neither."""
    only = ["--also", "cheats", "--only", "wrong", "rounded", "broken", "missing"]
    status, text, _ = benchmark(tmp_path, "--parts", "race", "--workloads", "tiny", *only)
    assert status == 1
    assert "WRONG RESULTS: wrong: tiny" in text
    assert "WRONG RESULTS: rounded: tiny" in text
    assert "broken: OSError: no such luck" in text
    assert "WRONG RESULTS: broken" not in text
    assert "loop:" not in text
    assert "missing" not in text


@pytest.mark.parametrize("what", ["map", "submit"])
def test_the_steps_of_a_small_call_are_all_there(what):
    """The steps of caller, dispatcher and workers are found by their names, and timed."""
    command = [sys.executable, HERE / "small_calls.py", what, "--calls", "50"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # it names what is not there
    for step in ("wire.context.current_context", "worker.work.Work.step"):
        assert step in done.stdout
