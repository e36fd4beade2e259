"""A person's view of background jobs in JupyterLab, as `test_browser`, with its needs."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import pytest

from tests.support import browser
from tests.support.faultlab import SOON_S

browser.require()

TASKS = """
import math, os, time

def held(x):
    while x >= 2 and not os.path.exists("go"):
        time.sleep(0.02)
    return x

def wave(x):
    time.sleep(0.1)
    return math.sin(x)
"""
JOBS = [
    "import itertools\nimport nbshare\nimport numpy as np\nfrom nbshare import map_async\n"
    "from tasks_of_cells import *",
    "job = map_async(wave, np.linspace(0, 9, 120), max_workers=2, plot='line')",
    "count = map_async(wave, itertools.count(), max_workers=1)",
    "job",
    "waiting = map_async(held, range(20), max_workers=2, plot='line')",
    "waiting",
    "print(waiting.result().sum(), count.state, count.partial().count())",
]
MAP, COUNT, AGAIN, WAITING, RELOADED, RESULT = range(1, 7)


@pytest.fixture(scope="module")
def chromium():
    """Start the browser."""
    with browser.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def jobs(chromium, tmp_path_factory):
    """Run jobs in the background. Stop one, and load the page anew during another."""
    folder, seen = tmp_path_factory.mktemp("jobs"), SimpleNamespace()
    browser.write_notebook(folder, JOBS, TASKS)

    def await_text(number, pattern):
        found = page.cell(number).locator("b", has_text=re.compile(pattern))
        found.first.wait_for()

    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        tab = chromium.new_page(viewport={"width": 1200, "height": 2000})
        page = browser.Page(tab, address.format("maps.ipynb"))
        page.await_kernel()
        page.run(0)
        page.await_end(0)
        with page.recorded(MAP) as seen.frames:
            page.run(MAP)
            page.await_end(MAP)
            seen.at_end_of_cell = page.cell(MAP).inner_text()
            page.run(COUNT)
            page.run(AGAIN)
            await_text(AGAIN, r"^[1-9]\d*/120")
            seen.again = page.cell(AGAIN).inner_text()
            await_text(COUNT, r"^[1-9]\d*$")
            at = time.monotonic()
            page.cell(COUNT).get_by_role("button", name="Stop").click()
            page.cell(COUNT).get_by_text("stopped").wait_for()
            seen.stopped_s = time.monotonic() - at
            for number in (MAP, AGAIN):
                await_text(number, "^120/120")
                page.await_sharp(number)
        seen.both = [page.cell(number).inner_text() for number in (MAP, AGAIN)]
        seen.pictures = [page.cell(n).locator("img").get_attribute("src") for n in (MAP, AGAIN)]
        page.run(WAITING)
        await_text(WAITING, "^2/20")
        page.await_output(WAITING, "held running at its last update")
        page.save()
        seen.saved = json.loads((folder / "maps.ipynb").read_text())
        tab.close()
        tab = chromium.new_page(viewport={"width": 1200, "height": 2000})
        page = browser.Page(tab, address.format("maps.ipynb"))
        page.await_kernel()
        await_text(WAITING, "^2/20")
        seen.closed = page.cell(WAITING).inner_text()
        tab.reload()
        page.await_kernel()
        await_text(WAITING, "^2/20")
        page.run(RELOADED)
        await_text(RELOADED, "^2/20")
        seen.reloaded = page.cell(RELOADED).inner_text()
        (folder / "go").touch()
        page.run(RESULT)
        page.await_end(RESULT)
        for number in (WAITING, RELOADED):
            await_text(number, "^20/20")
        page.await_sharp(RELOADED)
        picture = page.cell(RELOADED).locator("img").get_attribute("src")
        page.cell(WAITING).locator(f"img[src='{picture}']").wait_for()
        seen.n_pictures = page.cell(WAITING).locator("img").count()
        seen.healed = page.cell(WAITING).inner_text()
        seen.result = page.cell(RESULT).locator(".jp-OutputArea-output").inner_text().strip()
        page.save()
        tab.close()
    seen.saved_later = json.loads((folder / "maps.ipynb").read_text())
    return seen


def rows(notebook, number):
    outputs = notebook["cells"][number]["outputs"]
    return ["".join(output["data"]["text/plain"]) for output in outputs if "data" in output]


def test_the_row_of_a_job_goes_on_when_its_cell_has_ended(jobs):
    """The cell is over at once. The number in its row grows and never falls. No picture is lost."""
    assert "120/120" not in jobs.at_end_of_cell
    counts = [re.search(r"(\d+)/120", text) for *_, text in jobs.frames]
    numbers = [int(found[1]) for found in counts if found]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 120
    assert len(set(numbers)) > 3
    pictures = [picture for _, picture, *_ in jobs.frames]
    shown = pictures[next(i for i, picture in enumerate(pictures) if picture) :]
    assert len(set(shown)) >= 3
    assert all(shown)


def test_a_job_in_another_cell_draws_there_too(jobs):
    """A live row, and the picture. In the end both cells show the same."""
    assert re.search(r"wave\s+running", jobs.again)
    assert all(re.search(r"wave\s+done\s+120/120", text) for text in jobs.both)
    assert jobs.pictures[0] == jobs.pictures[1]


def test_stop_ends_a_job_and_keeps_what_is_done(jobs):
    """Also one that would never end, whose row has a count and no percentage."""
    assert jobs.stopped_s < SOON_S
    (row,) = rows(jobs.saved, COUNT)
    n_done = re.fullmatch(r"■ wave stopped  (\d+) · after .*", row)[1]
    assert int(n_done) > 0
    assert jobs.result.endswith(f"stopped {n_done}")


def test_what_is_saved_of_a_job_is_its_last_state(jobs):
    """Though its cell was over long before."""
    for number in (MAP, AGAIN):
        row, picture = rows(jobs.saved, number)
        assert row.startswith("✓ wave done  120/120 in ")
        assert picture == "wave: 120 of 120"


def test_the_plot_of_a_page_that_is_loaded_anew_goes_on(jobs):
    """In the old place, to the last picture of the run, waited for while the jobs run."""
    assert jobs.n_pictures == 1


def test_a_page_that_is_loaded_anew_loses_no_job(jobs):
    """Its row keeps moving. Shown in another cell, it has the present state, then the final one."""
    for text in (jobs.closed, jobs.reloaded):
        assert re.search(r"held\s+running\s+2/20", text)
    assert re.search(r"held\s+done\s+20/20", jobs.healed)
    assert jobs.result.startswith("190 stopped")
    row, picture = rows(jobs.saved_later, RELOADED)
    assert row.startswith("✓ held done  20/20 in ")
    assert picture == "held: 20 of 20"


# ------------------------------------------------------------------ rows without their kernel


@pytest.fixture(scope="module")
def gone(chromium, tmp_path_factory):
    """Save a notebook while a job runs. Restart the kernel. Open it again at another server."""
    folder, seen = tmp_path_factory.mktemp("gone"), SimpleNamespace()
    cells = [JOBS[0], "job = map_async(held, range(20), max_workers=2)"]
    browser.write_notebook(folder, cells, TASKS)
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        page = browser.Page(chromium.new_page(), address.format("maps.ipynb"))
        page.await_kernel()
        for number in range(2):
            page.run(number)
            page.await_end(number)
        page.cell(1).get_by_role("button", name="Stop").wait_for()
        page.await_output(1, "● held running at its last update")
        page.save()
        seen.saved = json.loads((folder / "maps.ipynb").read_text())
        page.restart_kernel()
        at = time.monotonic()
        page.cell(1).get_by_text("ended with its kernel").wait_for()
        seen.told_s = time.monotonic() - at
        seen.buttons = page.tab.locator(".jp-OutputArea button").count()
        page.tab.close()
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        page = browser.Page(chromium.new_page(), address.format("maps.ipynb"))
        page.cell(1).get_by_text("held").last.wait_for()
        seen.reopened = page.cell(1).inner_text()
        page.tab.close()
    return seen


@pytest.fixture(scope="module")
def finished(chromium, tmp_path_factory):
    """Let a job and a map end while their page is closed. Open it, save it, and end the kernel."""
    folder, seen = tmp_path_factory.mktemp("finished"), SimpleNamespace()
    cells = [
        JOBS[0],
        "job = map_async(held, range(20), max_workers=2, plot='line')",
        "_ = nbshare.parallel_map(held, range(20), max_workers=2, plot='line')",
    ]
    browser.write_notebook(folder, cells, TASKS)
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        page = browser.Page(chromium.new_page(), address.format("maps.ipynb"))
        page.await_kernel()
        for number in range(2):
            page.run(number)
            page.await_end(number)
        page.run(2)
        for number in (1, 2):
            page.cell(number).locator("b", has_text=re.compile("^2/20")).first.wait_for()
            page.cell(number).locator("img").wait_for()
            page.await_output(number, "running at its last update")
        old = [page.cell(number).locator("img").get_attribute("src") for number in (1, 2)]
        page.save()
        page.tab.close()
        (folder / "go").touch()
        page = browser.Page(chromium.new_page(), address.format("maps.ipynb"))
        page.await_kernel()
        for number in (1, 2):
            page.cell(number).get_by_text(re.compile(r"20/20")).first.wait_for()
        for number, picture in zip((1, 2), old, strict=True):
            page.cell(number).locator(f"img:not([src='{picture}'])").wait_for()
        seen.pictures = [page.cell(number).locator("img").count() for number in (1, 2)]
        seen.healed = page.cell(1).inner_text()
        page.save()
        page.restart_kernel()
        seen.after_kernel = page.cell(1).inner_text()
        page.tab.reload()
        page.await_kernel()
        page.cell(1).get_by_text("its kernel has ended since").wait_for()
        seen.reopened = page.cell(1).inner_text()
        page.tab.close()
    return seen


def test_a_run_that_ended_while_its_page_was_closed_is_never_called_dead(finished):
    """The page learns its last state. Without the kernel it says what it knows, and no more."""
    assert re.search(r"held\s+done\s+20/20", finished.healed)
    assert re.search(r"held\s+done\s+20/20", finished.after_kernel)
    assert "held was running at its last update" in finished.reopened
    assert "ended with its kernel" not in finished.reopened


def test_plots_of_runs_that_ended_while_their_page_was_closed_show_the_end(finished):
    """In their old places, of a job and of a map that a cell waits for."""
    assert finished.pictures == [1, 1]


def test_a_row_says_within_seconds_that_its_kernel_is_gone(gone):
    """After a restart, and there is nothing to press any more."""
    assert gone.told_s < 5
    assert gone.buttons == 0


def test_what_is_saved_while_a_job_runs_says_so_and_no_time_left(gone):
    """In the file, and where it is opened without its kernel."""
    assert rows(gone.saved, 1) == ["● held running at its last update"]
    assert "running at its last update" in gone.reopened
    assert "left" not in gone.reopened
