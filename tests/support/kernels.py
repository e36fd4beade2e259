"""Real Jupyter kernels, spoken to as a notebook does."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

from tests.support.faultlab import LIMIT_S, PREAMBLE, Lab, wait_until


@dataclass
class Cell:
    """The outcome of an executed cell."""

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
        """Wait until a kernel that has been started or restarted listens, and prepare it."""
        lab, runs = self._lab, self.manager.is_alive
        lab.watch_shm(self.pid, runs)
        self.client.wait_for_ready(timeout=LIMIT_S)
        assert self.run(PREAMBLE).status == "ok"

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return self.manager.provisioner.pid

    def start(self, code: str, cell: str = "") -> str:
        """Send a cell, which the front end calls `cell`. It may have to queue."""
        content = {"code": code, "silent": False, "store_history": True, "stop_on_error": True}
        content |= {"user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {"cellId": cell} if cell else {}
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def finish(self, request: str) -> Cell:
        """Wait for the end of a cell."""
        deadline = time.monotonic() + LIMIT_S
        cell = self._cells[request]
        while not (cell.status == "aborted" or (cell.status and request in self._ended)):
            assert time.monotonic() < deadline, f"the cell hangs: {cell}"
            self._listen()
        return cell

    def await_row(self, request: str) -> None:
        """Wait until a cell has shown its bar for a moment, as no person is quicker."""
        wait_until(lambda: self._listen() or self._cells[request].rows, what="no bar")
        time.sleep(0.1)

    def await_busy(self, request: str) -> None:
        """Wait until a cell runs, and a moment more, so that it is in the middle of something."""
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
        """Hang up. The kernel ends at once if it still runs."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._log.close()


class OneKernel:
    """A kernel for many tests. None finds names of another. A kernel that is lost is replaced.

    Parameters
    ----------
    new_folder : callable
        Gives an empty folder for a kernel.
    """

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._kept: tuple[Lab, Kernel] | None = None

    @contextlib.contextmanager
    def lent(self) -> Iterator[tuple[Lab, Kernel]]:
        """Give the laboratory and the kernel."""
        if self._kept is None:
            lab = Lab(self._new_folder())
            try:
                self._kept = lab, Kernel(lab)
            except BaseException:
                lab.close()
                raise
            self._kept[1].run_well("names_before = {*globals(), 'names_before'}")
        lab, kernel = self._kept
        yield lab, kernel
        try:
            kernel.run_well(f"""
os.chdir({str(lab.folder)!r})
for name in globals().keys() - names_before:
    del globals()[name]
gc.collect()
""")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the kernel. Nothing may be left of it."""
        if self._kept is not None:
            (lab, kernel), self._kept = self._kept, None
            try:
                kernel.close()
            finally:
                lab.close()


LONG = "parallel_map(functools.partial(tasks.hang, {how!r}), range(8), max_workers=2, chunksize=1)"


FAILING = '''
from math import sqrt
def root(x):
    if x == 7:
        raise ValueError(f"no root of {x}")
    return x**0.5

def deep(x, n=30):
    return deep(x, n - 1) if n else other(x, 9)

def other(x, n):
    return other(x, n - 1) if n else root(x)

def explains(x):
    """Fail with many words."""
    raise RuntimeError("many\\nlines\\n" * 30)

class Strange(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def strange(x):
    raise Strange(1, 2)
'''


class Page(Kernel):
    """A kernel of a server, and the front end that presses the buttons of its rows."""

    def __init__(self, lab, **environ):
        self.html, self.kinds = [], []  # of what comes
        lab.environ = {**lab.environ, **environ}
        super().__init__(lab)

    def _take(self, message):
        super()._take(message)
        if message["msg_type"] in ("display_data", "stream"):
            self.kinds.append(message["msg_type"])
        self.html.append(message["content"].get("data", {}).get("text/html", ""))

    def press(self, row):
        """Send what the button in a row sends."""
        self._ask("nbshare_rows", {"stop": row})

    def look(self, row):
        """Send the message of the script in a row. Return what it is to show."""
        return self._ask("nbshare_rows", {"rows": [row]})["rows"][row]

    def _ask(self, kind, content):
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=5)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return reply["content"]

    def await_rows(self, request, n=1):
        """Wait until a cell has some rows of which the last one runs. Return their ids."""

        def is_running():
            self._listen()
            rows = self._cells[request].rows
            return len(rows) >= n and re.search("starting|running", rows[-1])

        wait_until(is_running, what="no row")
        return list(self._cells[request].displays)


def listening(folder):
    """Give a kernel that a server has started to many tests."""
    lab = Lab(folder)
    try:
        page = Page(lab, JPY_SESSION_NAME="maps.ipynb")
        try:
            lab.folder.joinpath("failing.py").write_text(FAILING)
            assert page.run("import failing; tasks.check_double()").status == "ok"
            yield page
        finally:
            page.close()
    finally:
        lab.close()
