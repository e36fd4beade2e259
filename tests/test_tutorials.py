"""The tutorials run, and what is saved of them is what a reader should see."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from nbshare import demo

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(/home/|/root/|/tmp/|/work/|/Users/|/var/|site-packages|[A-Z]:\\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
most_are_slow = pytest.mark.parametrize(
    "path",
    [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS[1:])],
    ids=lambda path: path.stem,
)


FAILS = {"tags": ["raises-exception"]}  # of a cell that shows what a failure looks like


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


# What takes long on two CPUs, and what to write instead.
SMALLER = {
    "01_first_parallel_map": [("spread(180)", "spread(12)"), ("azimuths[:36]", "azimuths[:4]")],
    "03_progress_and_plots": [("-177, 177, 237", "-177, 177, 20")],
    "09_libraries": [("examples(600)", "examples(300)")],
    "10_pipelines": [("MINUTES = 3 ", "MINUTES = 2 ")],
}


def execute(path):
    """Run a notebook in a kernel of its own, in its folder; unexpected errors are raised."""
    notebook = nbformat.read(path, as_version=4)
    for old, new in SMALLER.get(path.stem, ()):
        assert any(old in cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    client = NotebookClient(
        notebook,
        timeout=240,  # seconds a cell
        coalesce_streams=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return notebook


def test_there_are_tutorials():
    """Without this the tests below would pass in an empty folder."""
    assert NOTEBOOKS


def test_the_tutorial_uses_the_demo_s_functions():
    """One source of truth: the file beside the notebooks is the demo's, word for word."""
    heading, constant, functions = (FOLDER / "terrain.py").read_text().partition("STEP_M = ")
    assert "def" not in heading
    assert Path(demo.__file__).read_text().endswith(f"\n{constant}{functions}")


@pytest.mark.timeout(300)  # it computes most of what a reader would, beside other tests
@most_are_slow
def test_runs_from_the_top(path, tmp_path, monkeypatch):
    """A copy of the folder is enough; no cell fails, and what it shows are the saved kinds."""
    monkeypatch.setenv("NBSHARE_STATIC", "1")
    for file in [path, *FOLDER.glob("*.py")]:
        shutil.copy(file, tmp_path)
    saved, executed = nbformat.read(path, as_version=4), execute(tmp_path / path.name)

    def kinds(notebook):
        return [
            [sorted(output.get("data", {output.output_type: 0})) for output in cell.outputs]
            for cell in notebook.cells
            if cell.cell_type == "code"
        ]

    assert kinds(executed) == kinds(saved), "run notebooks/rebuild.py"


@each_notebook
def test_is_saved_as_it_was_run(path):
    """In one go from the top, in a fresh kernel, without metadata of a machine."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.metadata in ({}, FAILS) for cell in notebook.cells)
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells)


@each_notebook
def test_shows_results_and_a_picture(path):
    """Without being run: outputs, sharp pictures, no failure but those it is about."""
    notebook = nbformat.read(path, as_version=4)
    outputs = outputs_of(notebook)
    pictures = [
        base64.b64decode(output.data["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert all(1_000 < len(picture) <= 400_000 for picture in pictures)
    for cell in notebook.cells:
        kinds = [output.output_type for output in cell.get("outputs", [])]
        assert ("error" in kinds) == (cell.metadata == FAILS)
    assert not any(output.get("name") == "stderr" for output in outputs)
    text = path.read_text()
    assert "widget-view+json" not in text
    assert "0%|" not in text
    assert len(text) < 1_500_000
    assert len(notebook.cells) <= 20


@each_notebook
def test_names_no_place_of_the_machine_it_ran_on(path):
    """No absolute path, neither in a source nor in an output."""
    notebook = nbformat.read(path, as_version=4)
    words = [cell.source for cell in notebook.cells]
    for output in outputs_of(notebook):
        words += [output.get("text", ""), *output.get("traceback", ())]
        words += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    assert not MACHINE_PATH.search("\n".join(words))


def fences(language):
    """Return the README's code blocks of a language, and the comment before each, if any."""
    pattern = rf"(?:<!-- ([a-z ]+) -->\n)?```{language}\n(.*?)```"
    return re.findall(pattern, (FOLDER.parent / "README.md").read_text(), re.DOTALL)


def test_the_readme_sets_up_with_two_commands():
    """Each is one line, marked so that a script finds it, and makes its own environment."""
    commands = {mark: text.strip() for mark, text in fences("sh")}
    assert set(commands) == {"demo command", "test command"}
    for command in commands.values():
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ")
    assert commands["demo command"].endswith(".venv/bin/python -m nbshare demo")
    assert commands["test command"].endswith(".venv/bin/python -m pytest -n 2 --dist loadfile")


def test_the_readme_s_tour_runs(tmp_path):
    """The module and the cell, copied from the README into a folder of their own."""
    module, cell = (text for mark, text in fences("python") if not mark)
    (tmp_path / "workers.py").write_text(module)
    (tmp_path / "cell.py").write_text(cell)
    done = subprocess.run(
        [sys.executable, "cell.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    mean, _, spread = done.stdout.split()
    assert float(mean) == pytest.approx(1.65, abs=0.02)
    assert 0 < float(spread) < 0.02


def test_the_readme_s_example_of_shared_arrays_runs():
    """Copied from the README: the workers sorted in place, and the buffer holds what was put in."""
    names = {}
    exec(dict(fences("python"))["shared arrays"], names)
    assert (np.diff(names["samples"]) >= 0).all()
    assert np.array_equal(np.sort(names["integers"]["D"]), np.arange(200))


def test_the_readme_s_example_of_a_ring_buffer_runs():
    """Copied from the README: everything that was loaded is read, in order."""
    names = {}
    exec(dict(fences("python"))["ring buffer"], names)
    expected = [
        np.random.default_rng(i).normal(size=(500, 500)).astype("f4").mean() for i in range(20)
    ]
    assert np.array_equal(names["means"], expected)


def test_the_readme_s_example_of_an_executor_runs():
    """Copied from the README: each task has written its place of the result."""
    names = {}
    exec(dict(fences("python"))["executor"], names)
    expected = np.zeros(20, "f2")
    for i in range(20):
        names["mean_change"](names["data"], expected, i)
    assert np.array_equal(names["result"], expected)
    assert (expected > 0).all()


def test_the_readme_s_example_of_a_pipeline_runs(tmp_path, monkeypatch):
    """Copied from the README: the spectrogram is that of the whole recording, the end padded."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "cell"}
    exec(dict(fences("python"))["pipeline"], names)
    samples = np.zeros(245 * 4096, "f4")
    samples[:1_000_000] = np.fromfile("recording.raw", "f4")
    expected = abs(np.fft.rfft(samples.reshape(245, 4096))) ** 2
    assert np.allclose(names["spectrogram"], expected, rtol=1e-3, atol=0.1)


def test_the_readme_s_links_lead_somewhere():
    """Files and pictures it names are there, and the picture is small."""
    text = (FOLDER.parent / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (FOLDER.parent / target).exists()] == []
    assert (FOLDER / "images" / "horizon.png").stat().st_size <= 150_000
