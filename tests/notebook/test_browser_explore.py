"""`explore` in JupyterLab, with a real server, a real kernel, a real browser.

Skipped where there is no Chromium, or not what the extra ``nbshare[browser]`` installs.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import browser
from tests.support.faultlab import wait_until

browser.require()

TASKS = """
import os, time
import numpy as np

def surface(x):
    "The first three are there at once; each of the others waits for its file."
    while x >= 3 and not os.path.exists(f"go-{x}"):
        time.sleep(0.02)
    y, z = np.mgrid[:40, :60] / 20
    return np.sin(y * (x + 1)) + z
"""
CELLS = [
    "import numpy as np\nfrom nbshare import explore, map_async\nfrom tasks_of_cells import *",
    "job = map_async(surface, range(12), max_workers=2, chunksize=1, progress=False)\n"
    "while job.n_done < 3: pass\njob.explore()",
    "maps = np.random.default_rng(1).random((6, 20, 30))\n"
    "explore(maps, axes={'azimuth': [0, 120, 240], 'height': [10, 20]})",
    "job.cancel()",
]
EXPLORED, GRID, STOPPING = 1, 2, 3
LAST = {EXPLORED: "surface: item 2", GRID: "azimuth = 120, height = 20"}
# Another picture than before, and what the sliders say.
SHOWN = """([number, place, old]) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[number];
  const panel = cell.querySelector('.nbshare-panel');
  const said = [...panel.querySelectorAll('.widget-readout')].map(each => each.innerText);
  return said.join(', ') === place && panel.querySelector('img').src !== old;
}"""


class Panel:
    """The panel of a cell."""

    def __init__(self, page, number):
        self._page, self._number, self.cell = page, number, page.cell(number)
        self.picture = self.cell.locator(".nbshare-panel img")
        self.picture.wait_for()
        page.tab.wait_for_timeout(1000)  # until the sharp picture is there, and nothing moves

    def shows(self, place, act):
        """Do something that shows the result of another place. Return the seconds until then."""
        old, self.acted_at = self.picture.get_attribute("src"), time.monotonic()
        act()
        self._page.tab.wait_for_function(SHOWN, arg=[self._number, place, old], timeout=10_000)
        return time.monotonic() - self.acted_at

    def drag(self, name, part):
        """Take the handle of a slider with the mouse, to a part of its way."""
        row = self.cell.locator(".widget-slider", has=self._page.tab.get_by_text(name, exact=True))
        handle = row.last.locator(".noUi-handle").bounding_box()
        way = row.last.locator(".noUi-target").bounding_box()
        mouse, y = self._page.tab.mouse, handle["y"] + handle["height"] / 2
        mouse.move(handle["x"] + handle["width"] / 2, y)
        mouse.down()
        self.acted_at = time.monotonic()
        mouse.move(way["x"] + part * way["width"], y)  # one step, for one new picture
        mouse.up()


def open_page(started, address):
    tab = started.new_page(viewport={"width": 1000, "height": 1000})
    return browser.Page(tab, address.format("maps.ipynb"))


def use(page, folder, seen):
    """Use all that is there to choose an item."""
    panel = Panel(page, EXPLORED)
    cell = panel.cell
    # The fastest of ten moves, because another browser test may take both CPUs for seconds.
    seen.moved_s = min(
        panel.shows(f"{k}", lambda k=k: panel.drag("item", k / 11)) for k in (1, 2) * 5
    )
    seen.live = cell.inner_text()
    seen.n_images = sum(i.is_visible() for i in cell.locator("img").all())

    def press_key():
        cell.get_by_role("slider", name="item", exact=True).focus()
        page.tab.keyboard.press("ArrowLeft")

    panel.shows("1", press_key)
    panel.shows("0", cell.get_by_role("button", name="Previous").click)
    panel.shows("4", lambda: panel.drag("item", 4 / 11))  # a note that there is no result
    seen.came_s = panel.shows("4", (folder / "go-4").touch)
    panel.shows("2", lambda: panel.drag("item", 2 / 11))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Explore a job that runs, stop it and save. Open the file again without its kernel."""
    folder, seen = tmp_path_factory.mktemp("explore"), SimpleNamespace()
    state = tmp_path_factory.mktemp("state")
    browser.write_notebook(folder, CELLS, TASKS)
    with browser.chromium() as started:
        with browser.jupyter_lab(folder, state) as address:
            page = open_page(started, address)
            page.await_kernel()
            page.run(0)
            page.await_end(0)
            page.run(EXPLORED)
            use(page, folder, seen)
            cell = page.cell(EXPLORED)
            page.run(STOPPING)
            cell.get_by_text("stopped").wait_for()
            page.run(GRID)
            grid = Panel(page, GRID)
            grid.shows("0, 20", lambda: grid.drag("height", 1))
            grid.shows("120, 20", lambda: grid.drag("azimuth", 0.5))
            azimuth = grid.cell.get_by_role("slider", name="azimuth", exact=True)
            seen.spoken = azimuth.get_attribute("aria-valuetext")
            with contextlib.suppress(AssertionError):  # a test tells
                wait_until(lambda: saved(page, folder) == LAST, 30)
            seen.names = saved(page, folder)
            seen.pointed = [page.pointed(GRID)]
            page.tab.close()
        with browser.jupyter_lab(folder, state) as address:  # which trusts the notebook
            page = open_page(started, address)
            page.cell(EXPLORED).locator("img").wait_for()
            page.await_kernel()
            page.tab.wait_for_timeout(2000)  # in which the widgets would be looked for
            seen.reopened = page.cell(EXPLORED).inner_text()
            seen.pointed.append(page.pointed(GRID))
            page.tab.close()
        *seen.exported, at_the_pointer = export(started, folder)
        seen.pointed.append(at_the_pointer)
    return seen


def saved(page, folder):
    """Save the notebook. Return the names of the pictures in its file, by cell.

    A sharp picture comes a moment after a slider has come to rest.
    """
    page.save()
    cells, names = json.loads((folder / "maps.ipynb").read_text())["cells"], {}
    for number in LAST:
        outputs = [o["data"] for o in cells[number]["outputs"] if "data" in o]
        (picture,) = [data for data in outputs if "image/png" in data]
        names[number] = "".join(picture["text/plain"])
    return names


def export(started, folder):
    """Export the notebook. Returns text and visible images of the page, which is not on-line."""
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_filename(str(folder / "maps.ipynb"))
    (folder / "maps.html").write_text(html)
    tab = started.new_page()
    tab.route("http*://**", lambda route: route.abort())
    tab.goto(f"file://{folder}/maps.html")
    images = sum(image.is_visible() for image in tab.locator("img").all())
    text = tab.locator("body").inner_text()
    at_the_pointer = browser.pointed(tab, tab.locator("img:visible").last)
    tab.close()
    return text, images, at_the_pointer


def test_a_slider_moved_by_mouse_while_a_job_runs_changes_the_picture(seen):
    """Within half a second. The panel says how far the job is, and there is one picture only."""
    assert seen.moved_s < 0.5
    assert "3 of 12 done, running" in seen.live
    assert "surface:" not in seen.live  # the picture alone says it
    assert seen.n_images == 1


def test_a_screen_reader_says_the_value_of_a_slider(seen):
    """Not its number among the values."""
    assert seen.spoken == "120"


def test_a_result_that_is_waited_for_is_shown_when_it_comes(seen):
    """Until then a note is in its place."""
    assert seen.came_s < 1


def test_the_file_keeps_the_last_picture(seen):
    """As an ordinary PNG that names the item, or its place in the grid."""
    assert seen.names == LAST


def test_a_panel_without_its_kernel_leaves_the_picture_and_no_error(seen):
    """Opened again where the notebook is trusted, where JupyterLab would look for the widgets."""
    assert "To choose other results" in seen.reopened
    assert "widget" not in seen.reopened


def test_an_exported_page_shows_the_pictures_and_no_error(seen):
    """As nbconvert makes it."""
    text, n_images = seen.exported
    assert n_images == 2
    assert "widget" not in text.lower()


def test_the_value_under_the_pointer_is_that_of_the_array(seen):
    """In the panel, in the file without its kernel, and on an exported page."""
    maps = np.random.default_rng(1).random((6, 20, 30))
    for text in seen.pointed:
        words = re.fullmatch(r"column = (\d+)\nrow = (\d+)\nresult = (\S+)", text)
        column, row, value = map(float, words.groups())
        assert value == pytest.approx(maps[3, int(row), int(column)], rel=1e-3)
