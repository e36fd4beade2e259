"""Prints of workers appear once, where the caller's own prints do, and harm no run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import warnings

import pytest

from nbshare import errors, map_async, parallel_map
from nbshare._core.system import SYSTEM
from tests.support import talkers
from tests.support.faultlab import wait_until


def quiet(*args, **options):
    return parallel_map(*args, progress=False, **options)


# ------------------------------------------------------------------------- once, all of it


def test_prints_appear_in_the_callers_streams(capsys):
    """Standard output and error output each go to the caller's, when the call returns."""
    quiet(talkers.to_both, range(20), max_workers=2)
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(f"out {i}" for i in range(20))
    assert sorted(shown.err.splitlines()) == sorted(f"err {i}" for i in range(20))


def test_prints_appear_in_a_redirected_stream(capsys):
    """The streams are those of the moment of the call."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        quiet(talkers.to_both, range(3))
        job = map_async(talkers.to_both, range(3))
    job.result()
    assert sorted(text.getvalue().split()) == sorted(["out", "0", "out", "1", "out", "2"] * 2)
    assert capsys.readouterr().out == ""


def test_lines_of_a_worker_stay_in_order(capsys):
    """Prints of all workers appear in the order of time. Lines are whole."""
    pids = quiet(talkers.count, range(200), max_workers=3, chunksize=1)
    lines = capsys.readouterr().out.splitlines()
    for pid in set(pids):
        mine = [int(line.split()[-1]) for line in lines if line.startswith(f"worker {pid} ")]
        assert mine == [i for i in range(200) if pids[i] == pid]
    assert len(lines) == 200


@pytest.mark.parametrize("n", [1, 7])
def test_a_line_without_end_appears(capsys, n):
    """It is there when the call returns, and on a line of its own."""
    for _ in range(5):
        quiet(talkers.without_end, range(n), max_workers=1)
        line = "".join(f"{i} " for i in range(n))
        assert capsys.readouterr().out == f"{line}\n"


def test_log_records_and_warnings_appear(capsys):
    """They go to the error output, as they do in the caller."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        quiet(talkers.log, [5])
    shown = capsys.readouterr().err
    assert shown.count("log 5") == 1
    assert "UserWarning: careful 5" in shown


def test_what_programs_and_c_code_print_appears(capsys):
    """Descriptors 1 and 2 are caught as well, also of other programs and of C's stdio."""
    quiet(talkers.by_descriptor, range(4), max_workers=2)
    shown = capsys.readouterr()
    expected = [f"{what} {i}" for what in ("raw", "sub", "puts") for i in range(4)]
    assert sorted(shown.out.splitlines()) == sorted(expected)
    assert sorted(shown.err.splitlines()) == [f"suberr {i}" for i in range(4)]


def test_lines_of_several_workers_do_not_mix(capsys):
    """A line that is written in pieces is shown as a whole."""
    quiet(talkers.halves, range(4), max_workers=2, chunksize=1)
    assert capsys.readouterr().out == "left-right\n" * 200


def test_prints_of_threads_appear(capsys):
    """Nothing is lost that an item's threads print."""
    quiet(talkers.in_threads, range(2), max_workers=2)
    pieces = re.findall(r"\d+-\d-\d+-", capsys.readouterr().out)
    assert len(set(pieces)) == len(pieces) == 2 * 3 * 200


def test_what_is_no_text_harms_nobody(capsys):
    """Bytes that are no UTF-8 and lone surrogates are replaced."""
    quiet(talkers.unusual, [0])
    assert capsys.readouterr().out == "grüße \\udcff\n\ufffd\n"


def test_the_last_words_of_a_worker_that_is_killed(capsys):
    """They are there when the error is raised. A retry prints again."""
    with pytest.raises(errors.WorkerDiedError):
        quiet(talkers.then_die, [7], retries=1)
    assert capsys.readouterr().out == "last words of 7\n" * 2
    quiet(talkers.to_both, [1])
    assert capsys.readouterr().out == "out 1\n"


def test_prints_of_a_generators_map_appear(capsys):
    """All windows of a stream print to the same place."""
    quiet(talkers.to_both, iter(range(100)), max_workers=2)
    assert sorted(capsys.readouterr().out.split()) == sorted(
        " ".join(f"out {i}" for i in range(100)).split()
    )


def test_two_jobs_at_once_keep_their_prints_apart():
    """Each goes to the streams of its own call, though they take turns with the workers."""
    texts, jobs = [io.StringIO() for _ in range(2)], []
    for k, text in enumerate(texts):
        with contextlib.redirect_stdout(text):
            jobs.append(map_async(talkers.count, range(k * 100, k * 100 + 50), max_workers=2))
    for job in jobs:
        job.result()
    for k, text in enumerate(texts):
        found = sorted(int(line.split()[-1]) for line in text.getvalue().splitlines())
        assert found == list(range(k * 100, k * 100 + 50))


def test_prints_appear_while_the_map_runs(tmp_path):
    """Those of a background job appear while no thread waits for it."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        job = map_async(talkers.after, [0], shared={"path": str(tmp_path / "flag")})
    wait_until(lambda: text.getvalue() == "before 0\n", what="it is not shown")
    (tmp_path / "flag").touch()
    wait_until(job.done)
    wait_until(lambda: text.getvalue() == "before 0\nafter 0\n", what="its end is not shown")


@pytest.mark.skipif(SYSTEM != "linux", reason="no program can enlarge a pipe there")
def test_a_pipe_that_a_program_has_enlarged_is_read_to_its_end(tmp_path):
    """As some programs do to be quicker. All appears while the program goes on."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        shared = {"path": str(tmp_path / "flag"), "nbytes": 500_000}
        job = map_async(talkers.by_a_larger_pipe, [0], shared=shared)
    wait_until(lambda: len(text.getvalue()) == 500_000, what="not all is shown")
    (tmp_path / "flag").touch()
    job.result()


def test_streams_that_an_initializer_has_set_are_kept(cold, tmp_path, capsys):
    """A log file of each worker takes the prints of later calls as well."""
    options = {"initializer": talkers.redirect, "initargs": (str(tmp_path / "log"),)}
    for i in range(2):
        quiet(talkers.to_both, [i], **options)
    assert (tmp_path / "log").read_text() == "out 0\nout 1\n"
    assert capsys.readouterr().out == ""
    quiet(talkers.to_both, [2])


def test_a_caller_whose_stream_is_closed():
    """Prints that cannot be shown fail no run."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        stream.close()
        assert quiet(talkers.flood, [0], shared={"n_lines": 5}).shape == (1,)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_what_the_caller_cannot_encode_is_escaped(script, encoding):
    """And nothing else is lost, as on Windows if the output goes to a file."""
    printed = script(
        """
import sys
import nbshare
from tests.support import talkers

sys.stderr.reconfigure(errors="strict")
nbshare.parallel_map(talkers.in_chinese, range(2), max_workers=1, progress=False)
sys.stderr = sys.stdout
nbshare.parallel_map(talkers.in_chinese, range(2), max_workers=1, progress=False)
result = nbshare.pipeline(lambda: [[1.0, 2.0]], sum, shape=2, progress=False)
print(result)
""",
        PYTHONIOENCODING=encoding,
    )
    lines = printed.splitlines()
    assert lines[-1].startswith("<PipelineResult")
    said = ["before", "\\u6570 0", "after", "before", "\\u6570 1", "after"]
    assert lines[:6] == said
    assert sorted(lines[6:-1]) == sorted([*said, "\\u6570", "\\u6570"])


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_fails_harms_no_other(name, capsys):
    """Nor is the run harmed."""
    closed = io.StringIO()
    closed.close()
    redirect = {"stdout": contextlib.redirect_stdout, "stderr": contextlib.redirect_stderr}[name]
    with redirect(closed):
        quiet(talkers.to_both, [0, 1], max_workers=1)
    printed = capsys.readouterr()
    assert (printed.out, printed.err)[name == "stdout"].count("\n") == 2
    assert (printed.out, printed.err)[name == "stderr"] == ""


# --------------------------------------------------------------------- floods, and readers


def test_nothing_of_a_flood_is_lost_in_a_script(script):
    """If the caller's output takes all, all arrives."""
    printed = script(
        "import nbshare\nfrom tests.support import talkers\n"
        "nbshare.parallel_map(talkers.flood, range(2), shared={'n_lines': 100_000})"
    )
    assert printed == ("x" * 99 + "\n") * 200_000


@pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process on Windows")
def test_workers_wait_while_nobody_reads(lab):
    """While the owner is stopped their prints wait. When it goes on, all of them appear."""
    subject = lab.start("""
def flood(i):
    raise_flag(f"begun-{i}")
    await_flag("stopped")
    for k in range(1000):
        sys.stdout.write("x" * 9_999 + "\\n")
        raise_flag(f"written-{i}-{k}")
pair(flood, range(2))
pair(tasks.surroundings, [0])
""")
    lab.await_flag("begun-*", 2)
    subject.signal(signal.SIGSTOP)
    lab.raise_flag("stopped")
    lab.await_flag("written-*-0", 2)
    assert not list(lab.folder.glob("written-*-999"))
    subject.signal(signal.SIGCONT)
    assert subject.wait() == 0, subject.stderr
    assert subject.stdout == ("x" * 9_999 + "\n") * 2000 + "tidy\n"


def test_a_program_that_prints_waits_for_its_reader(lab):
    """The owner keeps some megabytes of unread prints, and not all. In the end all arrives."""
    subject = lab.start(
        """
def flood(i):
    for k in range(160):  # 100 kB each, as other programs and C code print
        os.write(1, b"x" * 99_999 + b"\\n")
        raise_flag(f"written-{k}")
pair(flood, [0])
""",
        stdout=subprocess.PIPE,
    )
    lab.await_flag("written-39")  # about what the owner keeps
    stdout = subject.popen.stdout.fileno()
    n_read = sum(len(os.read(stdout, 1 << 16)) for _ in range(20))
    assert not lab.folder.joinpath("written-159").exists()
    while chunk := os.read(stdout, 1 << 20):
        n_read += len(chunk)
    subject.popen.stdout.close()
    assert subject.wait() == 0, subject.stderr
    assert n_read == 160 * (99_999 + len(os.linesep))


# ------------------------------------------------------------------------------ terminals


def screen(data):
    """Return the lines that a terminal shows."""
    lines, column = [[]], 0
    for char in data.decode().replace("\x1b[A", ""):
        if char == "\n":
            lines.append([])
        elif char == "\r":
            column = 0
        else:
            lines[-1][column : column + 1] = char
            column += 1
    return ["".join(line).rstrip() for line in lines]


def test_a_bar_in_a_terminal_is_not_torn(tmp_path):
    """Prints are above the bar, each on a line of its own."""
    pty, termios = map(pytest.importorskip, ("pty", "termios"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    code = (
        "import nbshare\nfrom tests.support import talkers\n"
        "nbshare.parallel_map(talkers.slowly, range(20), max_workers=2, chunksize=1)"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm"},
    ) as popen:
        os.close(theirs)
        data = b""
        with contextlib.suppress(OSError):  # its end
            while chunk := os.read(ours, 1 << 16):
                data += chunk
    os.close(ours)
    assert popen.returncode == 0
    *printed, bar, _ = [line for line in screen(data) if line] + [""]
    assert sorted(printed) == sorted(f"out {i}" for i in range(20)), data
    assert "20/20" in bar
    assert data.count(b"%|") > 1  # it was there before


# ------------------------------------------------------------------------------- notebooks


@pytest.fixture
def kernel(common):
    """Give a kernel whose workers print nothing where it was started, in Jupyter's terminal."""
    lab, kernel = common
    kernel.run_well("from tests.support import talkers")
    terminal = lab.folder / "stderr-kernel"
    before = terminal.read_bytes()
    yield kernel
    assert b"out 0" not in terminal.read_bytes()[len(before) :]


def test_prints_appear_in_the_cell(kernel):
    """Once, next to the bar, in the cell of the call."""
    for _ in range(2):
        cell = kernel.run("parallel_map(talkers.to_both, range(3)); print('end')")
        assert sorted(cell.stdout.splitlines()[:3]) == ["out 0", "out 1", "out 2"]
        assert cell.stdout.endswith("\nend\n")
        assert sorted(cell.stderr.split()) == ["0", "1", "2", "err", "err", "err"]


def test_prints_of_a_background_job_appear_in_its_own_cell(kernel):
    """Also while another cell runs, in its row or not, and when they come after its end."""
    made = kernel.start("job = nbshare.map_async(talkers.after, [0], shared={'path': 'go'})")
    assert kernel.finish(made).status == "ok"
    other = kernel.run("print('mine'); Path('go').touch(); job.result()")
    assert other.status == "ok", other.traceback
    assert other.stdout == "mine\n"
    wait_until(lambda: kernel._listen() or "after 0" in kernel._cells[made].stdout)
    assert kernel._cells[made].stdout == "before 0\nafter 0\n"
    assert kernel._cells[made].stderr == ""


def test_a_flood_in_a_cell_is_cut(kernel):
    """A page gets no more than it can bear, the end, and how much is missing."""
    start = time.monotonic()
    cell = kernel.run("""
quiet(talkers.flood, range(2), shared={'n_lines': 100_000})
quiet(talkers.to_both, [5])
""")
    *notes, last = re.findall(r"^\[([\d,]+) characters .*\]$|^(out 5)$", cell.stdout, re.MULTILINE)
    assert last == ("", "out 5")
    n_hidden = sum(int(n.replace(",", "")) for n, _ in notes)
    shown = re.sub(r"^(\[.*\]|out 5)\n", "", cell.stdout, flags=re.MULTILINE)
    assert len(shown) + n_hidden == 2 * 100_000 * 100
    assert len(shown) < 1_000_000 + 30_000 * (time.monotonic() - start)  # more each second
    assert shown.endswith("x" * 99 + "\n")


def test_each_small_map_has_room_of_its_own_in_a_page(kernel):
    """In a loop of those the prints of one do not count for the others."""
    cell = kernel.run("""
for _ in range(12):
    parallel_map(talkers.say_much, range(4), progress=False, max_workers=2)
""")
    assert "left out" not in cell.stdout
    assert len(cell.stdout) == 12 * 4 * 15_000


def test_captured_prints_are_not_shown(kernel):
    """`%%capture` takes them as it takes the caller's own."""
    cell = kernel.run("%%capture text\nquiet(talkers.to_both, range(2))")
    assert cell.stdout == ""
    cell = kernel.run("print(sorted(text.stdout.split()), sorted(text.stderr.split()))")
    assert cell.stdout == "['0', '1', 'out', 'out'] ['0', '1', 'err', 'err']\n"
