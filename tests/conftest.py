"""Fixtures for all tests: subjects, kernels, cold starts, scripts in new processes."""

from __future__ import annotations

import compileall
import functools
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import costs
from tests.support.faultlab import LIMIT_S, PYTHON_PATH, TESTS, Lab, Ran, Session
from tests.support.forks import Forks

# OpenBLAS's threads, which tests have no work for, look for some for 30 ms in each process before
# they sleep. There are as many as without this.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Tests start more than a thousand processes that import the package, and some of them may not write
# what they compile, which is half of the time until they work. So all that tests import when they
# are collected is kept compiled, and so are they themselves, because rewriting them takes pytest 7
# s. Some installers leave it to them, too, to compile what pytest and kernels import, for 0.7 s.
MORE = {"IPython", "_pytest", "execnet", "ipykernel", "ipywidgets", "platformdirs", "psutil"}
if "PYTEST_XDIST_WORKER" not in os.environ:
    specs = filter(None, map(find_spec, MORE))
    folders = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    for folder in (TESTS.parent / "nbshare", TESTS, *folders):
        compileall.compile_dir(folder, quiet=2)  # also of tests that have errors
WRITES_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False

# Collecting makes many objects that stay. Looking for garbage among them takes a second.
gc.disable()

# A shell's background job ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

Script = Callable[..., str]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run have more than the default."""
    group, one_of = parser.getgroup("cases"), {"dest": "cases", "action": "store_const"}
    group.addoption(
        "--all-cases", **one_of, const="all", default="default", help="all but the soak"
    )
    group.addoption("--other-cases", **one_of, const="other", help="what the default leaves out")
    group.addoption("--core-cases", **one_of, const="core", help="a part of the default")
    group.addoption("--record", metavar="FILE", help="append the seconds of each case to a file")


def pytest_configure(config: pytest.Config) -> None:
    """Set up hypothesis, which is imported here, as rewriting it takes pytest 2 s.

    On a busy machine, not even the making of examples takes as long as it thinks. It asks the
    garbage collector who keeps its generator, which each thread has. On Python 3.14 the answer was
    once nobody, while threads ran. The generator is kept nevertheless.
    """
    import hypothesis

    hypothesis.settings.register_profile(
        "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("busy")
    warning = "It looks like `register_random` was passed:hypothesis.errors.HypothesisWarning"
    config.addinivalue_line("filterwarnings", f"ignore:{warning}")
    os.environ.pop("PYTEST_ADDOPTS", None)  # no options for what tests start
    if config.option.record and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(costs.Recorder(config.option.record))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what waits for the release run, unless marks or cases are named.

    Checks of the repository may take long. Tests of the whole are first, as they take longest. At
    the end they would run alone.
    """
    if not config.option.markexpr and not any("::" in name for name in config.args):
        wanted = costs.wanted(items, config.option.cases)
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
    for item in items:
        if item.get_closest_marker("repo"):
            item.add_marker(pytest.mark.timeout(1800))
    items.sort(key=lambda item: item.path.parent != TESTS)


def pytest_collection_finish() -> None:
    """Have garbage collections leave out what all tests have in common, which takes them 0.1 s."""
    sys.dont_write_bytecode = WRITES_NO_BYTECODE
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Give a laboratory that must be clean when the test is over."""
    lab = Lab(tmp_path)
    try:
        yield lab
    finally:
        lab.close()


@pytest.fixture(scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    session = Session(tmp_path_factory.mktemp("session"))
    try:
        yield session
    finally:
        session.close()


@pytest.fixture
def run_script(_session: Session, tmp_path: Path) -> Callable[..., Ran]:
    """Run a script that must end well, in the process of the module's others. Return what it said.

    For scripts that need no process of their own, to die, have limits, or be looked at in the end.
    """
    return functools.partial(_session.run, folder=tmp_path)


@pytest.fixture(scope="session")
def _one_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.support.kernels import OneKernel  # late, as most tests need none

    kept = OneKernel(lambda: tmp_path_factory.mktemp("common"))
    try:
        yield kept
    finally:
        kept.close()


@pytest.fixture
def common(_one_kernel: Any) -> Iterator[tuple[Lab, Any]]:
    """Give a laboratory and a kernel to all tests that leave it usable, if they pass."""
    with _one_kernel.lent() as (lab, kernel):
        yield lab, kernel


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give a kernel that a server has started to all tests that leave it usable."""
    from tests.support.kernels import listening  # late, as above

    yield from listening(tmp_path_factory.mktemp("page"))


@pytest.fixture(params=["script", "kernel"])
def run(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Run code that must end well, as a script or as a cell of a kernel. Return its ``stderr``."""
    if request.param == "script":
        return request.getfixturevalue("run_script")
    _, kernel = request.getfixturevalue("common")
    folder = request.getfixturevalue("tmp_path")
    kernel.run_well(f"os.chdir({str(folder)!r})")
    return kernel.run_well


@pytest.fixture(autouse=True, scope="module")
def _workers_of_this_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the tests of a file share workers, which have what these tests left in them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTS_OF_FILE", request.node.nodeid)  # a change renews workers
        yield


@pytest.fixture
def cold() -> Iterator[set[psutil.Process]]:
    """No worker and no server is running when the test begins, nor after it.

    Gives the children that this process has anyway, another test's, which nobody has waited for.
    They may go at any time.
    """
    import nbshare

    nbshare.shutdown()
    yield set(psutil.Process().children())
    nbshare.shutdown()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run code as a script, or as given to ``python -c``, in a folder of its own.

    ``script(code, as_command=False, **environ)`` returns what it printed. The script has to end
    well.
    """

    def run(code: str, *, as_command: bool = False, **environ: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(code)
        warnings = "-W", "error", "-W", "ignore:This process:DeprecationWarning"  # of forks
        ended = subprocess.run(
            [sys.executable, *warnings, *(["-c", code] if as_command else [str(path)])],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Give a process that has imported the package, and runs programs in forks of its own."""
    if not hasattr(os, "fork"):
        pytest.skip("processes do not fork on this system")
    with Forks(tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.fixture(scope="module")
def no_helpers_left() -> Iterator[None]:
    """End the helper processes that multiprocessing keeps, because other tests count processes.

    The tracker unlinks semaphores that are left. Those of garbage would be unlinked again, later.
    """
    yield
    gc.collect()
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture
def tally(tmp_path):
    """Give the file in which workers count how often each item was begun."""
    from tests.support.outcomes import MANY  # late, as it imports NumPy

    path = tmp_path / "tally"
    path.write_bytes(bytes(MANY))
    return str(path)
