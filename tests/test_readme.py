"""The README tells the truth, in its commands, its tour, its table of times, its links."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

pytestmark = pytest.mark.repo

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()


def fences(language: str) -> dict[str, str]:
    """Return the code blocks of a language that are marked, by their mark."""
    return dict(re.findall(rf"<!-- ([a-z. ]+) -->\n```{language}\n(.*?)```", TEXT, re.DOTALL))


def test_it_is_short():
    """A stranger reads it to the end, in five minutes."""
    assert len(TEXT.splitlines()) < 150
    assert len(TEXT.split()) < 1300  # a few of them are bars of tables


def test_it_sets_up_with_two_commands():
    """Each is one line, marked so that a script finds it, and makes its own environment."""
    commands = {mark: text.strip() for mark, text in fences("sh").items()}
    assert set(commands) == {"demo command", "test command"}
    for command in commands.values():
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ")
    assert commands["demo command"].endswith(".venv/bin/python -m nbshare demo")
    assert commands["test command"].endswith(".venv/bin/python -m pytest -n 4 --dist worksteal")


# What is true after each block of code.
THEN = {
    "slits": """
wanted = light
assert np.array_equal(light[:9], [brightness(each, x, slits) for each in y[:9]])""",
    "tour": """
assert job.cancelled() and 0 < done[:, 0].count() < 300
assert (done.compressed() == light[~done.mask]).all()""",
    "sweep": """
import nbshare
assert (light == wanted).all() and light is not wanted
assert nbshare.open_checkpoint("light.ckpt").n_done == 300""",
}


def test_all_its_code_runs_in_one_kernel_from_top_to_bottom(tmp_path):
    """As it is pasted, cell by cell, with the module in a file, as it says.

    From fewer points, as it takes 20 s of two CPUs.
    """
    blocks = fences("python")
    assert len(blocks) == TEXT.count("```python\n")
    (tmp_path / "slits.py").write_text(blocks.pop("slits.py"))
    assert "1.3, 600)" in blocks["given"]
    blocks["given"] = blocks["given"].replace("1.3, 600)", "1.3, 200)")
    assert list(blocks) == ["given", "slits", "tour", "sweep"]
    cells = [code for mark, code in blocks.items() for code in (code, THEN.get(mark, ""))]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    texts = str([cell.outputs for cell in notebook.cells])
    assert "Warning" not in texts


def test_the_first_call_is_that_of_the_film():
    """Made by notebooks/making/film.py from the text, of at most 1 MB, 640 pixels wide."""
    film = ROOT / "notebooks" / "images" / "live.webp"
    with Image.open(film) as opened:
        assert opened.n_frames > 10
        assert opened.width == 640
    assert film.stat().st_size <= 1_000_000
    assert TEXT.index("<!-- slits -->") < TEXT.index(film.name) < TEXT.index("## Install")


def test_the_bars_are_those_of_the_table():
    """notebooks/making/bars.py finds its four rows, and the libraries, with a number each.

    Those of the README are rows of the benchmark's page.
    """
    bars = runpy.run_path(str(ROOT / "notebooks" / "making" / "bars.py"))
    whole = (ROOT / "tests" / "benchmarks" / "README.md").read_text()
    rows = bars["times"](whole)
    assert bars["chosen"](TEXT, whole) == TEXT
    assert bars["times"](TEXT).items() <= rows.items()
    shown = [rows[row][name] for row in bars["ROWS"] for name in bars["OTHERS"]]
    assert all(float(cell.strip("*")) > 0 for cell in shown)


def test_its_links_lead_somewhere():
    """Files, pictures and headings that it names are there, and the pictures are light."""
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    headings = {
        "#" + re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    }
    assert [t for t in targets if t.startswith("#") and t not in headings] == []
    files = [ROOT / target.partition("#")[0] for target in targets if target[0] != "#"]
    assert [file for file in files if not file.exists()] == []
    pictures = [file for file in files if file.suffix in (".png", ".webp") and file.stem != "live"]
    assert pictures
    assert all(file.stat().st_size <= 300_000 for file in pictures)
