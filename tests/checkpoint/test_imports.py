"""Files that no text names count as well, once workers report that they have imported them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import nbshare
from nbshare import Checkpoint, map_async, open_checkpoint, parallel_map
from nbshare._core.engine.local import dispatcher
from nbshare._core.store.files import read_json
from nbshare.errors import CheckpointError
from tests.support.faultlab import SYSTEM as PLAYED
from tests.support.faultlab import wait_until

SIM = """
import importlib, os, time
def f(x):
    plugin = importlib.import_module("plug" + "in")
    return plugin.scale(x)
def g(x):
    return late(x) if x >= 6 else 1.0 * x
def late(x):
    return __import__("plug" + "in").scale(x)
def slow(x):
    time.sleep(0.02)
    return f(x)
def waiting(x):
    folder = os.path.dirname(__file__)
    open(os.path.join(folder, "began"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.001)
    result = f(x)
    open(os.path.join(folder, "imported"), "w").close()
    return result
def named(x):
    folder = os.path.dirname(__file__)
    open(os.path.join(folder, "began"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.001)
    import plugin as found
    return found.scale(x)
def unpickled(x):
    import pickle
    return pickle.loads(b"cplugin\\nscale\\n.")(x)
def plain(x):
    return 2.0 * x
"""
PLUGIN = "# why\ndef scale(x):\n    return 2.0 * x\n"
OTHER = "import stranger\ndef h(x):\n    return stranger.k + x\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Give a function that runs a function of a project's file, and says its results."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sim.py").write_text(SIM)
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "other.py").write_text(OTHER)
    (folder / "stranger.py").write_text("k = 1")
    monkeypatch.syspath_prepend(str(folder))

    def run(name, items=range(8), if_changed=None, **options):
        func = f"{folder / options.pop('file', 'sim.py')}:{name}"
        stored = Checkpoint(tmp_path / "run", if_changed=if_changed)
        options = {"checkpoint": stored, "progress": False, "max_workers": 2} | options
        return parallel_map(func, items, **options)

    run.folder, run.path = folder, tmp_path / "run"
    yield run
    for name in ("sim", "plugin", "other", "stranger"):  # workers import what this process has
        sys.modules.pop(name, None)


def edit(project, name, old, new):
    """Edit a file of a project."""
    text = (project.folder / name).read_text()
    assert old in text
    (project.folder / name).write_text(text.replace(old, new))


@pytest.mark.parametrize("name", ["f", "late", "unpickled"])
def test_an_edit_of_a_file_that_workers_imported_is_refused(project, name):
    """A computed name, and a pickle. The file is named with the lines that changed."""
    project(name)
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed \(lines 2-3\)\. 8 of 8 results"):
        project(name)
    assert project(name, if_changed="restart").tolist() == [3.0 * x for x in range(8)]
    edit(project, "plugin.py", "3.0 * x", "2.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed"):
        project(name)
    assert project(name, if_changed="accept").tolist() == [3.0 * x for x in range(8)]
    assert project(name, range(9))[8] == 16.0


def test_other_edits_of_what_workers_imported_are_not_seen(project):
    """Comments, moved lines, docstrings, and files that this function does not import."""
    project("h", file="other.py", checkpoint=None)  # its workers imported the other file
    project("f")
    edit(project, "plugin.py", "# why", "# because")
    edit(project, "plugin.py", "def", "\n\n\ndef")
    edit(project, "plugin.py", "    return 2.0 * x", "    'Scale.'\n    return (2.0*x)")
    edit(project, "stranger.py", "k = 1", "k = 2")
    assert project("f").tolist() == [2.0 * x for x in range(8)]
    versions = read_json(project.path / "code.json")["versions"]
    assert [set(version["files"]) for version in versions] == [set(), {"sim.py", "plugin.py"}]


def test_a_late_import_of_a_file_that_was_edited_meanwhile_is_told(project):
    """Its name was known at the beginning, but not what workers would find."""
    func = f"{project.folder / 'sim.py'}:named"
    job = map_async(func, range(3), checkpoint=project.path, max_workers=1)
    wait_until((project.folder / "began").exists)
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    (project.folder / "go").touch()
    assert job.result().tolist() == [0.0, 3.0, 6.0]
    edit(project, "plugin.py", "3.0 * x", "2.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed .* 3 of 3 results"):
        project("named", range(3))


@pytest.mark.parametrize("kind", [list, iter])
def test_the_class_of_items_counts(project, kind):
    """Also if only they lead to it, and if they come one by one."""
    (project.folder / "kinds.py").write_text(
        "class P:\n    def __init__(self, a):\n        self.a = a\n"
        "    def area(self):\n        return 2.0 * self.a\n"
    )
    (project.folder / "areas.py").write_text("def area(p):\n    return p.area()\n")

    def areas(**options):
        P = nbshare.import_file(project.folder / "kinds.py").P
        return project("area", kind([P(1), P(2)]), file="areas.py", **options).tolist()

    assert areas() == [2.0, 4.0]
    edit(project, "kinds.py", "2.0", "3.0")
    with pytest.raises(CheckpointError, match=r"P.* changed .* 2 of 2 results"):
        areas()
    assert areas(if_changed="restart") == [3.0, 6.0]


def test_a_function_with_a_cache_runs_and_counts_as_its_file_is_now(project):
    """Also if the module that the caller imported is an older one."""
    path = project.folder / "cached.py"
    path.write_text("from functools import cache\n@cache\ndef k(x):\n    return 2.0 * x\n")
    func = importlib.import_module("cached").k
    run = {"checkpoint": project.path, "max_workers": 1}
    try:
        assert parallel_map(func, range(3), **run).tolist() == [0.0, 2.0, 4.0]
        path.write_text(path.read_text().replace("2.0", "3.0"))
        with pytest.raises(CheckpointError, match=r"cached\.k changed"):
            parallel_map(func, range(4), **run)
        run["checkpoint"] = Checkpoint(project.path, if_changed="restart")
        results = parallel_map(func, range(4), **run)
        assert results.tolist() == [0.0, 3.0, 6.0, 9.0]
    finally:
        del sys.modules["cached"]


def test_a_file_that_is_gone_is_told(project):
    """Its results cannot be made again."""
    project("f")
    (project.folder / "plugin.py").unlink()
    with pytest.raises(CheckpointError, match=r"plugin\.py was removed"):
        project("f")


def test_a_trial_run_hides_no_import(project):
    """The workers of a run before had imported the file."""
    project("f", checkpoint=None)
    project("f")
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed"):
        project("f")


def test_workers_that_are_used_again_hide_no_import(project):
    """They had imported the file for the results before."""
    project("f", range(4), max_workers=1)
    project("f", range(8), max_workers=1)
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed .* 8 of 8 results"):
        project("f")


def test_a_late_import_concerns_the_results_after_it(project):
    """A new version begins with it. The results before keep theirs, and do not run again."""
    project("g", range(6))
    project("g", range(10), chunksize=1)
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed .* 4 of 10 results"):
        project("g", range(10))
    results = project("g", range(10), if_changed="restart")
    assert results.tolist() == [0, 1, 2, 3, 4, 5, 18, 21, 24, 27]


def test_no_result_is_stored_before_its_imports(project):
    """Within a chunk, too, because a kill may come at any moment, and an edit after it."""
    func = f"{project.folder / 'sim.py'}:slow"
    job = map_async(func, range(60), checkpoint=project.path, chunksize=30, max_workers=2)
    try:
        wait_until(lambda: open_checkpoint(project.path).n_done >= 2 if job.n_done else False)
        index = np.load(project.path / "index.npy")
        versions = read_json(project.path / "code.json")["versions"]
    finally:
        job.cancel()
        job.wait()
    codes = set(index["code"][index["state"] == 1].tolist())
    assert codes
    assert all("plugin.py" in versions[code]["files"] for code in codes)


def test_a_report_that_is_not_heard_yet_is_waited_for(project):
    """No result is there before the dispatcher has read the worker's message."""
    is_blocked, gate = threading.Event(), threading.Event()
    func = f"{project.folder / 'sim.py'}:waiting"
    job = map_async(func, range(3), checkpoint=project.path, chunksize=1, max_workers=1)
    try:
        wait_until((project.folder / "began").exists)
        dispatcher()._events.post(lambda: (is_blocked.set(), gate.wait(10)))
        assert is_blocked.wait(10)
        (project.folder / "go").touch()
        wait_until((project.folder / "imported").exists)
        job._run.keeper.save()
        assert open_checkpoint(project.path).n_done == 0
        assert job.n_done == 0
    finally:
        gate.set()
        job.wait()
    assert open_checkpoint(project.path).n_done == 3
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"plugin\.py changed .* 3 of 3 results"):
        project("waiting", range(3))


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1] + "/project")
import importlib, nbshare, sim
for name in sys.argv[3:]:
    importlib.import_module(name)
results = nbshare.parallel_map(
    sim.f, range(4), checkpoint=sys.argv[1] + "/run", backend=sys.argv[2] or None, progress=False
)
print(results.tolist())
"""


@pytest.mark.parametrize(
    ("backend", "first"),
    [("", []), ("", ["plugin"]), ("serial", []), ("threads", ["plugin"])],
    ids=["workers", "workers, imported first", "serial", "threads, imported first"],
)
def test_another_process_sees_it_in_another_place(project, backend, first, tmp_path):
    """A project that was moved with its checkpoint, also without worker processes."""
    if backend and PLAYED:
        pytest.skip("what plays the system is code that the function calls, and does not move")

    def run(folder):
        command = [sys.executable, "-c", PROGRAM, str(folder), backend, *first]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(tmp_path).stdout == "[0.0, 2.0, 4.0, 6.0]\n"
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(project.folder, moved / "project")
    shutil.move(project.path, moved / "run")
    assert run(moved).stdout == "[0.0, 2.0, 4.0, 6.0]\n"
    (moved / "project" / "plugin.py").write_text(PLUGIN.replace("2.0", "3.0"))
    assert "plugin.py changed (lines 2-3). 4 of 4 results" in run(moved).stderr


def test_a_file_that_is_reached_in_both_ways_counts_whole(project):
    """One function of it by name, another by a computed name."""
    (project.folder / "sim.py").write_text("import plugin\nused = plugin.scale\n" + SIM)
    (project.folder / "plugin.py").write_text(PLUGIN + "def more(x):\n    return 1.0\n")
    edit(project, "sim.py", "return plugin.scale(x)", "return getattr(plugin, 'mo' 're')(x)")
    project("f")
    edit(project, "plugin.py", "return 1.0", "return 2.0")
    with pytest.raises(CheckpointError, match=r"plugin"):
        project("f")


def test_outdated_tells_of_imports(project):
    """Without running anything."""
    project("f")
    run = open_checkpoint(project.path)
    edit(project, "plugin.py", "2.0 * x", "3.0 * x")
    func = nbshare.import_file(project.folder / "sim.py").f
    assert run.outdated(func, range(9)) == (9, 0, 1, 8, ["scale in plugin.py changed (lines 2-3)"])


def test_code_that_imports_nothing_else_has_one_version(project):
    """However often it runs, because files that are found by their names are not reported twice."""
    for n in (3, 5, 8):
        project("plain", range(n))
    assert len(read_json(project.path / "code.json")["versions"]) == 1


def test_a_class_that_comes_out_of_a_pickle_counts(project):
    """Of a file that the code uses by its names, too, if none leads from there to the class."""
    (project.folder / "models.py").write_text(
        "import pickle\ndef load(path):\n    with open(path, 'rb') as file:\n"
        "        return pickle.load(file)\n"
        "class Model:\n    def predict(self, x):\n        return 2.0 * x\n"
    )
    path = project.folder / "model.pkl"
    (project.folder / "use.py").write_text(
        f"import models\ndef predict(x):\n    return models.load({str(path)!r}).predict(x)\n"
    )
    path.write_bytes(b"cmodels\nModel\n)\x81.")
    assert project("predict", file="use.py").tolist() == [2.0 * x for x in range(8)]
    edit(project, "models.py", "2.0 * x", "3.0 * x")
    with pytest.raises(CheckpointError, match=r"Model in .*models\.py changed \(lines 5-7\)"):
        project("predict", file="use.py")
