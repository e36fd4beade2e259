"""Workers run the files as they are when a call begins."""

from __future__ import annotations

import importlib
import os
import py_compile
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from py_compile import PycInvalidationMode

import psutil
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.functions.freshness import stamp_of
from tests.support import tasks
from tests.support.faultlab import LIMIT_S, is_asleep, wait_until
from tests.support.processes import IS_WINE

# --------------------------------------------------------------------------- fresh code


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module file into a folder of the import path. ``module(name, code)`` imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    written = set()

    def write(name, code, *, into=tmp_path, imported=True):
        Path(into, f"{name}.py").write_text(textwrap.dedent(code))
        written.add(name)
        importlib.invalidate_caches()
        return importlib.import_module(name) if imported else None

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_an_edited_module_is_run_as_it_is_in_the_file(module):
    """The next call runs the new code of a file, though the notebook has not imported it again."""
    answer = module("fresh_edited", "def answer(x): return x + 1").answer
    assert parallel_map(answer, [1]).tolist() == [2]
    for i in range(2, 5):
        module("fresh_edited", f"def answer(x): return 'now {'!' * i}'", imported=False)
        assert parallel_map(answer, [1]) == ["now " + "!" * i]


def test_an_edit_of_the_same_size_within_the_same_second_is_seen(module, tmp_path, monkeypatch):
    """The bytecode cache, which compares seconds and sizes, does not bring old code back."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "fresh_quick.py"
    answer = module("fresh_quick", "def answer(x): return x + 1").answer
    second_ns = path.stat().st_mtime_ns // 10**9 * 10**9
    assert parallel_map(answer, [1]).tolist() == [2]
    for i in range(2, 5):
        module("fresh_quick", f"def answer(x): return x + {i}", imported=False)
        os.utime(path, ns=(second_ns, second_ns + i))
        assert parallel_map(answer, [1]).tolist() == [1 + i]


def test_an_edit_that_keeps_size_time_and_inode_is_seen(module, tmp_path):
    """A file that is written in place, and given its old time back, as `cp -p` and rsync do."""
    path = tmp_path / "fresh_in_place.py"
    answer = module("fresh_in_place", "def answer(x): return x + 1").answer
    for i in range(1, 5):
        module("fresh_in_place", f"def answer(x): return x + {i}", imported=False)
        os.utime(path, ns=(10**18, 10**18))
        assert parallel_map(answer, [1]).tolist() == [1 + i]


@pytest.mark.parametrize(
    ("younger_s", "mode", "is_used"),
    [
        (100, "TIMESTAMP", True),
        (1, "TIMESTAMP", False),
        (100, "CHECKED_HASH", False),
    ],
)
def test_a_cache_is_read_only_where_it_is_surely_of_this_version(
    module, tmp_path, younger_s, mode, is_used
):
    """One that is so much younger than its source. Here it has other code, to be told apart."""
    name = f"fresh_cached_{younger_s}_{mode}".lower()
    path, code = tmp_path / f"{name}.py", "def answer(x): return x + {}.0"
    answer = module(name, code.format(5)).answer
    os.utime(path, (10**9, 10**9))
    cache = py_compile.compile(str(path), doraise=True, invalidation_mode=PycInvalidationMode[mode])
    module(name, code.format(1), imported=False)
    os.utime(path, (10**9, 10**9))
    changed_s = stamp_of(str(path)).ctime_ns / 10**9  # on Windows, st_ctime is of the creation
    os.utime(cache, (changed_s + younger_s, changed_s + younger_s))
    assert parallel_map(answer, [1]).tolist() == [6.0 if is_used else 2.0]


@pytest.mark.skipif(IS_WINE, reason="Wine makes no links")
def test_a_link_that_leads_to_another_version_is_seen(module, tmp_path):
    """Though both have the same size and time, as files that were unpacked together do."""
    for rate in (1, 9):
        (tmp_path / f"rate_{rate}.py").write_text(f"RATE = {rate}")
        os.utime(tmp_path / f"rate_{rate}.py", (10**9, 10**9))
    link = tmp_path / "fresh_rate.py"
    link.symlink_to("rate_1.py")
    py_compile.compile(str(link), doraise=True)
    answer = module("fresh_rate_user", "import fresh_rate\ndef answer(x): return fresh_rate.RATE")
    assert parallel_map(answer.answer, [0]).tolist() == [1]
    link.unlink()
    link.symlink_to("rate_9.py")
    assert parallel_map(answer.answer, [0]).tolist() == [9]


EDITABLE = """
import os
import nbshare
import fresh_editable
for i in range(1, 6):
    with open(fresh_editable.__file__, "w") as file:
        file.write(f"def answer(x): return x + {i}")
    os.utime(fresh_editable.__file__, ns=(10**18, 10**18 + i))  # in the same second
    print(nbshare.parallel_map(fresh_editable.answer, [10], progress=False).tolist()[0] - 10)
"""


FINDER = """
import os, sys
from importlib.util import spec_from_file_location
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "fresh_editable":
            return spec_from_file_location(name, os.path.join({folder!r}, "__init__.py"))
sys.meta_path.append(Finder)
"""


def test_an_editable_install_with_a_finder_of_its_own_is_fresh(tmp_path):
    """Workers run what is in the package's __init__.py now, as of any other module."""
    package = tmp_path / "elsewhere" / "fresh_editable"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def answer(x): return x")
    (tmp_path / "sitecustomize.py").write_text(FINDER.format(folder=str(package)))
    (tmp_path / "main.py").write_text(EDITABLE)
    ended = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.stdout.split() == ["1", "2", "3", "4", "5"], ended.stderr


def test_workers_leave_no_bytecode_beside_a_users_files(tmp_path, monkeypatch):
    """If the caller has written none."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path = tmp_path / "without_cache.py"
    path.write_text("def answer(x): return x + 1")
    os.utime(path, (1, 1))
    assert parallel_map(f"{path}:answer", [1]).tolist() == [2]
    assert os.listdir(tmp_path) == ["without_cache.py"]


@pytest.mark.skipif(sys.platform == "win32", reason="workers have pipes there, no sockets")
def test_a_default_timeout_of_sockets_is_not_for_workers(cold):
    """After one is set, for downloads, the next call has the same idle worker."""
    socket.setdefaulttimeout(0.01)
    try:
        workers = [parallel_map(tasks.pid, [0], max_workers=1)[0]]
        wait_until(lambda: is_asleep(workers[0]))
        time.sleep(0.05)  # in which it waits for a message
        workers.append(parallel_map(tasks.pid, [0], max_workers=1)[0])
    finally:
        socket.setdefaulttimeout(None)
    assert workers[0] == workers[1]


def test_an_edited_helper_module_is_seen(module):
    """An edit of a module that the function's module imports counts as well."""
    module("fresh_helper", "STEP = 1")
    code = "import fresh_helper\ndef answer(x): return x + fresh_helper.STEP"
    answer = module("fresh_user", code).answer
    assert parallel_map(answer, [1]).tolist() == [2]
    module("fresh_helper", "STEP = 10", imported=False)
    assert parallel_map(answer, [1]).tolist() == [11]


@pytest.mark.first
def test_an_edit_before_the_first_use_is_seen(module):
    """Workers import a module as it is now, though it was there otherwise when they started."""
    nbshare.shutdown()
    answer = module("fresh_unused", "def answer(x): return x").answer
    for _ in range(3):
        parallel_map(tasks.double, [1, 2])
    module("fresh_unused", "def answer(x): return x + 10", imported=False)
    assert parallel_map(answer, [1]).tolist() == [11]
    module("fresh_unused", "def answer(x): return x + 100", imported=False)
    assert parallel_map(answer, [1]).tolist() == [101]


def test_an_edit_during_a_call_is_seen_by_the_next_one(module, tmp_path):
    """A file that changes after a worker has imported it is run as it is now by the next call."""
    path = tmp_path / "fresh_during.py"
    code = """
        from pathlib import Path
        def rewrite(text): Path(__file__).write_text(text)
        def answer(x): return "old"
        """
    during = module("fresh_during", code)
    parallel_map(during.rewrite, ["def answer(x): return 'new'"])
    assert path.read_text() == "def answer(x): return 'new'"
    assert parallel_map(during.answer, [1]) == ["new"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("edit", ["def answer(i): return -1.0", "def answer(i) retu"])
def test_a_replaced_worker_runs_the_code_of_the_calls_start(module, edit, is_first):
    """An edit during a call, of the function's or a helper's file, waits for the next call."""
    module("fresh_step", "STEP = 1.0")
    code = """
        import os
        from pathlib import Path
        import fresh_step
        from tests.support.faultlab import SIGKILL
        def answer(i, edit=None):
            if edit and i == 1:
                Path(__file__).write_text(edit)
                Path(fresh_step.__file__).write_text("STEP = 5.0")
                os.kill(os.getpid(), SIGKILL)
            return i + fresh_step.STEP
        """
    answer = module("fresh_replaced", code).answer
    if not is_first:
        assert parallel_map(answer, range(3)).tolist() == [1, 2, 3]
    options = {"max_workers": 1, "on_error": "return", "chunksize": 1}
    result = parallel_map(answer, range(6), shared={"edit": edit}, **options)
    assert result.tolist() == [1.0, None, 3.0, 4.0, 5.0, 6.0]
    if edit.endswith("-1.0"):
        assert parallel_map(answer, range(2)).tolist() == [-1.0, -1.0]
    else:
        with pytest.raises(SyntaxError):
            parallel_map(answer, range(2))


@pytest.mark.parametrize("is_imported_before", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_an_edit_does_not_split_a_call(module, tmp_path, is_known, is_imported_before):
    """Of two workers one imports the module before an edit, maybe before the call, one after it.

    Whether the notebook had imported it when the workers were started, or later.
    """
    code = """
        import os
        from pathlib import Path
        import psutil
        from tests.support.faultlab import wait_until
        VERSION = 1.0
        def answer(i, late, folder):
            Path(folder, str(i)).touch()
            if i == 0 and VERSION == 1.0:
                source = Path(__file__)
                source.write_text(source.read_text().replace("VERSION = 1.0", "VERSION = 2.0"))
                psutil.Process(late).resume()
                wait_until(Path(folder, "1").exists)
            return VERSION
        def pid(_): return os.getpid()
        """
    nbshare.shutdown()
    late = module("fresh_late", code) if is_known else None
    folders = {name: tempfile.mkdtemp(dir=tmp_path) for name in ("there", "done")}
    there = {"folder": folders["there"], "n": 2}
    pids = parallel_map(tasks.meet, [0, 1], shared=there, max_workers=2, chunksize=1)
    late = late or module("fresh_late", code)
    for _ in range(2):  # after which it is as if the notebook had not known it
        parallel_map(tasks.double, [1, 2])
    pid = late.pid if is_imported_before else tasks.pid
    first = parallel_map(pid, [0], max_workers=1)[0]
    (other,) = set(pids.tolist()) - {first}
    psutil.Process(other).suspend()
    shared = {"late": other, "folder": folders["done"]}
    versions = parallel_map(late.answer, [0, 1], shared=shared, max_workers=2, chunksize=1)
    assert versions.tolist() == [1.0, 1.0]
    assert parallel_map(late.answer, [0, 1], shared=shared).tolist() == [2.0, 2.0]


def test_a_module_of_the_same_name_in_another_folder(module, tmp_path, monkeypatch):
    """After a change of the import path, a name means the module that the caller has now."""
    for i in range(2):
        folder = tmp_path / f"project_{i}"
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        sys.modules.pop("fresh_project", None)
        code = f"def which(x): return 'project {i}'"
        which = module("fresh_project", code, into=folder).which
        assert which(0) == f"project {i}"
        assert parallel_map(which, [0]) == [f"project {i}"]


def test_a_broken_edit_is_one_clear_error(module):
    """A file with a syntax error fails the call with that error, and works when it is mended."""
    answer = module("fresh_broken", "def answer(x): return 1").answer
    assert parallel_map(answer, [0]).tolist() == [1]
    module("fresh_broken", "def answer(x) return 2", imported=False)
    with pytest.raises(SyntaxError):
        parallel_map(answer, [0])
    module("fresh_broken", "def answer(x): return 3.5", imported=False)
    assert parallel_map(answer, [0]).tolist() == [3.5]


# ------------------------------------------------- files that are executed without an import

LOADED = {
    "spec": "import importlib.util as u\nspec = u.spec_from_file_location('by_path', PATH)\n"
    "plugin = u.module_from_spec(spec)\nspec.loader.exec_module(plugin)\ng = plugin.g\n",
    "loader": "import types\nfrom importlib.machinery import SourceFileLoader\n"
    "plugin = types.ModuleType('by_path')\n"
    "SourceFileLoader('by_path', PATH).exec_module(plugin)\ng = plugin.g\n",
    "run_path": "import runpy\ng = runpy.run_path(PATH)['g']\n",
    "exec": "import pathlib\nexec(pathlib.Path(PATH).read_text(), NAMES)\n",
    "compile": "with open(PATH, 'rb') as file:\n"
    "    exec(compile(file.read(), PATH, 'exec'), NAMES)\n",
}


@pytest.mark.parametrize("is_late", [False, True], ids=["at import", "in an item"])
@pytest.mark.parametrize("way", LOADED)
def test_an_edit_of_a_file_that_is_executed_by_its_path_is_seen(way, is_late, module, tmp_path):
    """Not only what `import` finds, as workers notice each file that they execute."""
    plugin = tmp_path / "executed.py"
    plugin.write_text("def g(x): return 2 * x\n")
    load = LOADED[way].replace("PATH", repr(str(plugin)))
    code = f"{load}def f(x): return g(x)\n".replace("NAMES", "globals()")
    if is_late:
        load = textwrap.indent(load.replace("NAMES", "names"), "        ")
        code = f"names = {{}}\ndef f(x):\n    if not names:\n{load}"
        code += "        names.setdefault('g', locals().get('g'))\n    return names['g'](x)\n"
    f = module(f"fresh_{way}_{is_late}", code).f
    path = tmp_path / "run"
    assert parallel_map(f, [1, 2]).tolist() == [2, 4]
    assert parallel_map(f, [1, 2], checkpoint=path).tolist() == [2, 4]
    plugin.write_text("def g(x): return 30 * x  # edited\n")
    assert parallel_map(f, [1, 2]).tolist() == [30, 60]
    with pytest.raises(nbshare.errors.CheckpointError, match=r"executed\.py changed"):
        parallel_map(f, [1, 2], checkpoint=path)
    again = nbshare.Checkpoint(path, if_changed="restart")
    results = parallel_map(f, [1, 2], checkpoint=again)
    assert results.tolist() == [30, 60]
