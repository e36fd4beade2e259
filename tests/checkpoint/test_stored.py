"""Anyone can read a stored run, with its progress, its results, and what a call would run."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import nbshare
from nbshare import MISSING, Checkpoint, attach, map_async, open_checkpoint, parallel_map
from nbshare.errors import CheckpointError
from tests.support import sweeps
from tests.support.faultlab import wait_until


@pytest.mark.parametrize("func", sweeps.RESULTS, ids=lambda f: f.__name__)
def test_results_come_in_the_order_of_the_items(tmp_path, func):
    """Of the last call, whatever their kind."""
    shared = {"log": str(tmp_path / "log")}
    path = tmp_path / "run"
    with pytest.warns(nbshare.errors.MixedResultsWarning) if func is sweeps.mixed else nothing():
        parallel_map(func, [5, 2, 9], shared=shared, checkpoint=path)
        results = parallel_map(func, [9, 3, 5], shared=shared, checkpoint=path)
    found = open_checkpoint(path).results()
    assert list(map(repr, plain(found))) == list(map(repr, plain(results)))


def test_results_of_the_first_items_are_read_from_the_disk(tmp_path):
    """As those of all. Items that the last call left out are not copied with them."""
    shared = {"log": str(tmp_path / "log")}
    for n in (8, 3):
        parallel_map(sweeps.row, range(n), shared=shared, checkpoint=tmp_path / "run")
        found = open_checkpoint(tmp_path / "run").results()
        assert found[:, 1, 2].tolist() == list(range(n))
        assert not found.flags.writeable  # mapped


def plain(results):
    return [np.asarray(x) if isinstance(x, np.ndarray) else x for x in results]


def nothing():
    import contextlib

    return contextlib.nullcontext()


def test_a_run_that_is_on_can_be_looked_at(tmp_path):
    """Its state, its rate, what is there and what is not."""
    path = tmp_path / "run"
    shared = {"log": str(tmp_path / "log")}
    job = map_async(sweeps.slow, range(400), shared=shared, checkpoint=path)
    wait_until((path / "meta.json").exists)
    run = open_checkpoint(path)
    wait_until(lambda: run.n_done > 60)
    assert run.state == "running"
    assert run.n_items == 400
    assert run.rate > 1
    partial = run.results()
    assert partial.count() < 400
    assert (partial.compressed() == 2.0 * np.flatnonzero(~partial.mask)).all()
    assert "running" in repr(run)
    job.cancel()
    job.wait()
    assert run.state == "stopped"
    assert run.n_done == job.n_done
    assert f"{job.n_done} of 400" in run._repr_html_()


@pytest.mark.parametrize(
    ("items", "on_error", "state"),
    [([1, 2], "raise", "done"), ([1, 3], "return", "done"), ([1, 3], "raise", "failed")],
)
def test_a_run_that_is_over_has_the_state_of_its_job(tmp_path, items, on_error, state):
    """Failed items are done, too, if the run went on without them."""
    (tmp_path / "broken").touch()
    options = {"shared": {"log": str(tmp_path / "log")}, "on_error": on_error}
    job = map_async(sweeps.fragile, items, checkpoint=tmp_path / "run", **options)
    job.wait()
    assert (job.state, open_checkpoint(tmp_path / "run").state) == (state, state)


@pytest.mark.parametrize("func", [sweeps.slow, sweeps.slow_record], ids=lambda f: f.__name__)
def test_stats_tell_what_each_item_took(tmp_path, func):
    """Of all runs so far, in the order of the items of the last one."""
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    parallel_map(func, [1, 2], shared=shared, checkpoint=path)
    parallel_map(func, [3, 2, 1], shared=shared, checkpoint=path)
    stats = open_checkpoint(path).item_stats
    assert ((stats["elapsed_s"] >= 0.009) & (stats["elapsed_s"] < 10)).all()
    assert stats["attempts"].tolist() == [1, 1, 1]
    assert np.argmax(stats["stored_at"]) == 0


def test_the_rate_is_that_of_all_workers(tmp_path):
    """Not that of the moment in which long items end together."""
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    parallel_map(sweeps.napping, range(2), shared=shared, max_workers=2, checkpoint=path)
    run = open_checkpoint(path)
    assert 0 < run.rate <= 2 / run.item_stats["elapsed_s"].min()


def test_outdated_names_an_argument_that_it_does_not_have(tmp_path):
    """And what to use."""
    parallel_map(abs, [1], checkpoint=tmp_path / "run")
    with pytest.raises(TypeError, match=r"outdated\(\) has no argument n=.*shared={'n'"):
        open_checkpoint(tmp_path / "run").outdated(abs, [1], n=3)


def test_stats_count_attempts(tmp_path):
    """An item whose worker died the first time has two."""
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    parallel_map(sweeps.deadly, range(5), shared=shared, checkpoint=path, retries=1)
    assert open_checkpoint(path).item_stats["attempts"].tolist() == [1, 1, 1, 2, 1]


def test_objects_that_are_missing_are_gaps(tmp_path):
    """In the list of a run that was stopped."""
    path = tmp_path / "run"
    shared = {"log": str(tmp_path / "log")}
    job = map_async(sweeps.slow_record, range(400), shared=shared, checkpoint=path)
    wait_until(lambda: job.n_done > 20)
    job.cancel()
    job.wait()
    results = open_checkpoint(path).results()
    assert [x is MISSING for x in results] == (~job.present).tolist()
    assert results[0] == [0, "text"]


def texts(errors):
    return {i: str(error) for i, error in errors.items()}


def test_failures_are_told_until_their_items_have_results(tmp_path):
    """By index, with type and text."""
    (tmp_path / "broken").touch()
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    parallel_map(sweeps.fragile, range(10), shared=shared, checkpoint=path, on_error="return")
    run = open_checkpoint(path)
    assert texts(run.errors) == {3: "ValueError: no 3", 8: "ValueError: no 8"}
    assert (run.errors[3].index, run.errors[3].type_name) == (3, "ValueError")
    assert "2 failed" in repr(run)
    with pytest.raises(ValueError, match="no 8"):
        parallel_map(sweeps.fragile, [8, 20, 3], shared=shared, checkpoint=path, max_workers=1)
    assert texts(run.errors) == {0: "ValueError: no 8", 2: "ValueError: no 3"}
    (tmp_path / "broken").unlink()
    parallel_map(sweeps.fragile, range(10), shared=shared, checkpoint=path, on_error="return")
    assert run.errors == {}


def test_failures_are_told_while_the_run_is_on(tmp_path):
    """So that nobody waits for the end of a run whose items all fail."""
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    job = map_async(
        sweeps.gated_failing, range(12), shared=shared, checkpoint=path, on_error="return"
    )
    run = open_checkpoint(path)
    wait_until(lambda: len(run.errors) == 4)
    assert str(run.errors[3]) == "ValueError: no 3"
    assert (run.state, run.n_done, attach(path).n_done) == ("running", 4, 4)
    (tmp_path / "gate").touch()
    job.wait()
    assert len(run.errors) == 12


def test_failures_are_those_of_the_last_calls_items(tmp_path):
    """In its order, but not those of items that it left out."""
    (tmp_path / "broken").touch()
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    for items in ([1, 3, 5, 8], [8, 1, 3], [3, 1]):
        parallel_map(sweeps.fragile, items, shared=shared, checkpoint=path, on_error="return")
        failed = {i: f"ValueError: no {x}" for i, x in enumerate(items) if x in {3, 8}}
        assert texts(open_checkpoint(path).errors) == failed


def test_what_a_call_would_run_is_said_without_running_it(tmp_path):
    """New items, and what was made by an older version."""
    file, path = tmp_path / "outdated_work.py", tmp_path / "run"
    file.write_text("def g(x):\n    return x\ndef f(x):\n    return g(x) + 1\n")
    func = nbshare.import_file(file).f
    parallel_map(func, range(10), checkpoint=path)
    run = open_checkpoint(path)
    assert run.outdated(func, range(5, 13)) == (8, 5, 3, 0, [])
    file.write_text("def g(x):\n    return -x\ndef f(x):\n    return g(x) + 1\n")
    func = nbshare.import_file(file).f
    changes = ["outdated_work.g changed (outdated_work.py, lines 1-2)"]
    assert run.outdated(func, range(8)) == (8, 0, 0, 8, changes)
    assert run.outdated(func, range(20, 25)) == (5, 0, 5, 0, changes)
    with pytest.raises(CheckpointError, match=r"outdated_work\.g changed"):
        parallel_map(func, range(20, 25), checkpoint=path)
    assert run.n_done == 10
    with pytest.raises(TypeError, match="make a list"):
        run.outdated(func, iter([1]))


def test_what_a_call_with_another_version_would_run_is_said(tmp_path):
    """The options of its checkpoint are passed to `outdated` as to the call."""
    parallel_map(abs, [1, 2], checkpoint=Checkpoint(tmp_path / "run", version="1"))
    run = open_checkpoint(tmp_path / "run")
    assert run.outdated(abs, [1, 2], checkpoint=Checkpoint(run.path, version="1")).n_stored == 2
    outdated = run.outdated(abs, [1, 2], checkpoint=Checkpoint(run.path, version="2"))
    assert (outdated.n_stored, outdated.n_changed) == (0, 2)


def test_what_is_no_checkpoint_is_said(tmp_path):
    """Before anything is asked."""
    with pytest.raises(CheckpointError, match=r"no meta\.json"):
        open_checkpoint(tmp_path)


def test_it_is_read_without_nbshare(tmp_path):
    """As the README in the folder says, in a process that has NumPy alone."""
    path, shared = tmp_path / "run", {"log": str(tmp_path / "log")}
    parallel_map(sweeps.number, range(6), shared=shared, checkpoint=path)
    text = (path / "README.txt").read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    program = "\n".join([*lines, "print(results[done].tolist())", "import sys, zlib"])
    program += "\nassert 'nbshare' not in sys.modules"
    (checksum,) = re.findall(r"zlib\.crc32.*?\)\)\)?", text)
    program += f"\nassert all(index['crc'][i] == {checksum} for i in range(6))"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[0.0, 1.5, 3.0, 4.5, 6.0, 7.5]\n"


@pytest.mark.skipif(sys.platform == "win32", reason="os.open opens no file of nbshare there")
def test_a_file_that_another_machine_has_replaced_is_read_again(tmp_path, monkeypatch):
    """A network file system may know the file before, and refuses it once (ESTALE)."""
    parallel_map(math.sqrt, [0, 1, 4, 9, 16], checkpoint=tmp_path / "run")
    was_refused = set()

    def refusing(path, *args):
        if str(path).startswith(str(tmp_path)) and path not in was_refused:
            was_refused.add(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return opened(path, *args)

    opened = os.open
    monkeypatch.setattr("os.open", refusing)
    stored = open_checkpoint(tmp_path / "run")
    assert stored.results().tolist() == [0, 1, 2, 3, 4]
    assert "5 of 5 items" in repr(stored)
    assert was_refused
