"""In a cell of marimo there are the progress display, the last plot, and its interrupt."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
from PIL import Image

if find_spec("marimo") is None:  # found without an import, which is slow
    pytest.skip("marimo is not installed: pip install marimo", allow_module_level=True)

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import os, signal, threading, time
    import marimo as mo
    import nbshare

    def half(x):
        time.sleep(0.01)
        return x / 2

    return mo, half, nbshare, os, signal, threading, time
"""
CELL = """

@app.cell
def _(mo, half, nbshare, os, signal, threading, time):
{body}
"""
CELLS = {  # names that begin with _ are those of one cell
    "plot": """
        mo.output.append(mo.md("mine"))
        _results = nbshare.parallel_map(half, range(40), plot="line")
        print("the sum is", _results.sum())
        """,
    "failure": """
        _results = nbshare.parallel_map(half, [1, 2, None], on_error="return")
        """,
    "many": """
        for _n in range(20):
            nbshare.parallel_map(half, range(_n))
        """,
    "background": """
        _job = nbshare.map_async(half, range(10), progress=True, plot="line")
        print("the sum is", _job.result().sum())
        """,
    "interrupt": """
        def _press():
            while not any(job.n_done for job in nbshare.jobs()):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=_press).start()
        try:
            nbshare.parallel_map(half, range(100_000), chunksize=1)
        except nbshare.MapInterrupted:
            print("some are kept:", nbshare.last_job().partial().count() > 0)
        """,
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Run all cells in one process, as marimo takes two seconds to start."""
    folder = tmp_path_factory.mktemp("marimo")
    bodies = (textwrap.indent(textwrap.dedent(cell), "    ") for cell in CELLS.values())
    text = NOTEBOOK + "".join(CELL.format(body=body) for body in bodies)
    (folder / "notebook.py").write_text(text)
    export = [sys.executable, "-m", "marimo", "export", "ipynb", "notebook.py"]
    ended = subprocess.run(
        [*export, "-o", "out.ipynb", "--include-outputs"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    cells = json.loads((folder / "out.ipynb").read_text())["cells"][-len(CELLS) :]
    return {name: cell["outputs"] for name, cell in zip(CELLS, cells, strict=True)}


@pytest.fixture
def run(outputs):
    """Return the outputs of a cell as one text, and what it printed."""

    def run(name):
        printed = "".join("".join(output.get("text", "")) for output in outputs[name])
        shown = [output["data"] for output in outputs[name] if "data" in output]
        return "".join("".join(data.get("text/html", "")) for data in shown), printed

    return run


def states(shown):
    """Return the lines of the progress displays."""
    return [html.unescape(line) for line in re.findall(r'<div aria-label="([^"]+)"', shown)]


def test_progress_display_and_plot_come_below_what_the_cell_has_shown(run):
    shown, printed = run("plot")
    assert printed == "the sum is 390.0\n"
    (line,) = states(shown)
    assert line.startswith("✓ half done  40/40")
    (png,) = re.findall(r"data:image/png;base64,([^\"]+)", shown)
    assert Image.open(io.BytesIO(base64.b64decode(png))).width > 400
    assert shown.index("mine") < shown.index("half done") < shown.index("base64")


def test_failures_are_told(run):
    shown, _ = run("failure")
    assert states(shown)[0].startswith("✓ half done with 1 failed")
    assert "item 2: TypeError" in shown


def test_a_loop_of_runs_has_few_outputs(run):
    shown, _ = run("many")
    lines = states(shown)
    assert len(lines) == 8
    assert "the last of runs 8 to 20" in lines[-1]


def test_a_job_in_the_background_shows_nothing(run):
    """Only the thread of a cell can show anything there."""
    shown, printed = run("background")
    assert (shown, printed) == ("", "the sum is 22.5\n")


def test_its_interrupt_keeps_the_finished_results(run):
    shown, printed = run("interrupt")
    assert printed == "some are kept: True\n"
    assert states(shown)[0].startswith("■ half interrupted")
