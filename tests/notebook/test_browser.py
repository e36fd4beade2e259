"""What a person sees of a run in JupyterLab: a real server, a real kernel, a real browser.

Skipped where there is no Chromium, or not what the extra ``nbshare[browser]`` installs.
"""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import browser
import pytest
from faultlab import SOON_S

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

def busy(x):
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    return math.sin(x)

def quick(x):
    return x

def root(x):
    time.sleep(0.02)
    if x == 7:
        raise ValueError("no root")
    return x**0.5
"""
CELLS = [
    "import numpy as np\nfrom nbshare import parallel_map\nfrom tasks_of_cells import *",
    "waves = parallel_map(wave, np.linspace(0, 9, 140), max_workers=2, plot='line')",
    "for _ in range(200): parallel_map(quick, range(20), max_workers=2)",
    "roots = parallel_map(root, range(30), max_workers=2, on_error='return')",
    "some = parallel_map(wave, range(1000), max_workers=2)",
    "print(f'went on with {some.count()}')",
    "for _ in range(5): parallel_map(wave, range(1000), max_workers=2)",
    "print('a queued cell ran')",
    "rows = parallel_map(busy, range(300), max_workers=2, plot='line')",
]
WAVES, LOOP, ROOTS, STOPPED, AFTER_STOP, ENDLESS, NEVER, BUSY = range(1, 9)
JOBS = [
    "import itertools\nimport numpy as np\nfrom nbshare import map_async\n"
    "from tasks_of_cells import *",
    "job = map_async(wave, np.linspace(0, 9, 120), max_workers=2, plot='line')",
    "count = map_async(wave, itertools.count(), max_workers=1)",
    "job",
    "waiting = map_async(held, range(20), max_workers=2, plot='line')",
    "waiting",
    "print(waiting.result().sum(), count.state, count.partial().count())",
]
MAP, COUNT, AGAIN, WAITING, RELOADED, RESULT = range(1, 7)
MISPLACED = "Error displaying widget", "Loading widget", "0%|"


@pytest.fixture(scope="module")
def chromium():
    """Start the browser."""
    with browser.chromium() as started:
        yield started


def stop_and_interrupt(page, seen):
    """Press Stop by mouse, then in a loop of runs by mouse and by key; then the toolbar's ■."""
    seen.ended_s = {}

    def timed(what, number, press):
        stop(number).wait_for()  # what an earlier run of the cell has left has none
        page.cell(number).locator("b", has_text=re.compile(r"^[1-9]\d*/1000")).last.wait_for()
        at = time.monotonic()
        press()
        page.await_end(number)
        seen.ended_s[what] = time.monotonic() - at

    def stop(number):
        return page.cell(number).get_by_role("button", name="Stop")

    page.run(STOPPED)
    page.run(AFTER_STOP)
    timed("stop", STOPPED, stop(STOPPED).click)
    page.await_end(AFTER_STOP)
    seen.stopped = [page.cell(number).inner_text() for number in (STOPPED, AFTER_STOP)]
    page.run(ENDLESS)
    page.run(NEVER)
    stop(ENDLESS).dblclick()
    page.cell(ENDLESS).get_by_text("stopped").first.wait_for()
    stop(ENDLESS).focus()
    page.tab.wait_for_timeout(1000)  # in which the row changes three times
    timed("second stop", ENDLESS, lambda: page.tab.keyboard.press("Enter"))
    page.run(ENDLESS)
    page.run(NEVER)
    toolbar = page.tab.locator("[data-command='notebook:interrupt-kernel']")
    timed("interrupt", ENDLESS, toolbar.click)
    page.cell(ENDLESS).get_by_text("MapInterrupted").first.wait_for()
    seen.interrupted = page.cell(ENDLESS).locator(".jp-OutputArea-output").all_inner_texts()
    seen.buttons = page.tab.locator(".jp-OutputArea button").count()
    seen.never = page.cell(NEVER).locator(".jp-OutputArea-output").count()


@pytest.fixture(scope="module")
def seen(chromium, tmp_path_factory):
    """Run the notebook, recorded; save it; open it again at another server, without its kernel."""
    folder, seen = tmp_path_factory.mktemp("notebooks"), SimpleNamespace()
    browser.write_notebook(folder, CELLS, TASKS)
    size = {"width": 1200, "height": 1400}
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        page = browser.Page(chromium.new_page(viewport=size), address.format("maps.ipynb"))
        page.await_kernel()
        page.run(0)
        page.await_end(0)
        page.run(BUSY)
        page.cell(BUSY).locator("b", has_text=re.compile(r"^[1-9]\d*/300")).wait_for()
        seen.counts = page.counts(BUSY, r"(\d+)/300", seconds=5.2)
        page.await_end(BUSY)
        with page.recorded(WAVES) as seen.frames:
            page.run(WAVES)
            page.cell(WAVES).locator("summary").wait_for()
            page.tab.evaluate("document.querySelector('.jp-OutputArea summary').click()")
            page.cell(WAVES).locator("img").wait_for()
            page.cell(WAVES).get_by_text(" MB").nth(1).wait_for()
            seen.fold = page.cell(WAVES).locator("details").inner_text()
            page.tab.evaluate("document.querySelector('.jp-OutputArea summary').click()")
            page.await_end(WAVES)
        for number in (LOOP, ROOTS):
            page.run(number)
            page.await_end(number)
        stop_and_interrupt(page, seen)
        page.save()
        seen.loop = page.cell(LOOP).locator(".jp-OutputArea-child").all_inner_texts()
        page.tab.close()
    seen.saved = (folder / "maps.ipynb").read_text()
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        tab = chromium.new_page(viewport=size)
        page = browser.Page(tab, address.format("maps.ipynb"))
        page.cell(WAVES).locator("img").wait_for()
        for number in (WAVES, ROOTS):  # the page draws one cell after another, each when it can
            page.cell(number).locator("details").wait_for()
        seen.reopened = [page.cell(number).inner_text() for number in range(len(CELLS))]
        seen.picture = page.cell(WAVES).locator("img").evaluate("i => [i.naturalWidth, i.width]")
        mark = page.cell(ROOTS).locator("summary span", has_text="✓")
        seen.colour = mark.evaluate("e => getComputedStyle(e).color")
        tab.close()
    return seen


def test_the_number_in_the_row_grows_and_never_falls(seen):
    """From none to all, in many steps."""
    counts = [re.search(r"(\d+)/140", text) for *_, text in seen.frames]
    numbers = [int(found[1]) for found in counts if found]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 140
    assert len(set(numbers)) > 8


def test_the_picture_changes_and_never_flickers(seen):
    """At least three pictures, and no frame without one from the first on."""
    pictures = [picture for _, picture, *_ in seen.frames]
    shown = pictures[next(i for i, picture in enumerate(pictures) if picture) :]
    assert len(set(shown)) >= 3
    assert all(shown)


def test_the_page_keeps_still(seen):
    """From the first picture on the outputs keep their height; nothing is ever scrolled."""
    closed = [
        (height, picture) for height, picture, _, text in seen.frames if "items done" not in text
    ]
    heights = [height for height, picture in closed if picture]
    assert len(set(heights)) == 1
    assert len({scroll for *_, scroll, _ in seen.frames}) == 1


def test_what_is_folded_under_the_row_stays_open_when_it_changes(seen):
    """Opened before the first picture, the table of the workers is there some updates later."""
    assert "items done" in seen.fold
    assert seen.fold.count(" MB") == 2


def test_a_loop_of_quick_maps_does_not_flood_the_page(seen):
    """Some rows, and one that the later runs share, whose last state is the last run's."""
    assert len(seen.loop) <= 10
    assert "run 200 of this cell" in seen.loop[-1]
    assert "20/20" in seen.loop[-1]


def test_a_saved_notebook_opens_with_the_last_state(seen):
    """At another server, not trusted: the final rows and the sharp picture, no widgets' ruins."""
    assert "140/140" in seen.reopened[WAVES]
    assert "30/30" in seen.reopened[ROOTS]
    assert "1 failed" in seen.reopened[ROOTS]
    assert seen.picture == [1520, 760]
    assert not [text for text in MISPLACED if text in "".join(seen.reopened) + seen.saved]
    assert not [text for text in ("<script", "button", "nbshare_rows") if text in seen.saved]


def test_a_notebook_that_is_not_trusted_keeps_its_colours(seen):
    """The filter of styles leaves the mark of a run with failures its amber."""
    red, green, blue = map(int, re.findall(r"\d+", seen.colour)[:3])
    assert red > green > blue


def test_the_count_grows_while_the_first_picture_is_made(seen):
    """In each of the first five seconds, though Matplotlib is loaded and both CPUs are busy."""
    seconds = [{n for at, n in seen.counts if k <= at < k + 1} for k in range(5)]
    assert all(len(counts) > 1 for counts in seconds), seconds


def test_stop_keeps_what_is_done_and_the_notebook_goes_on(seen):
    """A click while the cell runs: the prompt within 3 s, the row says it, the next cell runs."""
    assert seen.ended_s["stop"] < SOON_S
    stopped, after = seen.stopped
    count = re.search(r"stopped\s+(\d+)/1000", stopped)[1]
    assert 0 < int(count) < 1000
    assert f"went on with {count}" in after


def test_stop_pressed_again_ends_a_loop_as_the_interrupt_does(seen):
    """At once, in one line, and the cells that were queued do not run: of both nothing stays."""
    assert seen.ended_s["second stop"] < SOON_S
    assert seen.ended_s["interrupt"] < SOON_S
    row, error = seen.interrupted
    assert re.search(r"interrupted\s+[1-9]\d*/1000", row)
    assert re.fullmatch(r"MapInterrupted: \d+ of 1000 items done, kept in .*", error.strip())
    assert seen.never == seen.buttons == 0


# ------------------------------------------------------------------ jobs in the background


@pytest.fixture(scope="module")
def jobs(chromium, tmp_path_factory):
    """Run jobs in the background; stop one, and load the page anew during another."""
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
    """The cell is over at once; the number in its row grows and never falls; no picture is lost."""
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
    """A live row, and the picture; in the end both cells show the same."""
    assert re.search(r"wave\s+running", jobs.again)
    assert all(re.search(r"wave\s+done\s+120/120", text) for text in jobs.both)
    assert jobs.pictures[0] == jobs.pictures[1]


def test_stop_ends_a_job_and_keeps_what_is_done(jobs):
    """Also one that would never end: its row has a count and no percentage."""
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


def test_a_page_that_is_loaded_anew_loses_no_job(jobs):
    """Its row goes on, and in another cell it shows its present state, then its last one."""
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
    """Save a notebook while a job runs; restart the kernel; open it again at another server."""
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
        page.await_output(1, "running when saved")
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


def test_a_row_says_within_seconds_that_its_kernel_is_gone(gone):
    """After a restart, and there is nothing to press any more."""
    assert gone.told_s < 5
    assert gone.buttons == 0


def test_what_is_saved_while_a_job_runs_says_so_and_no_time_left(gone):
    """In the file, and where it is opened without its kernel."""
    assert rows(gone.saved, 1) == ["● held running when saved"]
    assert "running when saved" in gone.reopened
    assert "left" not in gone.reopened
