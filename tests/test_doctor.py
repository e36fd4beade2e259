"""The doctor finds facts, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nbshare
from nbshare._core.entries import checkup
from tests.support.kernels import Page

STEPS = list(checkup.STEPS)
NUMBERS = {"x86_64": {"memfd": 319, "eventfd": 290}}.get(platform.machine())
needs_seccomp = pytest.mark.skipif(NUMBERS is None, reason="the calls' numbers are not known")


def command_line(*words, **environ):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "nbshare", *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---------------------------------------------------------------------- the command line


def test_without_a_command_help_is_shown():
    """It names the commands, and is not an error."""
    done = command_line()
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"demo +run.*doctor +show", done.stdout, re.DOTALL)


def test_the_version_is_printed():
    """One line, for people and programs."""
    assert command_line("--version").stdout == f"nbshare {nbshare.__version__}\n"


def test_the_json_says_what_the_report_says():
    """It is JSON, holds all that was found and each step, and the exit status is 0."""
    done = command_line("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert list(report["found"]) == list(checkup._QUESTIONS)
    assert [step["name"] for step in report["self_test"]] == STEPS
    assert {step["state"] for step in report["self_test"]} == {"ok"}
    assert sum(step["elapsed_s"] for step in report["self_test"]) < 20


def test_the_text_is_aligned_and_narrow():
    """All texts begin in one column, and no line is longer than a terminal's."""
    done = command_line("doctor")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "The self-test passed." in lines
    for line in lines:
        assert len(line) <= checkup.WIDTH or " " not in line[24:]
        assert not line or line.startswith("The self-test") or (line[23] == " " != line[24])


@needs_seccomp
def test_a_failed_self_test_is_an_exit_status_of_1(lab):
    """The text names the step, what is wrong and what to do. The steps after it are not run."""
    lab.run(f"""
import contextlib, io
from tests.support import refused
from nbshare.__main__ import main
refused.refuse({NUMBERS["eventfd"]})
with contextlib.redirect_stdout(io.StringIO()) as printed:
    status = main(["doctor"])
text = " ".join(printed.getvalue().split())
assert status == 1
assert "The self-test FAILED." in text
assert "start workers failed WorkerDiedError: no worker can be started" in text, text
assert "this system refuses eventfd" in text and 'To do: Use backend="threads"' in text
assert "interrupt a run not run" in text and "end all processes ok" in text
""")


# ------------------------------------------------------------------------- what it finds


def test_an_affinity_mask_is_the_reason_for_fewer_cpus(script):
    """With one CPU allowed, that is said, and the self-test passes there."""
    printed = script("""
import os, nbshare
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
report = nbshare.doctor()
print(report.ok, report.found["CPUs"])
""")
    assert printed == f"True 1 of {os.cpu_count()} can be used: the affinity mask allows 1\n"


def test_a_cgroup_is_the_reason_for_fewer_cpus_and_less_memory(script):
    """A quota and a limit on memory are named, with the least limit of all groups above."""
    printed = script("""
import os, nbshare
from pathlib import Path
from nbshare._core.entries import checkup
from nbshare._core.system import processes
checkup.self_test = list  # not what this is about
group, inner = Path("group"), Path("group/inner")
inner.mkdir(parents=True)
(group / "cpu.max").write_text("max 100000")
(inner / "cpu.max").write_text("50000 100000")
for folder, limit in ((group, 1 << 30), (inner, 2 << 30)):
    (folder / "memory.max").write_text(str(limit))
    (folder / "memory.current").write_text(str(300 << 20))
    (folder / "memory.stat").write_text("inactive_file 0")
processes.ancestors = lambda controller: [(2, inner), (2, group)]
os.sched_getaffinity = lambda pid: set(range(os.cpu_count()))
found = nbshare.doctor().found
print(found["CPUs"])
print(found["memory"])
""")
    cpus, memory = printed.splitlines()
    assert cpus == f"1 of {os.cpu_count()} can be used: a cgroup's quota allows 1"
    assert memory.startswith("724 MiB available, the machine has ")
    assert memory.endswith("; the cgroup's limit is 1.00 GiB")


def test_variables_that_are_set_are_listed(script, tmp_path):
    """The kind of memory comes from NBSHARE_MEMORY. A name with a slip is called unknown."""
    folder = f"file:{tmp_path}"
    printed = script(
        """
import nbshare
report = nbshare.doctor()
print(report.ok)
print(report.found["settings"])
print(report.steps[0].detail)
""",
        NBSHARE_MEMORY=folder,
        NBSHARE_MEMROY="named",
    ).splitlines()
    assert printed[0] == "True"
    assert f"NBSHARE_MEMORY={folder}, NBSHARE_MEMROY=named (unknown)" in printed[1]
    assert printed[2] == f"2 MiB of the kind {folder}"


def test_what_cannot_be_found_out_hides_nothing_else(monkeypatch):
    """The reason is in its place."""
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(checkup, "self_test", list)
    found = checkup.doctor().found
    assert found["memory"].startswith("not known: ")
    assert "can be used" in found["CPUs"]


def test_every_variable_is_documented_and_known():
    """``help(nbshare)`` names each variable that the package reads, and the doctor knows it."""
    package = Path(nbshare.__file__).parent
    read = {
        name
        for path in package.rglob("*.py")
        if path.name not in ("__init__.py", "checkup.py")
        for name in re.findall(r"\bNBSHARE_[A-Z_]+[A-Z]\b", path.read_text())
    }
    assert read == checkup.VARIABLES == set(re.findall(r"NBSHARE_[A-Z_]+[A-Z]", nbshare.__doc__))


# ------------------------------------------------------------------------- broken places


@needs_seccomp
def test_where_memfds_are_refused_the_report_says_what_is_used_instead(script):
    """The self-test passes, and tells of the other kind."""
    printed = script(f"""
import nbshare
from tests.support import refused
refused.refuse({NUMBERS["memfd"]})
report = nbshare.doctor()
print(report.ok)
print(report.steps[0].detail)
""").splitlines()
    assert printed[0] == "True"
    assert printed[1].startswith("2 MiB of the kind named")
    assert "memfd: Operation not permitted" in printed[1]


@needs_seccomp
def test_memory_that_cannot_be_made_fails_the_first_step(script):
    """The step holds the error and what to do. Those after it are not run."""
    printed = script(
        f"""
import nbshare
from tests.support import refused
refused.refuse({NUMBERS["memfd"]})
report = nbshare.doctor()
print(report.ok, [step.state for step in report.steps])
print(report.steps[0].detail)
print(report.steps[0].remedy)
""",
        NBSHARE_MEMORY="memfd",
    ).splitlines()
    assert printed[0] == f"False {['failed', *['not run'] * 4, 'ok']}"
    assert printed[1].startswith("PermissionError: ")
    assert printed[2].startswith("Set NBSHARE_MEMORY=file:DIRECTORY")


BROKEN_NUMPY = """
import sys
from pathlib import Path
import nbshare, nbshare._core.entries.checkup
folder = Path("broken")
folder.mkdir()
folder.joinpath("numpy.py").write_text({code!r})
sys.path.insert(0, str(folder.resolve()))
"""


def test_a_crash_is_a_step_that_failed(lab):
    """A death of the self-test does not kill the caller, and is named."""
    lab.run(f"""
{BROKEN_NUMPY.format(code="import os; os.abort()")}
report = nbshare.doctor()
first = report.steps[0]
assert not report.ok and first.state == "failed", report
assert "ended with SIGABRT" in first.detail, first
assert report.steps[-1].state == "ok", report
""")


def test_a_self_test_without_end_is_ended(lab):
    """After its limit it is ended, and the step that it was in has failed."""
    lab.run(f"""
{BROKEN_NUMPY.format(code="import time; time.sleep(60)")}
from nbshare._core.entries import checkup
checkup.LIMIT_S = 1.0
first = nbshare.doctor().steps[0]
assert first.state == "failed" and "not over after 1 s" in first.detail, first
""")


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "raise ImportError('no BLAS')"])
def test_python_that_does_not_start_is_no_fault_of_memory(script, code):
    """On a busy machine, or where NumPy is broken. The remedy is about that."""
    printed = script(f"""
{BROKEN_NUMPY.format(code=code)}
from nbshare._core.entries import checkup
checkup.LIMIT_S = 1.0
first = nbshare.doctor().steps[0]
print(first.detail)
print(first.remedy)
""").splitlines()
    assert "before a new Python had imported nbshare" in printed[0]
    assert "try again later" in printed[1]
    assert "MEMORY" not in printed[1]


def test_a_slow_step_says_that_the_machine_may_be_busy():
    """It has the remedy of the step as well."""
    first, *_ = checkup._steps_of("started\n", "it was not over after 30 s", is_late=True)
    assert first.remedy == checkup._SLOW + checkup.STEPS[first.name]
    assert "busy" in first.remedy


def test_an_interrupt_ends_the_self_test_too(lab):
    """Ctrl-C in the middle is a KeyboardInterrupt, and no process is left."""
    code = "from tests.support import faultlab as f; f.raise_flag('begun'); f.time.sleep(60)"
    subject = lab.start(f"""
{BROKEN_NUMPY.format(code=code)}
try:
    nbshare.doctor()
except KeyboardInterrupt:
    print("interrupted")
""")
    lab.await_flag("begun")
    subject.interrupt()
    assert subject.wait() == 0
    assert subject.stdout == "interrupted\n"


# ------------------------------------------------------------------ next to other things


def test_what_runs_and_what_was_kept_is_left_alone(lab):
    """A job in the background goes on, and the last job that failed stays."""
    lab.run("""
job = nbshare.map_async(time.sleep, [60], max_workers=1)
try:
    quiet(int, ["x"])
except ValueError:
    pass
kept, workers = last_job(), helpers()
assert nbshare.doctor().ok
assert last_job() is kept and job.running() and helpers() == workers
""")


def test_a_notebook_names_its_front_end(lab):
    """The report is text in a cell. The version of the kernel is among the packages."""
    page = Page(lab, JPY_SESSION_NAME="maps.ipynb")
    try:
        cell = page.run_well("nbshare.doctor()")
    finally:
        page.close()
    text = " ".join(cell.result.split())
    assert "JupyterLab or Jupyter Notebook: progress display with a Stop button, and plots" in text
    assert re.search(r"ipykernel \d", text)
    assert "The self-test passed." in text
