"""What is installed counts as it is, and what a user may edit is compared at each call."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nbshare
from nbshare._core.functions.installed import is_installed
from tests.support.processes import IS_WINE

ROOT = Path(nbshare.__file__).parents[1]
RECORD = "{0}/__init__.py,sha256=x,1\n{0}/deep/part.py,,\nsingle_{0}.py,,\n../../bin/{0},,\n"


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Return a folder of the import path. ``on_path("name")`` returns a file in it."""
    folder = tmp_path / "lib"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def file(name):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    return file


def install(folder, name, package):
    """Leave in a folder what pip leaves there of a distribution."""
    info = Path(folder, f"{name}-1.0.dist-info")
    info.mkdir(parents=True)
    (info / "RECORD").write_text(RECORD.format(package))


@pytest.mark.parametrize("name", ["numpy", "json", "_socket", "nbshare", "math"])
def test_installed_modules_are_not_watched(name):
    """Nor is nbshare, wherever it is. Some modules have no file."""
    path = getattr(importlib.import_module(name), "__file__", None)
    assert path is None or is_installed(path)


def test_a_project_may_be_in_the_folder_of_an_environment():
    """Which is one for packages, too, on Windows. Its code is edited."""
    for prefix in (sys.prefix, sys.exec_prefix):
        assert not is_installed(os.path.join(prefix, "project", "part.py"))


@pytest.mark.parametrize(
    "folder",
    ["opt/eb/SciPy/3/lib/python3.11/site-packages", "usr/local/lib/python3/dist-packages"],
)
def test_packages_of_any_interpreter_are_installed(tmp_path, folder):
    """Modules of clusters and Colab put such folders on PYTHONPATH, without more."""
    for name in ("single.py", "pack/__init__.py", "pack/deep/part.py", "pack/core.so"):
        assert is_installed(str(tmp_path / folder / name))


def test_what_pip_has_left_in_a_folder_is_installed(on_path):
    """With `pip install --target`, whatever the package is called. Files next to it are not."""
    folder = os.path.dirname(on_path("mine.py"))
    install(folder, "scikit_other", "sk")
    install(folder, "named", "named")
    for name in ("sk", "named"):
        assert is_installed(on_path(f"{name}/__init__.py"))
        assert is_installed(on_path(f"{name}/deep/part.py"))
        assert is_installed(on_path(f"single_{name}.py"))
    for name in ("mine.py", "my_package/__init__.py", "skother/part.py", "bin.py"):
        assert not is_installed(on_path(name))


def test_a_package_that_is_installed_later_is_installed(on_path):
    """As by ``%pip install --target`` in a notebook that has imported others from there."""
    folder = os.path.dirname(on_path("mine.py"))
    assert not is_installed(on_path("mine.py"))
    install(folder, "late", "late")
    assert is_installed(on_path("late/__init__.py"))


def test_an_environment_may_be_in_a_project(on_path):
    """The nearest folder for packages decides."""
    assert is_installed(on_path(".venv/lib/python3.11/site-packages/pack/part.py"))
    assert not is_installed(on_path("pack/part.py"))


def test_an_editable_install_is_the_users_own(on_path):
    """Its record lists what leads to the source, and not the source."""
    file = on_path("project/src/pack/__init__.py")
    install(os.path.dirname(on_path("mine.py")), "pack", "__editable___pack_finder")
    assert not is_installed(file)


@pytest.mark.skipif(IS_WINE, reason="Wine makes no links")
def test_what_is_a_link_where_others_are_installed_is_watched(tmp_path):
    """A package or a module that is developed elsewhere, and edited there."""
    for part in ("site-packages/installed", "work/package"):
        tmp_path.joinpath(part).mkdir(parents=True)
    for file in ("work/single.py", "work/package/module.py", "site-packages/plain.py"):
        tmp_path.joinpath(file).touch()
    site = tmp_path / "site-packages"
    (site / "package").symlink_to(tmp_path / "work/package")
    (site / "single.py").symlink_to(tmp_path / "work/single.py")
    assert is_installed(str(site / "plain.py"))
    assert is_installed(str(site / "installed/module.py"))
    assert not is_installed(str(site / "single.py"))
    assert not is_installed(str(site / "package/module.py"))
    (tmp_path / "mine").symlink_to(site / "installed")
    assert is_installed(str(tmp_path / "mine/module.py"))


@pytest.mark.parametrize("name", ["\0.py", "\ud800.py", "a" * 5000 + ".py"])
def test_a_name_that_no_file_may_have_is_no_error(name):
    """A module may say anything of its file."""
    assert not is_installed(os.path.join(os.sep, name, name))


LAYOUTS = {"target": True, "site-packages": True, ".pth": True, "plain": False}
PACKAGE = {
    "__init__.py": "from biglib import " + ", ".join(f"part_{k}" for k in range(30)),
    **{f"part_{k}.py": f"import biglib\nN = {k}\ndef f(x): return x + {k}\n" for k in range(30)},
}
COUNT = """
import site, sys
site.addsitedir({site!r})
import biglib
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
import nbshare
def g(x): return biglib.part_3.f(x)
for f in (biglib.part_3.f, g):
    print(*nbshare.parallel_map(f, [1], progress=False))
nbshare.parallel_map(g, [1], checkpoint="run", progress=False)
print(len({{each for each in opened if str(each).endswith(".py") and "biglib" in str(each)}}))
sys.path[:] = [each for each in sys.path if each != {folder!r}]
print(*nbshare.parallel_map(g, [2], progress=False))
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_file_of_an_installed_package_is_read(tmp_path, layout):
    """On PYTHONPATH, in a target folder, by a .pth file. Workers find it, as the caller did."""
    folder = tmp_path / (layout if layout != ".pth" else "other/site-packages")
    (folder / "biglib").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / "biglib" / name).write_text(text)
    (tmp_path / "site").mkdir()
    path = [str(ROOT)]
    if layout == "target":
        install(folder, "other_name", "biglib")
    if layout == ".pth":
        (tmp_path / "site/other.pth").write_text(str(folder))
    else:
        path.append(str(folder))
    ended = subprocess.run(
        [sys.executable, "-c", COUNT.format(site=str(tmp_path / "site"), folder=str(folder))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    *values, n_read, after = ended.stdout.split() or [ended.stderr] * 2
    assert (values, after) == (["4", "4"], "5"), ended.stderr
    assert (n_read == "0") is LAYOUTS[layout], ended.stderr
