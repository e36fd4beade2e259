"""The tutorials run, and what is saved of them is what a reader should see."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import pytest

from nbshare._core.entries import demo

pytestmark = pytest.mark.repo

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(/home/|/root/|/tmp/|/work/|/Users/|/var/|site-packages|[A-Z]:\\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

MOST_CHARACTERS = 88  # of a line of code; longer ones are cut in a narrow window

FAILS = {"tags": ["raises-exception"]}  # of a cell that shows what a failure looks like


def read(path):
    import nbformat  # late, because every process of the test run collects this file

    return nbformat.read(path, as_version=4)


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


# Sources that take long on two CPUs, and their replacements.
SMALLER = {
    "01_first_parallel_map": [("spread(16)", "spread(2)")],
    "03_progress_and_plots": [("-177, 177, 237", "-177, 177, 20")],
    "05_sweeps_and_files": [
        ("zip(scans.images, scans.target)", "zip(scans.images[:200], scans.target)"),
        ("-2, 4, 19", "-2, 4, 5"),
        ("-6, -1, 16", "-6, -1, 4"),
        ("zoom(small, 12", "zoom(small, 4"),
    ],
    "07_shared_arrays": [("years=30", "years=3")],
    "08_background_jobs": [("3.4, 41)", "3.4, 9)")],
    "09_executor": [
        ("1 / 1.5, 1000)", "1 / 1.5, 400)"),
        ("range(1000)", "range(400)"),
        ("maxiter=20", "maxiter=5"),
        ("start, 140", "start, 60"),
    ],
    "10_libraries": [
        ("N_POINTS = 24", "N_POINTS = 8"),
        ("n_repeats=20", "n_repeats=1"),
        ("[:900]", "[:400]"),
        ("[900:]", "[400:]"),
        ("share(images / 16)", "share(images[:600] / 16)"),
        ("share(digits)", "share(digits[:600])"),
    ],
    "11_a_model_in_each_worker": [
        ("MLPClassifier(100", "MLPClassifier(10, tol=1"),
        ("-90, 91, 3", "-90, 91, 30"),
    ],
    "12_pipelines": [("MINUTES = 3 ", "MINUTES = 2 ")],
    "14_long_runs": [("steps=4000", "steps=1500")],
    "06_tables": [("observe(120", "observe(20")],
    "15_clusters": [("344, 12)", "344, 24)"), ("403, 12)", "403, 24)")],
}
NEEDS = {  # packages that may be missing
    "05_sweeps_and_files": ["sklearn"],
    "09_executor": ["emcee"],
    "10_libraries": ["sklearn"],
    "15_clusters": ["distributed", "ray"],
    "11_a_model_in_each_worker": ["sklearn"],
}


def execute(path):
    """Run a notebook in a kernel of its own, in its folder. Unexpected errors are raised."""
    from nbclient import NotebookClient  # late, as above

    notebook = read(path)
    for old, new in SMALLER.get(path.stem, ()):
        assert any(old in cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    client = NotebookClient(
        notebook,
        timeout=None,  # the test has one
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
    """One source of truth. The file next to the notebooks is the demo's, word for word."""
    heading, constant, functions = (FOLDER / "terrain.py").read_text().partition("STEP_M = ")
    assert "def" not in heading
    assert Path(demo.__file__).read_text().endswith(f"\n{constant}{functions}")


def test_the_sheet_of_plots_is_that_of_its_script(monkeypatch):
    """Each line of code that is shown, and no picture that the script does not draw."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import plots

    assert plots.table() in read(FOLDER / "03_progress_and_plots.ipynb").cells[-2].source
    assert {path.stem for path in plots.FOLDER.iterdir()} == {name for name, *_ in plots.SHEET}


@each_notebook
def test_runs_from_the_top(path, tmp_path, monkeypatch):
    """A copy of the folder is enough. No cell fails, and what it shows are the saved kinds."""
    for package in NEEDS.get(path.stem, []):
        pytest.importorskip(package, reason=f"{path.stem} needs {package}")
    monkeypatch.setenv("NBSHARE_STATIC", "1")
    for file in [path, *FOLDER.glob("*.py")]:
        shutil.copy(file, tmp_path)
    saved, executed = read(path), execute(tmp_path / path.name)

    def kinds(notebook):
        return [
            [sorted(output.get("data", {output.output_type: 0})) for output in cell.outputs]
            for cell in notebook.cells
            if cell.cell_type == "code"
        ]

    assert kinds(executed) == kinds(saved), "run notebooks/making/rebuild.py"


@each_notebook
def test_is_saved_as_it_was_run(path):
    """In one go from the top, in a fresh kernel, without metadata of a machine."""
    import nbformat  # late, as above

    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.metadata in ({}, FAILS) for cell in notebook.cells)
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells)


@each_notebook
def test_shows_results_and_a_picture(path):
    """Without being run, it has outputs, sharp pictures, no failure but those it is about."""
    notebook = read(path)
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
def test_lines_of_code_fit_the_page(path):
    """With the side bar of JupyterLab open, too, in cells and in the text between them."""
    blocks = []
    for cell in read(path).cells:
        is_text = cell.cell_type == "markdown"
        blocks += re.findall(r"(?s)```\w*\n(.*?)```", cell.source) if is_text else [cell.source]
    lines = "\n".join(blocks).split("\n")
    assert not [line for line in lines if len(line) > MOST_CHARACTERS]


@each_notebook
def test_names_no_place_of_the_machine_it_ran_on(path):
    """No absolute path and no process id, neither in a source nor in an output."""
    notebook = read(path)
    words = [cell.source for cell in notebook.cells]
    for output in outputs_of(notebook):
        words += [output.get("text", ""), output.get("evalue", "")]
        words += output.get("traceback", ())
        words += [v for k, v in output.get("data", {}).items() if k.startswith("text/")]
    assert not MACHINE_PATH.search("\n".join(words))
    assert not re.search(r"worker \d{3}", "\n".join(words))
