"""Any file of a checkpoint may be damaged, replaced or another user's, without a wrong result."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import MISSING, attach, map_async, open_checkpoint, parallel_map
from nbshare._core.checkpoint.reader import whole_of
from nbshare._core.memory.disk import open_own
from nbshare._core.store import files
from nbshare.errors import CheckpointError, CheckpointWarning, WorkerDiedError
from tests.support import format_work, sweeps
from tests.support.faultlab import wait_until

ROOTS = [9.0, -1.0, 4.0, 16.0, 25.0, 36.0]  # one of them fails
SHAPES = ["[]", "{}", "3", "null", '"x"', "[[1]]", '{"a": 1}', "[" * 5000]
SECONDS = 20  # for a call, as one that blocks is ended
MOST_BYTES = 64 << 20  # that it may take, as no damaged number is believed
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are forked")


class Stored:
    """A stored run, how it is continued, and what is right."""

    def __init__(self, folder, call, expected, errors=()):
        self.folder, self.call, self.expected, self.errors = folder, call, expected, dict(errors)

    def names(self):
        """Return the files and folders of it."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*"))
        return sorted(str(name) for name in found if ".nbshare" not in str(name))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, _session):
    """Give a run of each kind."""
    base = tmp_path_factory.mktemp("runs")
    in_logs = {"shared": {"scale": 3}, "backend": "serial"}

    def roots(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parallel_map(
                math.sqrt, ROOTS, checkpoint=path, backend="serial", on_error="return"
            )

    def records(path):
        return parallel_map(format_work.objects, [5, 2, 7], checkpoint=path, **in_logs)

    def detached(path):
        return parallel_map(sweeps.gated, range(12), shared=shared, checkpoint=path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_map(math.sqrt, ROOTS[::-1], checkpoint=base / "roots", on_error="return")
        parallel_map(format_work.objects, [7, 5, 2], checkpoint=base / "records", **in_logs)
    roots(base / "roots")
    records(base / "records")
    shared = {"log": str(base / "log")}
    job = map_async(
        sweeps.gated, range(12), shared=shared, checkpoint=base / "detached", detach=True
    )
    wait_until(lambda: job.n_done == 4)
    driver = psutil.Process(json.loads((base / "detached/lease.json").read_text())["pid"])
    driver.kill()
    driver.wait(SECONDS)
    job.wait()
    log = shared["log"]
    (base / "log.json").write_text(json.dumps(log))
    np.save(base / "items.npy", np.arange(12))
    words = ["run", f"{sweeps.__file__}:gated", "--items", str(base / "items.npy")]
    words += ["--shared", f"log={base / 'log.json'}", "--checkpoint"]
    command = [sys.executable, "-m", "nbshare", *words, str(base / "shared")]
    process = subprocess.Popen(command, cwd=base)
    wait_until((base / "shared/parts").exists)
    wait_until(lambda: open_checkpoint(base / "shared").n_done == 4)
    process.kill()
    process.wait()
    (base / "gate").touch()
    (base / "session").mkdir()

    def shared_run(path):
        """Run the command, in a process that keeps its workers."""
        code = f"""
import contextlib, io
from nbshare.__main__ import main
with contextlib.redirect_stderr(io.StringIO()) as said:
    status = main({[*words, str(path)]!r})
tell(status=status, said=said.getvalue())
"""
        ended = _session.run(code, base / "session").facts
        if ended["status"]:
            raise CheckpointError(ended["said"])
        return open_checkpoint(path).results()

    twice = [2.0 * x for x in range(12)]
    error = {1: "ValueError: "}
    made = {
        "roots": Stored(base / "roots", roots, [3.0, None, 2.0, 4.0, 5.0, 6.0], error),
        "records": Stored(
            base / "records", records, [format_work.objects(x, 3) for x in (5, 2, 7)]
        ),
        "detached": Stored(base / "detached", detached, twice),
        "shared": Stored(base / "shared", shared_run, twice),
    }
    for run in made.values():
        roots(base / "warm")  # what is imported late
        run.call(base / "warm_it")
        shutil.rmtree(base / "warm_it")
    return made


def data_bytes():
    """Return the memory of this process that `RLIMIT_DATA` counts."""
    return int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10


@contextlib.contextmanager
def refused_by_name(name):
    """Let a block raise CheckpointError only, which names a file and says what to do."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + MOST_BYTES, limits[1]))
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it blocks"))
    signal.alarm(SECONDS)
    text = None
    try:
        yield
    except CheckpointError as error:
        text = str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    if text is not None:
        assert Path(name).name.split(".")[0] in text
        assert re.search("[Rr]emove|[Mm]ake|[Pp]ass |if_changed", text)


def plain(value):
    """Return a text that tells all of a value. Of an array, repr would take longest of all here."""
    if isinstance(value, dict):
        return repr({name: plain(each) for name, each in value.items()})
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.tolist()}"
    return repr(value.item() if isinstance(value, np.generic) else value)


def assert_right(results, run, *, is_whole=False):
    """Compare results that are there with those of the items."""
    there = results.tolist() if isinstance(results, np.ndarray) else list(results)
    assert len(there) == len(run.expected)
    for found, expected in zip(there, run.expected, strict=True):
        if found is not MISSING and (is_whole or found is not None):
            assert plain(found) == plain(expected)


def use(run, path, name):
    """Read a run in each way, then make its call again."""
    with refused_by_name(name):
        stored = open_checkpoint(path)
        assert_right(stored.results(), run)
    with refused_by_name(name):
        stored = open_checkpoint(path)
        assert stored.n_items == len(run.expected)
        assert stored.present.sum() <= stored.n_done <= len(run.expected)
        assert set(stored.errors) <= set(run.errors)
        assert set(stored.item_stats) == {"elapsed_s", "attempts", "stored_at"}
        assert stored.rate >= 0
        assert repr(stored)
    with refused_by_name(name):
        assert open_checkpoint(path).outdated(math.sqrt, ROOTS).n_items == len(ROOTS)
    with refused_by_name(name):
        job = attach(path, progress=False)
        assert (partial := job.partial()) is None or assert_right(partial, run) is None
        with contextlib.suppress(WorkerDiedError):  # two of the runs were killed
            for i, value in job:
                assert i in run.errors or plain(value) == plain(run.expected[i])
            assert_right(job.result(), run, is_whole=job.state == "done")
    with refused_by_name(name):
        assert_right(run.call(path), run, is_whole=True)
        assert_right(open_checkpoint(path).results(), run, is_whole=True)


def place_for(run, place):
    """Copy a run. The writer that it tells of has ended anyway."""
    shutil.copytree(run.folder, path := Path(place) / "run", symlinks=True)
    return path


def is_content(name):
    return not name.endswith(("README.txt", "lock", "log.txt"))


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damaged_content(runs, data):
    """Cut anywhere, a byte changed, emptied, or JSON of another shape."""
    run = runs[data.draw(st.sampled_from(["roots", "records", "detached"]), "run")]
    names = [n for n in run.names() if (run.folder / n).is_file() and is_content(n)]
    name = data.draw(st.sampled_from(names), "file")
    with tempfile.TemporaryDirectory() as place:
        path = place_for(run, place)
        before = (path / name).read_bytes()
        how = data.draw(st.sampled_from(["cut", "byte", "byte", "byte", "json", "gone"]), "how")
        at = data.draw(st.integers(0, max(0, len(before) - 1)), "at")
        if how == "gone":
            (path / name).unlink()
        elif how == "json":
            (path / name).write_text(data.draw(st.sampled_from(SHAPES)))
        elif how == "cut":
            (path / name).write_bytes(before[:at])
        elif before:
            changed = bytearray(before)
            changed[at] ^= data.draw(st.integers(1, 255))
            (path / name).write_bytes(changed)
        use(run, path, name)


KINDS = ["fifo", "folder", "link", "own link", pytest.param("other", marks=needs_root)]


def replace(path, name, kind, victim):
    """Put something else in the place of a file or folder."""
    file = path / name
    if kind == "other":
        os.chown(file, 12345, 12345)
        return
    elsewhere = path.with_name("elsewhere")
    file.rename(elsewhere)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(victim if kind == "link" else elsewhere)


@pytest.mark.first
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["roots", "records", "detached"])
def test_replaced_files(runs, which, kind, tmp_path):
    """By a pipe, a folder, a link or another user's. None is followed, waited for or loaded.

    Each file once: a run has most of its files in common with the one before it here.
    """
    run, victim = runs[which], tmp_path / "victim"
    before = {"roots": [], "records": ["roots"], "detached": ["roots", "records"]}[which]
    known = {name for other in before for name in runs[other].names()}
    names = [name for name in run.names() if name not in known]
    assert names
    for k, name in enumerate(names):
        (tmp_path / str(k)).mkdir()
        path = place_for(run, tmp_path / str(k))
        victim.write_text("of value")
        os.utime(victim, (0, 0))
        replace(path, name, kind, victim)
        use(run, path, name)
        assert (victim.read_text(), victim.stat().st_mtime) == ("of value", 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["byte", "gone", "fifo", KINDS[-1]])
def test_parts_of_a_shared_run(runs, kind, tmp_path):
    """As the files of the checkpoint itself, one of each way to go wrong."""
    run, victim = runs["shared"], tmp_path / "victim"
    names = [name for name in run.names() if name.startswith("parts") and is_content(name)]
    for k, name in enumerate(names):
        file = run.folder / name
        has_bytes = file.is_file() and file.stat().st_size  # a killed worker's log may be empty
        if kind == "byte" and not has_bytes:
            continue
        (tmp_path / str(k)).mkdir()
        path = place_for(run, tmp_path / str(k))
        victim.write_text("of value")
        data = bytearray(file.read_bytes() if file.is_file() else b"")
        if kind == "gone":
            shutil.rmtree(path / name) if file.is_dir() else (path / name).unlink()
        elif kind == "byte":
            data[len(data) * 2 // 3] ^= 3
            (path / name).write_bytes(data)
        else:
            replace(path, name, kind, victim)
        use(run, path, name)
        assert victim.read_text() == "of value"


def test_after_a_power_failure_progress_tells_what_is_there(runs, tmp_path):
    """Rows that never reached the disk are missing, for those who look as for the next call."""
    run = runs["detached"]
    path = place_for(run, tmp_path)
    lease = files.read_json(path / "lease.json")
    files.replace_json(path / "lease.json", lease | {"boot": "another"})
    data = bytearray((path / "results.npy").read_bytes())
    rows = np.frombuffer(data, np.float64, offset=256)
    lost = int(np.flatnonzero(rows == 6.0)[0])
    data[256 + 8 * lost : 264 + 8 * lost] = bytes(8)
    (path / "results.npy").write_bytes(data)
    stored = open_checkpoint(path)
    with pytest.warns(nbshare.errors.CheckpointWarning, match="1 results are damaged"):
        present = stored.present
    assert present.tolist() == [True] * 3 + [False] * 9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stored.results().compressed().tolist() == [0.0, 2.0, 4.0]
        assert attach(path, progress=False).partial().compressed().tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("func", [math.sqrt, str])
def test_a_result_that_is_being_written_is_not_damaged(func, tmp_path):
    """Whenever another program looks. Each look finds more results, or as many."""
    job = map_async(func, range(30_000), checkpoint=tmp_path, chunksize=1, progress=False)
    checked, n_looks, n_present = {}, 0, 0
    while not job.done():
        n_before, n_present = n_present, np.count_nonzero(whole_of(tmp_path, checked).present)
        assert n_present >= n_before
        n_looks += 1
    assert n_looks > 50
    assert whole_of(tmp_path, checked).present.all()


def test_a_complete_run_with_a_damaged_result_is_not_called_complete(runs, tmp_path):
    """All that is asked of it has one answer, whatever is asked first. The same call mends it."""
    path = place_for(runs["records"], tmp_path)
    (log,) = path.glob("objects.*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    asked = {
        "state": lambda run: run.state == "stopped",
        "n_done": lambda run: run.n_done == 2,
        "present": lambda run: run.present.sum() == 2,
        "results": lambda run: sum(x is MISSING for x in run.results()) == 1,
        "repr": lambda run: "stopped, 2 of 3 items" in repr(run),
    }
    for first in asked:
        stored = open_checkpoint(path)
        with pytest.warns(CheckpointWarning, match="1 results are damaged"):
            asked[first](stored)
        assert [name for name, is_right in asked.items() if not is_right(stored)] == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = attach(path, progress=False)
        assert (job.state, job.n_done, job.present.sum()) == ("stopped", 2, 2)
        assert sum(value is MISSING for value in job.result()) == 1


@needs_root
@pytest.mark.parametrize(
    ("how", "what"),
    [
        *((how, ".") for how in ("open", "attach", "map", "detach", "resume", "run")),
        *((how, "driver") for how in ("attach", "detach", "resume")),  # others do not look there
    ],
)
def test_a_folder_of_another_user_is_refused(how, what, runs, tmp_path):
    """Nothing of it is loaded, by anybody, also root."""
    run = runs["detached"]
    path = place_for(run, tmp_path)
    os.chown(path / what, 12345, -1)
    shared = {"log": str(run.folder.with_name("log"))}
    options = {"shared": shared, "checkpoint": path}
    command = {"resume": ["resume", str(path)]}
    command["run"] = ["run", f"{sweeps.__file__}:slow", "--items", str(run.folder / "../items.npy")]
    command["run"] += ["--checkpoint", str(path)]
    command["run"] += ["--shared", f"log={run.folder.with_name('log.json')}"]
    if how in command:
        ended = subprocess.run(
            [sys.executable, "-m", "nbshare", *command[how]],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert "belongs to user 12345" in ended.stderr
        return
    with pytest.raises(CheckpointError, match="belongs to user 12345, and this process runs as"):
        {
            "open": open_checkpoint,
            "attach": attach,
            "map": lambda path: parallel_map(sweeps.gated, range(12), **options),
            "detach": lambda path: map_async(sweeps.gated, range(12), detach=True, **options),
        }[how](path)


@needs_root
def test_an_ordinary_user_does_not_load_what_root_has_written(tmp_path):
    """The rule is the same for all, and the owner is the one who runs."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        parallel_map(math.sqrt, [4.0], checkpoint=(path := Path(place) / "run"), backend="serial")
        if (child := os.fork()) == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setuid(12345)
                try:
                    open_checkpoint(path)
                except CheckpointError as error:
                    code = 0 if "belongs to root" in str(error) else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def test_the_lease_of_a_run_has_no_pickle(runs, tmp_path):
    """The error of a run comes as text, and as itself if it is one of Python's own."""
    path, text = tmp_path / "run", "could not convert string to float: 'off'"
    with pytest.raises(ValueError, match=text):
        parallel_map(float, ["off"], checkpoint=path, backend="serial")
    told = files.read_json(path / "lease.json")["error"]
    assert (told["type"], told["text"]) == ("ValueError", text)
    with pytest.raises(ValueError, match=text):
        attach(path, progress=False).result()
    lease = files.read_json(path / "lease.json") | {"error": told | {"type": "os.system"}}
    files.replace_json(path / "lease.json", lease)
    with pytest.raises(nbshare.errors.TaskError, match=rf"os\.system: {text}"):
        attach(path, progress=False).result()


def test_a_digest_that_is_damaged_is_not_that_of_another_item(tmp_path):
    """A digest holds a number itself, of which one bit makes 4 of 5."""
    path = tmp_path / "run"
    parallel_map(abs, [4, 9], checkpoint=path, backend="serial")
    data = bytearray((path / "items.npy").read_bytes())
    data[256 + 8] ^= 1
    (path / "items.npy").write_bytes(data)
    assert parallel_map(abs, [5, 4], checkpoint=path, backend="serial").tolist() == [5, 4]


def test_a_link_that_takes_the_place_of_a_file_is_not_written_to(tmp_path):
    """Not even by what has been opened safely before."""
    (tmp_path / "victim").write_text("of value")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT):
        with pytest.raises(CheckpointError, match="is a symbolic link instead of a plain file"):
            open_own(tmp_path / "link", flags)
    assert (tmp_path / "victim").read_text() == "of value"
