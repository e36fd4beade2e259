"""A laboratory for accidents of subjects, which own workers. Subjects are interrupted and killed.

A subject is a script or a kernel in a session of its own, with a tag in its environment by which
all its processes are found, a private ``TMPDIR`` and, where the system allows it, a private
``/dev/shm`` of 64 MB. After any accident, `Lab.close` sees to it that nothing is left.

Subjects import this module too, to `tell` what they saw, raise and await flags (files in the
working directory, which workers share), and `provoke` failures. So do their workers, so rare
imports are late.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.processes import TAG, cpu_s, is_asleep, kill_now, lives, parent_of, tagged

if TYPE_CHECKING:
    import subprocess

__all__ = ["cpu_s", "is_asleep", "parent_of", "tagged"]  # from here, too

T = TypeVar("T")

TESTS = Path(__file__).resolve().parents[1]
# The other system than Linux that is played (see CONTRIBUTING.md).
SYSTEM = {name: os.environ[name] for name in ("NBSHARE_SYSTEM",) if name in os.environ}
N_SERVERS = 0 if SYSTEM or sys.platform == "win32" else 1  # that fork workers
NO_SERVER = "no server forks workers on this system"
PYTHON_PATH = os.pathsep.join(map(str, [TESTS.parent, *(TESTS / name for name in SYSTEM.values())]))
SOON_S = 8.0  # what the catalogue allows 1 s for, on a machine that may stand still for some
# After which a subject hangs, on a busy machine, where imports take seconds, and Wine's 20.
LIMIT_S = 250.0 if sys.platform == "win32" else 60.0
FACTS = "facts.json"
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process by it

_MOUNT = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
# The kernel's OOM killer must choose a subject, no other process.
_VICTIM = "echo 1000 > /proc/self/oom_score_adj"


# ------------------------------------------------------------------------ anywhere


def wait_until(predicate: Callable[[], T], limit_s: float = LIMIT_S, what: Any = "") -> T:
    """Return the first true value of `predicate`. An error if there is none in `limit_s`.

    `what` is the error's text, or gives it.
    """
    start = time.monotonic()
    while not (value := predicate()):
        waited_s = time.monotonic() - start
        if waited_s > limit_s:
            text = what() if callable(what) else what
            raise AssertionError(f"{text or 'not so'} after {limit_s} s")
        time.sleep(min(0.001 + waited_s / 20, 0.02))  # the CPU is for those it waits for
    return value


def memfd_bytes(pids: Iterable[int]) -> int:
    """Return the memory in the segments that these processes hold, each counted once."""
    sizes = {}
    for pid in pids:
        for fd in _descriptors(pid):
            path = f"/proc/{pid}/fd/{fd}"
            try:
                if "nbshare-" in os.readlink(path):
                    status = os.stat(path)
                    sizes[status.st_ino] = status.st_blocks * 512
            except OSError:  # closed meanwhile
                continue
    return sum(sizes.values())


def peak_bytes(pid: int | str = "self") -> int:
    """Return the most memory that a process has had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _descriptors(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


# --------------------------------------------------------------------- in subjects


def raise_flag(name: str) -> None:
    """Set a flag that others wait for."""
    Path(name).touch()


def await_flag(name: str) -> None:
    """Wait until a flag is set."""
    wait_until(Path(name).exists, what=f"no flag {name!r}")


def tell(**facts: Any) -> None:
    """Leave facts for the test, whole or not at all."""
    import json

    Path("facts.new").write_text(json.dumps(facts))
    os.replace("facts.new", FACTS)


def helpers() -> tuple[set[int], set[int]]:
    """Return the servers (our children) and the workers (theirs) of this process."""
    parents = {pid: parent_of(pid) for pid in tagged()}
    servers = {pid for pid, parent in parents.items() if parent == os.getpid()}
    if not N_SERVERS:  # there workers are children of their own
        return set(), servers
    return servers, {pid for pid, parent in parents.items() if parent in servers}


def kill(pids: Iterable[int]) -> None:
    """Kill processes. Return when they are dead."""
    pids = set(pids)
    for pid in pids:
        kill_now(pid)
    wait_until(lambda: not any(map(lives, pids)), what=f"{pids} alive")


def run_scripts() -> None:
    """Run the scripts that a `Session` asks for, each in its folder, until this process ends."""
    import gc
    import runpy
    import traceback
    import warnings

    base, path, own = Path.cwd(), sys.path.copy(), os.getpid()
    while True:
        wait_until((base / "asked").exists, 1000)
        script = Path((base / "asked").replace(base / "taken").read_text())
        os.chdir(script.parent)
        sys.path[0] = str(script.parent)
        try:
            with warnings.catch_warnings():
                runpy.run_path(str(script), run_name="__main__")
        except BaseException:
            if os.getpid() != own:  # a forked child ends as one of any script
                raise
            traceback.print_exc()
        else:
            if os.getpid() != own:
                return
            (base / "good").touch()
        sys.stdout.flush()
        os.chdir(base)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(script.parent)):
                del sys.modules[name]
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        sys.unraisablehook = sys.__unraisablehook__
        gc.enable()
        gc.set_threshold(700, 10, 10)
        gc.collect()
        (base / "over").touch()


def provoke(way: str, **options: Any) -> None:
    """Run a run whose item 3 fails in some way, then a good one, and tell what the caller sees."""
    options.setdefault("progress", False)
    from nbshare import last_job, parallel_map
    from tests.support import faultlab_tasks as tasks

    items = [f"stone-{i}" for i in range(8)]
    tasks.check_double()  # workers are warm
    start = time.monotonic()
    error: BaseException | None = None
    try:
        task = functools.partial(tasks.stumble, way)
        parallel_map(task, items, max_workers=2, chunksize=1, **options)
    except BaseException as caught:
        error = caught
    failed_s = time.monotonic() - start
    job = last_job()
    try:
        text = str(error)
    except BaseException:  # one of the ways ends the process that looks at it
        text = "<no str>"
    partial = None if job is None else job.partial()
    kept = {} if job is None else {int(i): partial[i] for i in job.present.nonzero()[0]}
    start = time.monotonic()
    tasks.check_double()
    tell(
        classes=[cls.__name__ for cls in type(error).__mro__],
        text="\n".join([text, *getattr(error, "__notes__", ())]),
        index=getattr(error, "index", None),
        failed_s=failed_s,
        kept=kept,
        returned=sorted(int(path.name[9:]) for path in Path().glob("returned-*")),
        next_s=time.monotonic() - start,
    )


# -------------------------------------------------------------------- in the tests


@functools.cache
def may_mount() -> bool:
    """Whether a subject can have a ``/dev/shm`` of its own."""
    import subprocess

    try:
        ended = subprocess.run(["unshare", "-m", "sh", "-c", _MOUNT], capture_output=True)
    except FileNotFoundError:
        return False
    return ended.returncode == 0


def _in_shm() -> list[str]:
    return [] if sys.platform == "win32" else os.listdir("/dev/shm")


class Subject:
    """A script that runs, or has run."""

    def __init__(self, lab: Lab, popen: subprocess.Popen[bytes], number: int) -> None:
        self._lab, self.popen, self._number = lab, popen, number
        self.pid = popen.pid

    @property
    def stdout(self) -> str:
        """The output of it and its workers so far."""
        return self._lab.folder.joinpath(f"stdout-{self._number}").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The error output of it and its workers so far."""
        return self._lab.folder.joinpath(f"stderr-{self._number}").read_text(errors="replace")

    def signal(self, number: int, *, group: bool = False) -> float:
        """Signal it, or its process group as a terminal does. Return the time before it."""
        now = time.monotonic()
        if sys.platform == "win32" and number == signal.SIGINT:
            import pytest

            pytest.skip("Windows: no console, through which Ctrl-C could come from outside")
        (os.killpg if group and hasattr(os, "killpg") else os.kill)(self.pid, number)
        return now

    def interrupt(self) -> float:
        """Press Ctrl-C. Return the time."""
        return self.signal(signal.SIGINT, group=True)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end. Return the status."""
        import subprocess

        try:
            return self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs; so far:\n{self.stdout}\n{self.stderr}") from None

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None


class Lab:
    """The place where subjects live.

    Parameters
    ----------
    folder : Path
        Their working directory, empty.
    """

    def __init__(self, folder: Path) -> None:
        self.tag = os.urandom(16).hex()
        self.folder = folder
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        taken = "PYTHON", "NBSHARE"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(taken)}
        self.environ = {
            **inherited,
            TAG: self.tag,
            "TMPDIR": str(self.tmp),
            "HOME": str(folder),
            "USERPROFILE": str(folder),  # Windows' name for it
            "PYTHONPATH": PYTHON_PATH,
            **SYSTEM,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.strangers: set[int] = set()  # tagged processes that are no business of the library
        self._subjects: list[Subject] = []
        self._shm_fds: list[int] = []
        self._shm_before = set(_in_shm())

    def command(self, *arguments: str, wrapper: Iterable[str] = ()) -> list[str]:
        """Return the command line that runs Python with these arguments as a subject.

        The `wrapper` is a command that runs another one.
        """
        if sys.platform == "win32":
            return [*wrapper, sys.executable, "-X", "utf8", *arguments]
        script = f'{_VICTIM}; {_MOUNT} && exec "$@"' if may_mount() else f'{_VICTIM}; exec "$@"'
        unshare = ["unshare", "-m"] if may_mount() else []
        # A test that was itself started in the background ignores SIGINT, and would pass that on.
        return [
            *("env", "--default-signal=INT", *unshare, "sh", "-c", script, "sh"),
            *(*wrapper, sys.executable, *arguments),
        ]

    def start(self, code: str, *, stdout: Any = None) -> Subject:
        """Start a script, whose first lines are given to every one."""
        import subprocess

        number = len(self._subjects)
        path = self.folder / f"subject_{number}.py"
        path.write_text(PREAMBLE + code)
        with (
            self.folder.joinpath(f"stdout-{number}").open("wb") as out,
            self.folder.joinpath(f"stderr-{number}").open("wb") as err,
        ):
            popen = subprocess.Popen(
                self.command(str(path)),
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                start_new_session=True,
            )
        subject = Subject(self, popen, number)
        self._subjects.append(subject)
        self.watch_shm(subject.pid, lambda: subject.runs)
        return subject

    def run(self, code: str, limit_s: float = LIMIT_S) -> Subject:
        """Run a script that must end well."""
        subject = self.start(code)
        status = subject.wait(limit_s)
        assert status == 0, f"status {status}\n{subject.stdout}\n{subject.stderr}"
        return subject

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the subject has told."""
        import json

        return json.loads(self.folder.joinpath(FACTS).read_text())

    def told(self) -> dict[str, Any]:
        """Wait for what the subject tells."""
        self.await_flag(FACTS)
        return self.facts

    def await_flag(self, pattern: str, n: int = 1) -> list[str]:
        """Wait until flags of these names are raised. Return their names."""

        def names() -> list[str]:
            found = sorted(fnmatch.filter(os.listdir(self.folder), pattern))
            return found if len(found) >= n else []

        return wait_until(names, what=lambda: f"fewer than {n} flags {pattern!r}; {self._stderr()}")

    def raise_flag(self, name: str) -> None:
        """Raise a flag for the subject and its workers."""
        self.folder.joinpath(name).touch()

    def processes(self) -> set[int]:
        """Return the subjects' processes: owners, servers, workers and what those started."""
        return tagged(self.tag) - self.strangers

    def nobody_left(self) -> bool:
        """Whether all of them are gone within the time that is allowed."""
        wait_until(lambda: not self.processes(), SOON_S, lambda: f"alive: {self.names()}")
        return True

    def names(self) -> dict[int, str]:
        """Return the command lines of the subjects' processes."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found[pid] = b" ".join(words)[-80:].decode(errors="replace")
        return found

    def watch_shm(self, pid: int, runs: Callable[[], bool]) -> None:
        """Keep a subject's own ``/dev/shm`` in sight, beyond its end."""
        if not may_mount():
            return

        def is_mounted() -> bool:
            try:
                return os.path.samefile(f"/proc/{pid}/exe", sys.executable) or not runs()
            except OSError:
                return not runs()

        wait_until(is_mounted)
        try:
            self._shm_fds.append(os.open(f"/proc/{pid}/root/dev/shm", os.O_RDONLY))
        except OSError:
            assert not runs()

    def shm(self) -> set[str]:
        """Return what is in ``/dev/shm`` that was not there before."""
        if may_mount():
            return {name for fd in self._shm_fds for name in os.listdir(fd)}
        return set(_in_shm()) - self._shm_before

    def close(self) -> None:
        """End what still runs. Nothing may be left of anybody."""
        try:
            for subject in self._subjects:
                if subject.runs:
                    subject.signal(SIGKILL, group=True)
                    subject.wait()
            assert self.nobody_left()
            assert not self.shm()
            assert not list(self.tmp.iterdir())
            assert "leaked" not in self._stderr()
            assert "resource_tracker" not in self._stderr()
        finally:
            for pid in tagged(self.tag):
                kill_now(pid)
            for fd in self._shm_fds:
                os.close(fd)

    def _stderr(self) -> str:
        paths = self.folder.glob("stderr-*")
        return "\n".join(path.read_text(errors="replace") for path in paths)


@dataclass(frozen=True)
class Ran:
    """A script that a session has run."""

    folder: Path
    stdout: str
    stderr: str

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that it has told."""
        import json

        return json.loads(self.folder.joinpath(FACTS).read_text())


class Session:
    """One process that runs scripts one after the other, as for most, starting one takes longest.

    They begin with the workers that the one before has left, as cells of a notebook do.

    Parameters
    ----------
    folder : Path
        The working directory of the process, empty. Each script has another one.
    """

    def __init__(self, folder: Path) -> None:
        self._lab = Lab(folder)
        self._subject: Subject | None = None

    def run(self, code: str, folder: Path, limit_s: float = LIMIT_S) -> Ran:
        """Run a script that must end well."""
        at = self._lab.folder
        subject = self._subject = self._subject or self._lab.start("faultlab.run_scripts()\n")
        (folder / "script.py").write_text(PREAMBLE + code)
        n_out, n_err = len(subject.stdout), len(subject.stderr)
        (at / "new").write_text(str(folder / "script.py"))
        (at / "new").rename(at / "asked")
        with contextlib.suppress(AssertionError):  # it hangs
            wait_until(lambda: (at / "over").exists() or not subject.runs, limit_s)
        is_good, is_over = ((at / name).exists() for name in ("good", "over"))
        for name in ("asked", "good", "over"):
            (at / name).unlink(missing_ok=True)
        ran = Ran(folder, subject.stdout[n_out:], subject.stderr[n_err:])
        if not is_good or not is_over:  # the next script has another process
            if subject.runs:
                subject.signal(SIGKILL, group=True)
                subject.wait()
            self._subject = None
        assert is_over, f"it hangs or died; so far:\n{ran.stdout}\n{ran.stderr}"
        assert is_good, f"{ran.stdout}\n{ran.stderr}"
        # The semaphores of a multiprocessing.Queue go when the thread that fills it has ended.
        wait_until(lambda: not self._lab.shm(), SOON_S, lambda: f"left: {self._lab.shm()}")
        return ran

    def close(self) -> None:
        """End the process. Nothing may be left of anybody."""
        self._lab.close()


PREAMBLE = """\
import functools, gc, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from tests.support import faultlab, faultlab_tasks as tasks
from tests.support.faultlab import SOON_S, await_flag, helpers, kill, raise_flag, tell, wait_until
import nbshare
from nbshare import MapInterrupted, last_job, parallel_map
quiet = functools.partial(parallel_map, progress=False)
pair = functools.partial(quiet, max_workers=2, chunksize=1)
"""
