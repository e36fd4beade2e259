"""Hosts without nbshare, with an older one, or with what the client's cannot work with."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.hosts import cluster, travel
from tests.support import duties, machines
from tests.support.faultlab import TESTS

NEEDED = ("numpy*", "cloudpickle*")


def make_python(folder, needed=NEEDED):
    """Return an interpreter that has some libraries of this one, and no nbshare."""
    venv.create(folder, symlinks=True, with_pip=False)
    (libraries,) = folder.glob("lib/*/site-packages")
    for place in site.getsitepackages():
        for pattern in needed:
            for path in Path(place).glob(pattern):
                if "nbshare" not in path.name and not (libraries / path.name).exists():
                    (libraries / path.name).symlink_to(path)
    return folder / "bin/python", libraries


def make_older(libraries):
    """Install another nbshare, which does not work."""
    package = Path(nbshare.__file__).parent
    shutil.copytree(package, libraries / "nbshare", ignore=shutil.ignore_patterns("__pycache__"))
    (libraries / "nbshare/__init__.py").write_text('__version__ = "0.1"\nassert False, "old"\n')


@pytest.fixture(autouse=True)
def agents_end():
    """End agents, because one that runs on would be that of the next host on this machine."""
    yield
    nbshare.shutdown()


@pytest.fixture
def sent(monkeypatch):
    """Give a list that grows whenever the library is sent."""
    sent, library = [], travel.library
    monkeypatch.setattr(cluster, "library", lambda: sent.append(1) or library())
    return sent


@pytest.fixture
def path(tmp_path):
    """Give a path on which there are the tests, and no nbshare."""
    (folder := tmp_path / "path").mkdir()
    (folder / "tests").symlink_to(TESTS)
    return [str(folder)]


def options(host):
    """Return options of calls that use a host with two workers."""
    return {"backend": host, "max_workers": 2, "progress": False}


@pytest.mark.first
@pytest.mark.parametrize("there", ["nothing", "older"])
def test_the_library_travels(tmp_path, sent, there, path):
    """Once, into memory, while the host's own version and its files stay as they are."""
    python, libraries = make_python(tmp_path / "python")
    if there == "older":
        make_older(libraries)
    (scratch := tmp_path / "scratch").mkdir()
    with machines.Interpreter(2, python, path, TMPDIR=str(scratch), HOME=str(scratch)) as host:
        table = np.arange(100_000.0)
        for _ in range(2):
            shared = {"table": table}
            found = parallel_map(duties.library, range(9), shared=shared, **options(host))
            assert [total for *_, total in found] == [table.sum() + i for i in range(9)]
            assert {version for version, *_ in found} == {nbshare.__version__}
            assert not any(os.path.exists(file) for _, file, _ in found)
        with pytest.raises(ValueError, match="no way on at 3") as caught:
            parallel_map(duties.fail_at, range(6), shared={"bad": {3}}, **options(host))
        assert "item 3" in caught.value.__notes__[0]
        nbshare.shutdown()
    assert sent == [1]
    assert not any(scratch.iterdir())


def test_the_same_library_does_not_travel(sent):
    """Wherever it is there."""
    with machines.Interpreter(1) as host:
        found = parallel_map(duties.identity, range(3), **options(host))
    assert found.tolist() == [0, 1, 2]
    assert not sent


@pytest.mark.parametrize(
    ("needed", "words"), [(NEEDED[1:], "needs NumPy"), (NEEDED[:1], "needs cloudpickle")]
)
def test_what_a_host_needs(tmp_path, needed, words, path):
    """The message names the library."""
    python, _ = make_python(tmp_path / "python", needed)
    with machines.Interpreter(1, python, path) as host, pytest.raises(RuntimeError, match=words):
        parallel_map(duties.identity, range(3), **options(host))


def test_another_numpy_is_refused(tmp_path, path):
    """With both versions, if the major ones differ."""
    python, libraries = make_python(tmp_path / "python", NEEDED[1:])
    (libraries / "numpy.py").write_text('__version__ = "0.9.8"')
    words = f"has NumPy 0, but .* has NumPy {np.__version__.partition('.')[0]}"
    with (
        machines.Interpreter(1, python, path) as host,
        pytest.raises(RuntimeError, match=words),
    ):
        parallel_map(duties.identity, range(3), **options(host))


def another_python():
    """Return another Python, and its version, or skip without one."""
    for minor in range(9, 20):
        beside = sorted(Path(sys.base_prefix).parent.glob(f"*/bin/python3.{minor}"))
        for python in [*beside, shutil.which(f"python3.{minor}")]:
            if python and minor != sys.version_info.minor:
                told = subprocess.run([python, "-c", "print(12)"], capture_output=True)
                if told.stdout == b"12\n":
                    return python, f"3.{minor}"
    return pytest.skip("there is no other Python")


def test_another_python_is_refused(path):
    """With both versions, though it has none of the libraries."""
    python, version = another_python()
    words = rf"has Python {version}, but .* has Python 3.{sys.version_info.minor}"
    with (
        machines.Interpreter(1, python, path) as host,
        pytest.raises(RuntimeError, match=words),
    ):
        parallel_map(duties.identity, range(3), **options(host))


@pytest.mark.parametrize("there", ["nothing", "older"])
def test_the_library_travels_to_a_dask_worker(tmp_path, sent, there):
    """As to any host."""
    distributed = pytest.importorskip("distributed")
    python, libraries = make_python(tmp_path / "python", ["*"])
    if there == "older":
        make_older(libraries)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as local,
        distributed.Client(local) as client,
        subprocess.Popen(
            [
                *(python, "-m", "distributed.cli.dask_worker", local.scheduler_address),
                *("--nthreads", "2", "--local-directory", str(tmp_path / "dask")),
            ],
            env={**os.environ, "PYTHONPATH": ""},
            cwd=tmp_path,
        ) as worker,
    ):
        client.wait_for_workers(1)
        try:
            table = np.arange(100_000.0)
            shared = {"table": table}
            found = parallel_map(duties.library, range(9), shared=shared, **options(client))
            assert [total for *_, total in found] == [table.sum() + i for i in range(9)]
            assert {version for version, *_ in found} == {nbshare.__version__}
        finally:
            nbshare.shutdown()
            worker.terminate()
    assert sent == [1]
