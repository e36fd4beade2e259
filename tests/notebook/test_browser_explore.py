"""`explore` in JupyterLab: a real server, a real kernel, a real browser.

Skipped where there is no Chromium, or not what the extra ``nbshare[browser]`` installs.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import browser
import nbformat
import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests without playwright: nbshare[browser]"
)
pytest.importorskip("jupyterlab", reason="no browser tests without JupyterLab: nbshare[browser]")
if browser.CHROMIUM is None:
    pytest.skip("no browser tests: Chromium is not installed", allow_module_level=True)

TASKS = """
import os, time
import numpy as np

def surface(x):
    "The first three are there at once; the others wait for a file."
    while x >= 3 and not os.path.exists("go"):
        time.sleep(0.02)
    y, z = np.mgrid[:40, :60] / 20
    return np.sin(y * (x + 1)) + z
"""
CELLS = [
    "from nbshare import explore, map_async\nfrom tasks_of_cells import surface",
    "job = map_async(surface, range(12), max_workers=2, progress=False)\n"
    "while job.n_done < 3: pass\njob.explore()",
]
EXPLORED = 1
CHANGED = "old => document.querySelector('.nbshare-panel img').src !== old"


def open_page(driver, address):
    started = driver.chromium.launch(executable_path=browser.CHROMIUM, args=browser.FLAGS)
    tab = started.new_page(viewport={"width": 1000, "height": 1000})
    return browser.Page(tab, address.format("maps.ipynb"))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Explore a job that runs, stop it and save; open the file again without its kernel."""
    folder, seen = tmp_path_factory.mktemp("explore"), SimpleNamespace(pictures=[])
    state = tmp_path_factory.mktemp("state")
    (folder / "tasks_of_cells.py").write_text(TASKS)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "maps.ipynb")
    with playwright.sync_playwright() as driver:
        with browser.jupyter_lab(folder, state) as address:
            page = open_page(driver, address)
            page.await_kernel()
            page.run(0)
            page.await_end(0)
            page.run(EXPLORED)
            cell = page.cell(EXPLORED)
            cell.locator(".nbshare-panel img").wait_for()
            for item in (1, 2):
                picture = page.tab.evaluate("document.querySelector('.nbshare-panel img').src")
                cell.get_by_role("slider").focus()
                page.tab.keyboard.press("ArrowRight")
                page.tab.wait_for_function(CHANGED, arg=picture, timeout=5000)
                cell.get_by_text(f"surface: item {item}").first.wait_for(timeout=5000)
            seen.live = cell.inner_text()
            seen.n_images = sum(i.is_visible() for i in cell.locator("img").all())
            cell.screenshot(path=str(folder / "live.png"))
            cell.get_by_role("button", name="Stop").click()
            cell.get_by_text("stopped").wait_for()
            page.tab.wait_for_timeout(1000)  # until the sharp picture is there
            page.save()
            page.tab.close()
        seen.saved = json.loads((folder / "maps.ipynb").read_text())
        with browser.jupyter_lab(folder, state) as address:  # which trusts the notebook
            page = open_page(driver, address)
            page.cell(EXPLORED).locator("img").wait_for()
            page.await_kernel()
            page.tab.wait_for_timeout(2000)  # in which the widgets would be looked for
            seen.reopened = page.cell(EXPLORED).inner_text()
            page.cell(EXPLORED).screenshot(path=str(folder / "reopened.png"))
            page.tab.close()
    return seen


def test_a_slider_moved_while_a_job_runs_changes_the_picture(seen):
    """By key; the panel says how far the job is, and there is one picture only."""
    assert "3 of 12 done, running" in seen.live
    assert seen.n_images == 1


def test_the_file_keeps_the_last_picture(seen):
    """As an ordinary PNG that names the item."""
    outputs = [o["data"] for o in seen.saved["cells"][EXPLORED]["outputs"] if "data" in o]
    (picture,) = [data for data in outputs if "image/png" in data]
    assert "".join(picture["text/plain"]) == "surface: item 2"


def test_a_panel_without_its_kernel_leaves_the_picture_and_no_error(seen):
    """Opened again where the notebook is trusted: JupyterLab would look for the widgets."""
    assert "To choose other results" in seen.reopened
    assert "widget" not in seen.reopened.replace("ipywidgets", "")
