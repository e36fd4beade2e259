"""Published files work alone: source distribution and wheel, from a zip, in a frozen program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import nbshare

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nbshare"


def run(*command, cwd, **environ):
    """Run a Python in a folder. Return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources():
    """Return all files of the package, by name from its parent folder."""
    found = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*") if file.is_file()}
    return {name for name in found if "__pycache__" not in name}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build both distributions, the wheel from the source distribution, in an empty folder."""
    for needed in ("build", "hatchling", "twine"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("dist")
    command = "-m", "build", "--no-isolation", "--outdir", folder, ROOT
    run(*command, cwd=folder)
    return folder


@pytest.mark.repo
def test_both_distributions_are_accepted(dist):
    """Their metadata is complete, and the README can be rendered."""
    files = sorted(dist.glob("nbshare-*"))
    assert [file.suffix for file in files] == [".whl", ".gz"]
    assert run("-m", "twine", "check", "--strict", *files, cwd=dist).count("PASSED") == 2


@pytest.mark.repo
def test_the_wheel_holds_the_package_and_nothing_else(dist):
    """With its stub, its marker for type checkers and its script."""
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources()
    assert names >= {"nbshare/py.typed", "nbshare/__init__.pyi", "nbshare/_core/notebook/row.js"}


@pytest.mark.repo
def test_the_source_distribution_holds_all_that_a_release_needs(dist):
    """Tests and tutorials too, but nothing that git ignores."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names >= sources() | {"LICENSE", "CITATION.cff", "tests/conftest.py"}
    assert not [name for name in names if "__pycache__" in name or ".venv" in name]


@pytest.mark.first
def test_it_runs_from_a_zip(tmp_path):
    """Workers too import it from there. Results may be stored."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in sources():
            archive.write(ROOT / name, name)
    (tmp_path / "script.py").write_text(
        "import sys\nsys.path.insert(0, 'all.zip')\n"
        "import nbshare\n"
        "def place(x): return nbshare.__file__\n"
        "places = nbshare.parallel_map(place, range(3), checkpoint='run')\n"
        "print(nbshare.__file__, *places, sep='\\n')\n"
    )
    printed = run("script.py", cwd=tmp_path).splitlines()
    assert len(printed) == 4
    assert {Path(place).parts[-3] for place in printed} == {"all.zip"}


FROZEN = """
import math, sys
sys.frozen = True  # as PyInstaller and others do
import nbshare
print(nbshare.parallel_map(math.sqrt, [1.0, 4.0], backend="threads").tolist())
for call in (
    lambda: nbshare.parallel_map(math.sqrt, [1.0, 4.0]),
    lambda: nbshare.map_async(math.sqrt, [1.0, 4.0], checkpoint="run", detach=True),
    lambda: nbshare.Executor().submit(math.sqrt, 4.0).result(),
    lambda: nbshare.doctor(),
):
    try:
        call()
    except NotImplementedError as error:
        print(error)
"""


def test_a_frozen_program_is_told_that_it_has_no_workers(tmp_path):
    """It would start itself, again and again. Threads work."""
    (tmp_path / "script.py").write_text(FROZEN)
    printed = run("script.py", cwd=tmp_path).splitlines()
    assert printed[0] == "[1.0, 2.0]"
    assert len(printed) == 5
    assert all("frozen program" in line for line in printed[1:])


@pytest.mark.repo
def test_what_others_are_told_agrees():
    """Version and requirements in the metadata, the citation and the recipe for conda."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    needed = {name.replace("matplotlib>", "matplotlib-base>") for name in project["dependencies"]}
    run_part = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    told = {line.strip(" -").replace(" >", ">") for line in run_part.splitlines()}
    assert told == needed | {f"python{project['requires-python']}", "__linux"}
    for text in (recipe, (ROOT / "CITATION.cff").read_text()):
        assert re.search(r"(?m)^ *version: \"?([\d.]+)", text)[1] == nbshare.__version__


def test_tracebacks_are_short_if_ipython_comes_later(tmp_path):
    """As in a script that opens a shell."""
    (tmp_path / "script.py").write_text(
        "import nbshare\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor')\n"
        "shell.run_cell('nbshare.parallel_map(5, [1])')\n"
        "shell.run_cell('import nbshare\\nnbshare.parallel_map(5, [1])')\n"
    )
    printed = run("script.py", cwd=tmp_path, IPYTHONDIR=str(tmp_path))
    assert "func must be callable" in printed
    assert "mapping.py" not in printed
