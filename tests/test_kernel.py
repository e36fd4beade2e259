"""The fault catalogue in a real Jupyter kernel, spoken to as a notebook does.

The ids are the catalogue's, as in ``test_faults.py``; that nothing is left in ``/dev/shm``,
``TMPDIR`` or among the processes is checked after every one (`Lab.close`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from faultlab import LIMIT_S, PREAMBLE, SOON_S, STUMBLES, Lab, cpu_s, wait_until
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager


@dataclass
class Cell:
    """What became of an executed cell."""

    status: str = ""
    error: str = ""  # the exception's class
    traceback: str = ""  # as shown
    stdout: str = ""
    stderr: str = ""
    result: str = ""  # of its last line
    displays: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    mimetypes: set[str] = field(default_factory=set)  # of what was displayed

    @property
    def rows(self) -> list[str]:
        """The last state of each output that was shown, as text."""
        return [states[-1] for states in self.displays.values()]


class Kernel:
    """A kernel of a laboratory, and the front end that it talks to."""

    def __init__(self, lab: Lab, wrapper: Iterable[str] = ()) -> None:
        self._lab = lab
        spec = lab.folder / "kernels" / "lab" / "kernel.json"
        spec.parent.mkdir(parents=True)
        module = "-m", "ipykernel_launcher", "-f", "{connection_file}"
        argv = lab.command(*module, wrapper=wrapper)
        spec.write_text(json.dumps({"argv": argv, "display_name": "lab", "language": "python"}))
        specs = KernelSpecManager(kernel_dirs=[str(spec.parents[1])], ensure_native_kernel=False)
        self.manager = KernelManager(
            kernel_name="lab",
            kernel_spec_manager=specs,
            connection_file=str(lab.folder / "connection.json"),
        )
        self._cells: dict[str, Cell] = defaultdict(Cell)
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._log = lab.folder.joinpath("stderr-kernel").open("wb")
        self.manager.start_kernel(
            cwd=str(lab.folder), env=lab.environ, stdout=self._log, stderr=self._log
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.meet()

    def meet(self) -> None:
        """Wait until a kernel that has been started or restarted listens; prepare it."""
        lab, runs = self._lab, self.manager.is_alive
        lab.watch_shm(self.pid, runs)
        self.client.wait_for_ready(timeout=LIMIT_S)
        assert self.run(PREAMBLE).status == "ok"

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return self.manager.provisioner.pid

    def start(self, code: str) -> str:
        """Send a cell; it may have to queue."""
        return self.client.execute(code)

    def finish(self, request: str) -> Cell:
        """Wait for the end of a cell."""
        deadline = time.monotonic() + LIMIT_S
        cell = self._cells[request]
        while not (cell.status == "aborted" or (cell.status and request in self._ended)):
            assert time.monotonic() < deadline, f"the cell hangs: {cell}"
            self._listen()
        return cell

    def await_row(self, request: str) -> None:
        """Wait until a cell has shown its bar for a moment: nobody is quicker with the button."""
        wait_until(lambda: self._listen() or self._cells[request].rows, what="no bar")
        time.sleep(0.1)

    def await_busy(self, request: str) -> None:
        """Wait until a cell runs, and a moment more: it is to be in the middle of something."""
        wait_until(lambda: self._listen() or request in self._begun, what="the cell waits")
        time.sleep(0.1)

    def run(self, code: str) -> Cell:
        """Execute a cell."""
        return self.finish(self.start(code))

    def run_well(self, code: str) -> Cell:
        """Execute a cell that must end well."""
        cell = self.run(code)
        assert cell.status == "ok", cell.traceback
        return cell

    def _listen(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self.client.get_iopub_msg(timeout=0.05))
        try:
            message = self.client.get_shell_msg(timeout=0)
        except queue.Empty:
            return
        if message["msg_type"] == "execute_reply":
            self._cells[message["parent_header"]["msg_id"]].status = message["content"]["status"]

    def _take(self, message: dict[str, Any]) -> None:
        request = message["parent_header"].get("msg_id", "")
        cell, content = self._cells[request], message["content"]
        match message["msg_type"]:
            case "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
            case "error":
                cell.error, cell.traceback = content["ename"], "\n".join(content["traceback"])
            case "display_data" | "update_display_data":
                name = content["transient"]["display_id"]
                cell.displays[name].append(content["data"]["text/plain"])
                cell.mimetypes.update(content["data"])
            case "execute_result":
                cell.result = content["data"]["text/plain"]
            case "status" if content["execution_state"] == "busy":
                self._begun.add(request)
            case "status" if content["execution_state"] == "idle":
                self._ended.add(request)

    def close(self) -> None:
        """Hang up; the kernel ends at once if it still runs."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._log.close()


@pytest.fixture
def kernel(lab):
    """Give a kernel of its own to a test."""
    kernel = Kernel(lab)
    try:
        yield kernel
    finally:
        kernel.close()


# ------------------------------------------------------------ E, D: items that fail


PLOTTED = "E1-exception", "E3-result-unpicklable", "D1-SIGKILL", "D3-exit"


@pytest.mark.parametrize("row", STUMBLES, ids=lambda row: row.id)
def test_a_failing_item(common, row):
    """The failure is named with its item at once, what is done is kept, the next call works."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    cell = kernel.run(f"faultlab.provoke({row.way!r})")
    assert cell.status == "ok", cell.traceback
    row.check(lab.facts)


@pytest.mark.parametrize("row", [s for s in STUMBLES if s.id in PLOTTED], ids=lambda row: row.id)
def test_a_failing_item_under_a_live_plot(common, row):
    """The failure is the same with a picture of the results on the page, which stays."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    kernel.run_well("parallel_map(tasks.double, range(4), plot='line')")  # imports Matplotlib
    cell = kernel.run_well(f"faultlab.provoke({row.way!r}, plot='line')")
    row.check(lab.facts)
    assert "image/png" in cell.mimetypes
    assert "Traceback" not in cell.stderr


def test_t1_an_item_takes_too_long_under_a_live_plot(common):
    """The time-out is the same with a picture of the results on the page, which stays."""
    _, kernel = common
    cell = kernel.run_well("""
start = time.monotonic()
try:
    parallel_map(functools.partial(tasks.hang, "gil"), range(6), max_workers=2, chunksize=1,
                 timeout=0.5, plot="line")
except TimeoutError as error:
    assert "(4)" in str(error) or "(5)" in str(error), error
else:
    raise AssertionError("no error")
assert time.monotonic() - start < 0.5 + faultlab.SOON_S
assert last_job().partial()[:4].tolist() == [0.0, 10.0, 20.0, 30.0]
tasks.check_double()
""")
    assert "image/png" in cell.mimetypes


def test_e1_what_a_failed_cell_shows(common):
    """A failed cell shows the worker's line and the item; its row says so; the queue stops."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    failing = kernel.start("""
stones = [f"stone-{i}" for i in range(8)]
parallel_map(functools.partial(tasks.stumble, "raises"), stones, max_workers=2, chunksize=1)
""")
    queued = kernel.start("raise SystemError('a queued cell ran')")
    cell = kernel.finish(failing)
    assert cell.error == "ValueError"
    assert "no way on" in cell.traceback
    assert "in raises" in cell.traceback
    assert "item 3 ('stone-3')" in cell.traceback
    assert kernel.finish(queued).status == "aborted"
    (row,) = cell.rows
    assert "failed" in row
    cell = kernel.run("print(last_job().errors[3], last_job().n_done)")
    assert cell.stdout.startswith("no way on ")


# ------------------------------------------------------------------- I: interrupts

LONG = "parallel_map(functools.partial(tasks.hang, {how!r}), range(8), max_workers=2, chunksize=1)"


@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("how", ["sleep", "beat", "gil", "c"])
def test_i1_i4_the_kernel_is_interrupted(lab, kernel, how, presses):
    """■ ends the cell at once in one line, Run All stops, nobody computes on, results are kept."""
    assert kernel.run("tasks.check_double()").status == "ok"
    interrupted = kernel.start(LONG.format(how=how))
    queued = kernel.start("raise SystemError('a queued cell ran')")
    busy = {int(flag.split("-")[2]) for flag in lab.await_flag("busy-*", 2)}
    kernel.await_row(interrupted)
    at = time.monotonic()
    for _ in range(presses):
        kernel.manager.interrupt_kernel()
        time.sleep(0.01)
    cell = kernel.finish(interrupted)
    assert time.monotonic() - at < SOON_S
    assert cell.status == "error"
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) <= 5
    assert "4 of 8" in cell.traceback
    assert "Traceback" not in cell.stderr + cell.stdout
    (row,) = cell.rows
    assert "■" in row
    assert "interrupted" in row
    assert "4/8" in row
    assert kernel.finish(queued).status == "aborted"
    wait_until(lambda: all(cpu_s(pid) is None for pid in busy), SOON_S, "items run on")
    start = time.monotonic()
    cell = kernel.run("print(last_job().partial())")
    assert cell.status == "ok", cell.traceback
    assert cell.stdout == "[0.0 10.0 20.0 30.0 -- -- -- --]\n"
    cell = kernel.run("tasks.check_double()")
    assert cell.status == "ok", cell.traceback
    assert time.monotonic() - start < SOON_S


def test_i1_the_kernel_is_interrupted_under_a_live_plot(common):
    """■ ends the cell at once, keeps what is done and the picture of it; the next call works."""
    lab, kernel = common
    for path in lab.folder.glob("busy-*"):
        path.unlink()
    interrupted = kernel.start("""
task = functools.partial(tasks.hang, "gil")
parallel_map(task, range(8), max_workers=2, chunksize=1, plot="line")
""")
    lab.await_flag("busy-*", 2)
    kernel.await_row(interrupted)
    at = time.monotonic()
    kernel.manager.interrupt_kernel()
    cell = kernel.finish(interrupted)
    assert time.monotonic() - at < SOON_S
    assert cell.error == "MapInterrupted"
    assert "image/png" in cell.mimetypes
    kernel.run_well("""
assert last_job().partial().compressed().tolist() == [0.0, 10.0, 20.0, 30.0]
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < faultlab.SOON_S
""")


def test_i2_the_kernel_is_interrupted_while_inputs_are_copied(kernel):
    """■ in the middle of a copy ends the cell in one line, and frees the memory."""
    kernel.run("tasks.check_double()")
    # The kernel presses the button itself, as soon as some of the copy is there.
    cell = kernel.run("""
def press():
    wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) > 20 << 20)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
parallel_map(tasks.last_of, range(4), shared={"elevation": np.zeros(300 << 20, np.uint8)})
""")
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) <= 5
    cell = kernel.run("print(faultlab.memfd_bytes([os.getpid()]) >> 20)")
    assert int(cell.stdout) < 20


# -------------------------------------------------------------- K: ends of the kernel

ENDS = {
    "K1-killed": lambda kernel: os.kill(kernel.pid, signal.SIGKILL),
    "K2-group-killed": lambda kernel: os.killpg(kernel.pid, signal.SIGKILL),
    "K2-restarted-at-once": lambda kernel: kernel.manager.restart_kernel(now=True),
    "K2-restarted": lambda kernel: kernel.manager.restart_kernel(now=False),
    "K4-shut-down": lambda kernel: kernel.manager.shutdown_kernel(now=False),
}


@pytest.mark.parametrize("during", ["idle", "beat", "gil", "program"])
@pytest.mark.parametrize("end", ENDS)
def test_nobody_outlives_a_kernel(lab, kernel, end, during):
    """However the kernel ends, workers and what they started go; a new kernel works at once."""
    assert kernel.run("kept = nbshare.zeros(1 << 20); tasks.check_double()").status == "ok"
    if during != "idle":
        kernel.start(LONG.format(how=during))
        lab.await_flag("busy-*", 2)
    if during == "program":
        wait_until(lambda: len(lab.processes()) >= 6, what="no programs")
    before = lab.processes()
    assert len(before) >= 4
    ENDS[end](kernel)
    wait_until(lambda: not before & lab.processes(), SOON_S, lambda: f"alive: {lab.names()}")
    if "restarted" in end:
        kernel.meet()
        cell = kernel.run("tasks.check_double(); print('right')")
        assert cell.stdout == "right\n", cell
        assert cell.stderr == ""
