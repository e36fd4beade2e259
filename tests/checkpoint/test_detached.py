"""Runs in a process of their own. They outlive their kernel, and any process can attach to them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import operator
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
import psutil
import pytest

import nbshare
from nbshare import Checkpoint, attach, map_async, parallel_map
from nbshare.__main__ import main
from nbshare.errors import CheckpointError, CheckpointInUseError, TaskError, WorkerDiedError
from tests.support import graphs, objects, policies, sweeps
from tests.support.faultlab import LIMIT_S, PREAMBLE, PYTHON_PATH, SOON_S, Lab, wait_until
from tests.support.kernels import Kernel, Page
from tests.support.processes import end_drivers, kill_now

HAS_NOTICES = pytest.mark.skipif(
    sys.platform == "win32", reason="no other process can send signals there"
)
TWICE = [2.0 * i for i in range(12)]
CELL = """
from tests.support import sweeps
def gated(x, log):
    return sweeps.gated(x, log)
call = functools.partial(nbshare.map_async, gated, range(12), shared={"log": "log"},
                         checkpoint="run", max_workers=2, chunksize=1)
"""


@pytest.fixture(autouse=True)
def nobody_left():
    """End what a test that failed leaves behind."""
    yield
    end_drivers()
    for process in Command.processes:
        process.kill()
        process.wait()
    Command.processes.clear()


@pytest.fixture
def sweep(tmp_path):
    """Start a detached run that goes on to item 4, and to the end when its gate is opened."""
    os.chdir(tmp_path)
    options = {"shared": {"log": str(tmp_path / "log")}, "checkpoint": tmp_path / "run"}
    options |= {"max_workers": 2, "chunksize": 1, "detach": True}
    return lambda **more: map_async(sweeps.gated, range(12), **(options | more))


def driver_of(path):
    """Return the process that drives a run."""
    return psutil.Process(json.loads((path / "lease.json").read_text())["pid"])


def await_gate(path):
    """Wait until all items before the gate are stored. Return the job of the run."""
    job = attach(path)
    wait_until(lambda: job.n_done >= 4)
    return job


def test_objects_that_items_and_function_have_in_common_stay_one(tmp_path):
    """The call is stored as a whole, so items are parts of the function in its driver, too."""
    nodes = [graphs.Node() for _ in range(3)]
    func = partial(graphs.shape, nodes)
    job = map_async(func, nodes, checkpoint=tmp_path / "run", detach=True, out="list")
    assert job.result(60) == [func(node) for node in nodes]


class Viewer(Page):
    """A kernel's front end that keeps the last pictures of plots, which are twice as sharp."""

    def __init__(self, lab):
        self.pictures = []
        super().__init__(lab, JPY_SESSION_NAME="test.ipynb")

    def _take(self, message):
        super()._take(message)
        content = message["content"]
        if picture := content.get("data", {}).get("image/png"):
            width = int.from_bytes(base64.b64decode(picture)[16:20])
            if width == 2 * content["metadata"]["image/png"]["width"]:
                self.pictures.append(picture)

    def last_picture(self):
        """Return the last picture of runs that are over, once all are drawn."""
        self.run_well("""
for thread in threading.enumerate():
    if "(_follow)" in thread.name:
        thread.join()
""")
        return self.pictures.pop()


def test_arrays_keep_their_attributes(tmp_path):
    """The call is stored by the pickles of results, so nothing is lost that is not in others."""
    options = {"checkpoint": tmp_path / "run", "detach": True, "max_workers": 1, "out": "list"}
    item = objects.small_labelled("ozone")
    shared = {"other": item["array"], "view": memoryview(b"abc").cast("c")}
    job = map_async(objects.told, [item], shared=shared, **options)
    assert job.result() == [["ozone", "ozone", [b"a", b"b", b"c"]]]


@pytest.fixture(scope="module")
def viewers(tmp_path_factory):
    """Give two kernels to the tests below. One knows nothing of what the other does."""
    with contextlib.ExitStack() as stack:
        kernels = []
        for name in ("running", "attaching"):
            lab = stack.enter_context(contextlib.closing(Lab(tmp_path_factory.mktemp(name))))
            kernels.append(stack.enter_context(contextlib.closing(Viewer(lab))))
        yield kernels


# --------------------------------------------------------------------- what it outlives


def test_it_outlives_its_kernel(lab):
    """Killed with its group, as by "Restart Kernel". The same call in a new one runs nothing.

    Before that, its Stop button stops the run.
    """
    kernel = Page(lab, JPY_SESSION_NAME="test.ipynb")
    try:
        kernel.run_well(f"{CELL}job = call(detach=True)")
        await_gate(lab.folder / "run")
        wait_until(lambda: len((lab.folder / "log").read_text().split()) == 6)
        request = kernel.start("nbshare.attach('run')")
        (row,) = kernel.await_rows(request)
        assert "4/12" in kernel.look(row)["html"]
        kernel.press(row)
        kernel.run_well("assert job.wait(20) and job.state == 'stopped'")
        kernel.run_well("job = call(detach=True)")
        job = await_gate(lab.folder / "run")
        if sys.platform == "win32":  # where a restart kills the kernel alone
            kill_now(kernel.pid)
        else:
            os.killpg(os.getpgid(kernel.pid), signal.SIGKILL)
        kernel.manager.restart_kernel(now=True)
        assert job.running()
        lab.raise_flag("gate")
        assert job.result().tolist() == TWICE
        ran = sweeps.noted(lab.folder / "log")
        assert sorted(set(ran), key=int) == [str(x) for x in range(12)]
        assert [ran.count(str(x)) for x in range(12)] == [1] * 4 + [2] * 2 + [1] * 6
        kernel.client.wait_for_ready(timeout=20)
        kernel.run_well(f"{PREAMBLE}{CELL}assert call().result().tolist() == {TWICE}")
        cell = kernel.run_well("nbshare.attach('run')")
        assert "gated done  12/12" in cell.rows[0]
        assert sweeps.noted(lab.folder / "log") == []
    finally:
        kernel.close()


def test_it_outlives_a_kernel_that_jupyter_shuts_down(lab):
    """Before a restart, or for good. The kernel itself ends all of its children then."""
    kernel = Kernel(lab)
    try:
        for name, end in ("first", "restart_kernel"), ("second", "shutdown_kernel"):
            kernel.run_well(f"{PREAMBLE}{CELL}call(detach=True, checkpoint={name!r})")
            await_gate(lab.folder / name)
            getattr(kernel.manager, end)(now=False)
            if end == "restart_kernel":
                kernel.client.wait_for_ready(timeout=LIMIT_S)
        drivers = [driver_of(lab.folder / name) for name in ("first", "second")]
        jobs = [attach(lab.folder / name) for name in ("first", "second")]
        assert all(driver.is_running() for driver in drivers)
        lab.raise_flag("gate")
        assert [job.result().tolist() for job in jobs] == [TWICE, TWICE]
        psutil.wait_procs(drivers, LIMIT_S)
    finally:
        kernel.close()


@pytest.mark.first
@pytest.mark.parametrize("way", ["call", "folder"])
def test_a_killed_driver_is_said_and_continued(sweep, tmp_path, way, monkeypatch):
    """By the same call, or from its folder alone. No item that is stored runs again."""
    job = sweep()
    await_gate(tmp_path / "run")
    driver_of(tmp_path / "run").kill()
    with pytest.raises(WorkerDiedError, match=r"was killed.* 4 of 12.*make the same call"):
        job.result()
    hour_later_s = time.time() + 3600
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: hour_later_s)
        late = attach(tmp_path / "run")
    assert late.partial().compressed().tolist() == TWICE[:4]
    assert late.elapsed_s < 60
    (tmp_path / "gate").touch()
    sweeps.noted(tmp_path / "log")
    if way == "call":
        assert sweep().result().tolist() == TWICE
    else:
        assert Command(tmp_path, "resume", "run").ended() == 0
    assert sweeps.noted(tmp_path / "log") == sorted(map(str, range(4, 12)))
    assert attach(tmp_path / "run").result().tolist() == TWICE


@pytest.mark.skipif(sys.platform == "win32", reason="what is open cannot be renamed there")
def test_a_run_whose_folder_is_removed_ends(sweep, tmp_path):
    """With an error, as nobody would get its results. It was done, with no items."""
    job = sweep()
    await_gate(tmp_path / "run")
    driver = driver_of(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="is missing"):
        job.result(10)
    assert job.state == "failed"
    psutil.wait_procs([driver], timeout=10)
    assert not driver.is_running()


# ------------------------------------------------------------------------- what a job does


@pytest.mark.first
def test_any_process_can_stop_it(sweep, tmp_path, script, capfd):
    """All that are attached see it, with the results so far. The same call continues."""
    job = sweep()
    await_gate(tmp_path / "run")
    code = f"import nbshare\njob = nbshare.attach({str(tmp_path / 'run')!r})\n"
    code += "print(job.cancel(), job.wait(), job.state, job.cancelled(), job.cancel())"
    assert script(code) == "True True stopped True False\n"
    assert job.wait(10)
    assert job.state == "stopped"
    with pytest.warns(nbshare.errors.PartialResultWarning, match="4 of 12 items done"):
        assert job.result().compressed().tolist() == TWICE[:4]
    assert "interrupted" not in capfd.readouterr().out  # which is for the log
    (tmp_path / "gate").touch()
    assert sweep().result().tolist() == TWICE


def test_jobs_that_nobody_keeps_leave_nothing(sweep, tmp_path):
    """The thread that watches the run ends, though the run continues."""
    job = sweep()
    n_threads = psutil.Process().num_threads()
    for _ in range(3):
        assert attach(tmp_path / "run").running()
    assert nbshare.last_job().running()
    nbshare._core.jobs.job.remember(None)
    wait_until(lambda: psutil.Process().num_threads() <= n_threads)
    (tmp_path / "gate").touch()
    assert job.result().tolist() == TWICE


@pytest.mark.first
def test_attached_jobs_follow_it(sweep, tmp_path):
    """Two at the same time, from the first second on, each with all results once."""
    begun = time.monotonic()
    first, second = sweep(), None
    assert first.n_workers == 2
    wait_until(lambda: first.n_done >= 4)
    began = time.monotonic()
    second = attach(tmp_path / "run")
    assert time.monotonic() - began < SOON_S
    assert (second.state, second.n_done, second.n_items) == ("running", 4, 12)
    assert second.present.tolist() == 4 * [True] + 8 * [False]
    assert second.partial().compressed().tolist() == TWICE[:4]
    (tmp_path / "gate").touch()
    assert dict(first) == dict(second) == dict(enumerate(TWICE))
    assert second.state == "done"
    assert 0 < second.elapsed_s < time.monotonic() - begun
    assert attach(tmp_path / "run").elapsed_s == pytest.approx(second.elapsed_s, abs=2)
    with pytest.raises(LookupError, match="another process"):
        second.debug(0)


def test_its_job_knows_that_it_is_detached_and_what_was_run_again(tmp_path):
    """Though its workers belong to another process."""
    options = {"shared": {"bad": {3}}, "retries": 1, "max_workers": 1, "detach": True}
    job = map_async(policies.fail_first, range(5), checkpoint=tmp_path / "run", **options)
    assert job._run.is_detached
    assert job.result().tolist() == list(range(5))
    assert job._run.retried().tolist() == [3]


def test_one_value_of_all_results(sweep, tmp_path):
    """By ``reduce=``: as it grows and in the end, in any process. A job counts the items."""
    shared, path = {"log": str(tmp_path / "log")}, tmp_path / "run"
    options = {"shared": shared, "reduce": operator.add, "checkpoint": path, "max_workers": 2}
    job = map_async(sweeps.gated, range(200), chunksize=1, detach=True, **options)
    attached = await_gate(path)
    assert (attached.n_done, attached.n_items, attached.partial()) == (4, 200, sum(TWICE[:4]))
    assert attached.present.tolist() == 4 * [True] + 196 * [False]
    (tmp_path / "gate").touch()
    whole = sum(2.0 * i for i in range(200))
    assert (job.result(), attached.result(), attach(path).result()) == (whole,) * 3
    assert (attached.n_done, attached.state) == (200, "done")


@pytest.mark.parametrize(
    "options",
    [
        {"until": lambda partial: partial.count() >= 20},
        {"until": lambda value, n: n >= 20, "reduce": operator.add},
    ],
)
def test_enough_is_enough(tmp_path, options):
    """The driver asks ``until=``, and the run is done."""
    options |= {"shared": {"log": str(tmp_path / "log")}, "checkpoint": tmp_path / "run"}
    job = map_async(sweeps.slow, range(5000), detach=True, **options)
    job.result()
    assert job.state == "done"
    assert 0 < job.n_done < 5000


@pytest.mark.skipif(sys.platform == "win32", reason="what is open cannot be removed there")
def test_an_error_of_the_thread_that_watches_ends_the_job(sweep, tmp_path):
    """With that error. The run itself goes on."""
    job = sweep()
    await_gate(tmp_path / "run")
    log = tmp_path / "run" / "driver" / "log.txt"
    log.unlink()
    log.mkdir()
    with pytest.raises(CheckpointError, match=r"log\.txt is a folder"):
        job.result(5)
    assert job.state == "failed"
    (tmp_path / "gate").touch()
    driver_of(tmp_path / "run").wait(20)


def test_an_attached_job_knows_what_was_stored_before_its_run(tmp_path):
    """So its rate counts what has run, 2 items of this call, none of a call without new ones."""
    options = {"shared": {"log": str(tmp_path / "log")}, "checkpoint": tmp_path / "run"}
    for n, n_before in ((5, 0), (7, 5), (7, 7)):
        parallel_map(sweeps.number, range(n), **options)
        assert attach(tmp_path / "run")._run.n_restored == n_before


@pytest.mark.first
def test_results_have_the_form_that_was_asked_for(tmp_path, capfd):
    """As without a driver. Prints of workers appear."""
    shared = {"log": str(tmp_path / "log")}
    options = {"shared": shared, "out": "stack", "detach": True}
    (tmp_path / "pairs.py").write_text("from tests.support.sweeps import pair as together")
    pair = f"{tmp_path / 'pairs.py'}:together"
    job = map_async(pair, [3, 1, 2], checkpoint=tmp_path / "run", **options)
    numbers, rows = job.result()
    assert numbers.tolist() == [3, 1, 2]
    assert rows.tolist() == [[3] * 3, [1] * 3, [2] * 3]
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "pair 1", "pair 2", "pair 3"]
    job = map_async(pair, [], checkpoint=tmp_path / "none", **options)
    assert job.result() == []


def test_failures_come_as_themselves(tmp_path):
    """As the error of the run, or by item."""
    (tmp_path / "broken").touch()
    shared = {"log": str(tmp_path / "log")}
    options = {"checkpoint": tmp_path / "one", "max_workers": 1, "detach": True}
    job = map_async(sweeps.fragile, range(10), shared=shared, **options)
    with pytest.raises(ValueError, match=r"^no 3\n") as raised:
        job.result()
    assert "item 3" in raised.value.__notes__[0]
    assert attach(tmp_path / "one").state == "failed"
    path, options = tmp_path / "two", {"on_error": "return", "detach": True}
    job = map_async(sweeps.fragile, range(10), shared=shared, checkpoint=path, **options)
    assert job.result().mask.tolist() == [i % 5 == 3 for i in range(10)]
    assert job.n_done == 10
    assert isinstance(job.errors[8], TaskError)
    assert str(job.errors[8]) == "ValueError: no 8"
    assert {i: str(x) for i, x in job}[8] == "ValueError: no 8"
    (tmp_path / "broken").unlink()
    job = map_async(sweeps.fragile, range(10), shared=shared, checkpoint=path, detach=True)
    assert job.errors == {}
    assert job.result().tolist() == list(range(10))


def test_a_run_of_another_process_can_be_watched_only(tmp_path, lab):
    """One that is not detached is stopped where it was begun."""
    subject = lab.start(f"{CELL}call().result()")
    wait_until((lab.folder / "run" / "lease.json").exists)
    job = await_gate(lab.folder / "run")
    with pytest.raises(RuntimeError, match=rf"process {subject.pid} .* only it can stop the call"):
        job.cancel()
    lab.raise_flag("gate")
    assert job.result().tolist() == TWICE
    assert subject.wait() == 0


def test_a_row_says_why_stop_does_nothing_and_what_outlives_its_kernel(sweep, tmp_path, viewers):
    """In place of the button, which had said "stopping…" for ever. The page has the other text."""
    job = sweep(detach=False)
    await_gate(tmp_path / "run")
    _, kernel = viewers
    (row,) = kernel.await_rows(kernel.start(f"nbshare.attach({str(tmp_path / 'run')!r})"))
    assert ">Stop<" in kernel.look(row)["html"]
    kernel.press(row)
    shown = kernel.look(row)["html"]
    assert "only it can stop the call" in shown
    assert "<button" not in shown
    scripts = [html for html in kernel.html if "<script>" in html]
    text = f"gated: its kernel has ended; nbshare.attach('{tmp_path / 'run'}')"
    assert any(text in script for script in scripts)
    (tmp_path / "gate").touch()
    assert job.result().tolist() == TWICE


# --------------------------------------------------------------------- how it begins


def test_it_is_refused_before_anything_starts(sweep, tmp_path):
    """With what to do instead."""
    with pytest.raises(ValueError, match="needs checkpoint="):
        sweep(checkpoint=None)
    with pytest.raises(TypeError, match="cannot fill out="):
        sweep(out=np.zeros(12))
    with pytest.raises(TypeError, match="make a list"):
        map_async(abs, iter([1]), checkpoint=tmp_path / "run", detach=True)
    with pytest.raises(TypeError, match="cannot be pickled"):
        map_async(abs, [sys._getframe()], checkpoint=tmp_path / "run", detach=True)
    with pytest.raises(TypeError, match=r"use map_async\(\.\.\., detach=True\)"):
        parallel_map(abs, [1], detach=True)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        sweep(checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"no meta\.json"):
        attach(tmp_path)
    assert not (tmp_path / "driver").exists()


def test_what_its_driver_refuses_is_raised_by_the_call(sweep, tmp_path):
    """A run that is on, and results of another function. The run that is on is not disturbed."""
    job = sweep()
    driver = driver_of(tmp_path / "run")
    with pytest.raises(CheckpointInUseError, match=r"is writing to this checkpoint.*attach\("):
        sweep()
    assert driver_of(tmp_path / "run") == driver
    (tmp_path / "gate").touch()
    assert job.result().tolist() == TWICE
    with pytest.raises(CheckpointError, match="12 of 12 results belong to the older version"):
        map_async(sweeps.number, range(12), checkpoint=tmp_path / "run", detach=True,
                  shared={"log": str(tmp_path / "log")})  # fmt: skip


def test_the_options_of_its_checkpoint_reach_its_driver(tmp_path):
    """Results of another function are run again there, if that is what they say."""
    call = {"shared": {"log": str(tmp_path / "log")}, "detach": True}
    map_async(sweeps.number, range(4), checkpoint=tmp_path / "run", **call).wait()
    again = Checkpoint(tmp_path / "run", if_changed="restart")
    job = map_async(sweeps.integer, range(4), checkpoint=again, **call)
    assert job.result().tolist() == [0, 3, 6, 9]


def test_large_arrays_are_stored_once(tmp_path):
    """Next to the function, until the run is complete, but never if they are in a file already."""
    table = np.arange(3e5).reshape(1000, 300)
    np.save(tmp_path / "table.npy", table)
    shared = {"plain": table, "shared": nbshare.share(table)}
    shared["mapped"] = np.load(tmp_path / "table.npy", mmap_mode="r")
    shared["gate"] = str(tmp_path / "gate")
    path = tmp_path / "run"
    job = map_async(sweeps.column, range(300), shared=shared, checkpoint=path, detach=True)
    file = path / "driver" / "call.pickle"
    assert 0 < file.stat().st_size - 2 * table.nbytes < 20_000
    (tmp_path / "gate").touch()
    assert np.array_equal(job.result(), table[:3].sum(axis=0))
    if sys.platform != "win32":  # where a file stays while it is mapped
        wait_until(lambda: not file.exists())


# -------------------------------------------------------------------- the command line


class Command:
    """``python -m nbshare``, in a group of its own as in a shell."""

    processes: ClassVar[list[subprocess.Popen]] = []

    def __init__(self, folder, *arguments, output=None):
        self._log = folder.parent / f"{folder.name}.log"
        words = [sys.executable, "-m", "nbshare", *map(str, arguments)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                words, cwd=folder, stdout=log, stderr=output or log, start_new_session=True,
                env=os.environ | {"PYTHONPATH": PYTHON_PATH},  # also where nbshare is not installed
            )  # fmt: skip
        self.processes.append(self.process)

    @property
    def log(self):
        """The text that it has written."""
        return self._log.read_text()

    def ended(self):
        """Wait for its end. Return its exit code."""
        return self.process.wait(20)


@pytest.fixture
def swept(tmp_path):
    """Start the sweep from files."""
    np.save(tmp_path / "items.npy", np.arange(12))
    (tmp_path / "log.json").write_text(json.dumps(str(tmp_path / "log")))
    given = "--items", "items.npy", "--shared", "log=log.json"
    given += "--checkpoint", "run", "--max-workers", 2
    words = tmp_path, "run", f"{sweeps.__file__}:gated", *given
    return lambda *more, **options: Command(*words, *more, **options)


@HAS_NOTICES
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_scheduler_s_notice(swept, tmp_path, name):
    """No further item begins, those that run finish, exit 75. The same command runs the rest."""
    command = swept()
    wait_until((tmp_path / "run" / "lease.json").exists)
    job = await_gate(tmp_path / "run")
    wait_until(lambda: len((tmp_path / "log").read_text().split()) == 6)
    command.process.send_signal(getattr(signal, name))
    wait_until(lambda: "may finish within 30 s" in command.log)
    (tmp_path / "gate").touch()
    assert command.ended() == 75
    assert job.wait(5)
    assert (job.state, job.n_done) == ("stopped", 6)
    command = swept()
    assert command.ended() == 0
    assert "gated done: 12/12" in command.log
    assert sweeps.noted(tmp_path / "log") == sorted(map(str, range(12)))


@HAS_NOTICES
def test_a_notice_that_nobody_reads(swept, tmp_path):
    """As in a pipe whose other end got the signal first, with exit 75 all the same."""
    end, begin = os.pipe()
    command = swept("--grace", 0, output=begin)
    os.close(begin)
    wait_until((tmp_path / "run" / "lease.json").exists)
    await_gate(tmp_path / "run")
    os.close(end)
    command.process.terminate()
    assert command.ended() == 75


@HAS_NOTICES
@pytest.mark.parametrize("grace", [0, 0.1])
def test_items_that_take_too_long_after_the_notice(swept, tmp_path, grace):
    """Are ended when the grace is over, and run again next time."""
    command = swept("--grace", grace)
    wait_until((tmp_path / "run" / "lease.json").exists)
    job = await_gate(tmp_path / "run")
    command.process.terminate()
    assert command.ended() == 75
    assert job.wait(5)
    assert job.n_done == 4


@HAS_NOTICES
def test_a_notice_before_the_run(tmp_path):
    """While the function's file is being imported, with exit 75 immediately."""
    (tmp_path / "heavy.py").write_text("import pathlib, time\npathlib.Path('here').touch()\n"
                                       "time.sleep(60)\ndef f(x): return x\n")  # fmt: skip
    (tmp_path / "items.json").write_text("[1]")
    words = "--items", "items.json", "--checkpoint", "run"
    command = Command(tmp_path, "run", "heavy.py:f", *words)
    wait_until((tmp_path / "here").exists)
    command.process.terminate()
    assert command.ended() == 75


@pytest.mark.skipif(sys.platform == "win32", reason="no console, through which it could come")
def test_ctrl_c(swept, tmp_path):
    """Exit 130, and where the results are."""
    command = swept()
    wait_until((tmp_path / "run" / "lease.json").exists)
    await_gate(tmp_path / "run")
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.ended() == 130
    assert f"nbshare run: interrupted; finished results are in {tmp_path}" in command.log


DROPS_AN_INTERRUPT = """
import os, signal, weakref
class Gone:
    pass
def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)
if not os.path.exists("imported"):
    open("imported", "x").close()
    gone = Gone()
    reference = weakref.ref(gone, interrupt)
    del gone
def f(x):
    return x
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no console, through which it could come")
def test_an_interrupt_whose_exception_python_drops(tmp_path):
    """It comes in a weak reference's callback, where no exception leads out."""
    (tmp_path / "work.py").write_text(DROPS_AN_INTERRUPT)
    (tmp_path / "items.json").write_text("[1, 2]")
    command = Command(tmp_path, "run", "work.py:f", "--items", "items.json", "--checkpoint", "run")
    assert command.ended() == 130
    assert "Exception ignored" in command.log


WORK = """
def join(word, number, table, rng):
    if word == "bad":
        raise KeyError("no such word")
    return f"{word} {number} {table['x']} {rng.integers(1, 2)}"
"""


def test_items_from_files(tmp_path):
    """Lines, a JSON list and an array. A failure is exit 1 with its item and its traceback."""
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    (tmp_path / "numbers.json").write_text("[1, 2]")
    (tmp_path / "table.json").write_text('{"x": 5}')
    given = "--items words.txt numbers.json --shared table=table.json --checkpoint run --seed 1"
    words = tmp_path, "run", "work.py:join", *given.split(), "--max-workers", "1"
    command = Command(*words)
    assert command.ended() == 0, command.log
    assert attach(tmp_path / "run").result() == ["one 1 5 1", "two 2 5 1"]
    (tmp_path / "words.txt").write_text("one\nbad\n")
    command = Command(*words)
    assert command.ended() == 1
    assert "nbshare run: KeyError: 'no such word'" in command.log
    assert "item 1" in command.log
    assert 'raise KeyError("no such word")' in command.log


def test_a_function_s_file_imports_its_neighbours(tmp_path):
    """As a script does, from whichever folder the command is given."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "neighbour.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "project" / "work.py").write_text("from neighbour import twice\n")
    (tmp_path / "items.json").write_text("[1, 2]")
    words = "--items", "items.json", "--checkpoint", "run"
    command = Command(tmp_path, "run", "project/work.py:twice", *words)
    assert command.ended() == 0, command.log
    assert attach(tmp_path / "run").result().tolist() == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run work.py:join --checkpoint run --items items.csv", "end with .npy, .json or .txt"),
        ("run work.py:join --checkpoint run --items items.npy", "No such file or directory"),
        ("resume .", "holds no call"),
    ],
)
def test_arguments_that_are_wrong(tmp_path, monkeypatch, capsys, arguments, says):
    """Are said in one line, and nothing is written."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of the file is added
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_files_that_are_wrong(tmp_path, monkeypatch, capsys):
    """Are named, those of items and of the function, with the line whose import fails."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of the file is added
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.json").write_text("[1")
    (tmp_path / "items.npy").write_text("no array")
    (tmp_path / "items.txt").write_text("one")
    (tmp_path / "breaks.py").write_text("import sys\nimport no_such_module\n")
    for kind in ("json", "npy"):
        assert main(f"run breaks.py:f --items items.{kind} --checkpoint run".split()) == 1
        assert f"run: items.{kind}: " in capsys.readouterr().err
    words = "breaks.py:f", "--items", "items.txt", "--checkpoint", "run"
    command = Command(tmp_path, "run", *words)
    assert command.ended() == 1
    told = command.log
    assert "ModuleNotFoundError: No module named 'no_such_module'\n" in told
    assert f'  File "{tmp_path / "breaks.py"}", line 2' in told
    assert "importlib" not in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--shared table.npy", "write name=file"),  # or nobody knows for which argument
        ("--grace -1", "write a number of seconds"),
        ("--grace nan", "write a number of seconds"),
    ],
)
def test_options_that_are_wrong(capsys, words, says):
    """Are said with how to write them."""
    with pytest.raises(SystemExit, match="2"):
        main(f"run f.py:f --items x.npy --checkpoint run {words}".split())
    assert says in capsys.readouterr().err


def test_a_label_stays_with_the_run(sweep, tmp_path):
    """Another process has its name from the checkpoint."""
    job = sweep(progress="night 3")
    assert job.label == attach(tmp_path / "run").label == "night 3"
    assert nbshare.open_checkpoint(tmp_path / "run").label == "night 3"
    job.cancel()
    job.wait()
    (tmp_path / "gate").touch()
    assert sweep(progress="night 4").result().tolist() == TWICE
    assert attach(tmp_path / "run").label == "night 4"


PLOTTED = """
import math, numpy as np, pandas as pd
from nbshare import LivePlot, grid, map_async, parallel_map

def twice(x, data=None):
    return 2 * x

def apart(a, b):
    return a - b

class Mine(LivePlot):
    def draw(self, axes, partial):
        axes.step(np.arange(len(partial)), partial)
"""


def below_title(picture):
    """Return the pixels of a PNG below its title.

    Its place, to a part of a pixel, depends on how often the figure was drawn before.
    """
    return plt.imread(io.BytesIO(base64.b64decode(picture)))[48:]


@pytest.mark.parametrize(
    "call",
    [
        "map_async(twice, pd.Series(np.geomspace(3, 9), name='high'), plot=LivePlot(unit='m'), {})",
        "map_async(apart, grid(a=[1, 2, 5], b=np.linspace(0, 1, 4)), plot='image', {})",
        "map_async(twice, range(9), plot=[Mine(), LivePlot(value=lambda x: -x)], {}, detach=True)",
    ],
    ids=["axes", "grid", "own, detached"],
)
def test_an_attached_job_draws_the_plot_of_its_run(viewers, call, tmp_path):
    """With the labels and the items at its axes, in a kernel that knows nothing of it.

    So does the same call again, for which nothing is left to run.
    """
    running, attaching = viewers
    for kernel in viewers:
        kernel.pictures.clear()
    path = str(tmp_path / "run")
    call = call.format(f"checkpoint={path!r}, progress='sizes'")
    running.run_well(f"{PLOTTED}job = {call}\njob.wait()")
    running.last_picture()  # whose axes are where those of a part of the results were
    running.run_well(f"job = {call}\njob.wait()")
    drawn = running.last_picture()
    cell = attaching.run_well(f"job = nbshare.attach({path!r}); job.wait()")
    assert np.array_equal(below_title(attaching.last_picture()), below_title(drawn))
    assert any("sizes done" in row for row in cell.rows)


def test_a_plot_that_cannot_be_loaded_is_said(viewers, tmp_path):
    """Once, with the remedy. Results and progress display are there."""
    _, kernel = viewers
    path = str(tmp_path / "run")
    kernel.run_well(f"parallel_map(abs, range(9), plot='line', checkpoint={path!r})")
    (tmp_path / "run" / "plot.pickle").write_bytes(b"of another version")
    cell = kernel.run_well(f"job = nbshare.attach({path!r}); print(job.result())")
    assert "0 1 2 3 4 5 6 7 8" in cell.stdout
    assert "Pass plot= to attach()" in cell.stderr
    kernel.run_well(f"parallel_map(abs, range(9), checkpoint={path!r})")
    assert kernel.run_well(f"job = nbshare.attach({path!r})").stderr == ""
