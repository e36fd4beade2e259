"""A person's view of a run in JupyterLab, with a real server, a real kernel, a real browser.

Skipped where there is no Chromium, or not what the extra ``nbshare[browser]`` installs.
"""

from __future__ import annotations

import math
import re
import time
from types import SimpleNamespace

import pytest

from tests.support import browser
from tests.support.faultlab import SOON_S

browser.require()

TASKS = """
import math, time

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
MISPLACED = "Error displaying widget", "Loading widget", "0%|"


@pytest.fixture(scope="module")
def chromium():
    """Start the browser."""
    with browser.chromium() as started:
        yield started


def stop_and_interrupt(page, seen):
    """Press Stop by mouse, then in a loop of runs by mouse and by key, then the toolbar's ■."""
    seen.ended_s = {}

    def timed(what, number, press):
        stop(number).wait_for()  # what an earlier run of the cell has left has none
        page.cell(number).locator("b", has_text=re.compile(r"^[1-9]\d*/1,000")).last.wait_for()
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
    """Run the notebook, recorded. Save it. Open it again at another server, without its kernel."""
    folder, seen = tmp_path_factory.mktemp("notebooks"), SimpleNamespace()
    browser.write_notebook(folder, CELLS, TASKS)
    size = {"width": 1200, "height": 1400}
    with browser.jupyter_lab(folder, tmp_path_factory.mktemp("state")) as address:
        page = browser.Page(chromium.new_page(viewport=size), address.format("maps.ipynb"))
        page.await_kernel()
        page.run(0)
        page.await_end(0)
        with page.recorded(BUSY) as seen.busy:
            page.run(BUSY)
            page.cell(BUSY).locator("img").wait_for()
        page.cell(BUSY).locator("b", has_text=re.compile(r"^[1-9]\d\d/300")).wait_for()
        seen.pointed = [page.pointed(BUSY, 0.15)]
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
        seen.pointed.append(page.pointed(WAVES))
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
    """From the first picture on the outputs keep their height. Nothing is ever scrolled."""
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
    assert "200 of this cell" in seen.loop[-1]
    assert "20/20" in seen.loop[-1]


def test_a_saved_notebook_opens_with_the_last_state(seen):
    """At another server, not trusted: final rows and the sharp picture, no widgets' ruins."""
    assert "140/140" in seen.reopened[WAVES]
    assert "30/30" in seen.reopened[ROOTS]
    assert "1 failed" in seen.reopened[ROOTS]
    assert seen.picture == [1520, 760]
    assert not [text for text in MISPLACED if text in "".join(seen.reopened) + seen.saved]
    assert not [text for text in ("button", "nbshare_rows") if text in seen.saved]


def test_the_only_script_in_the_file_is_that_of_the_pointer(seen):
    """Once for each run with a plot."""
    scripts = re.findall(r"<script>.{20}", seen.saved)
    assert set(scripts) == {"<script>window.nbsharePointe"}
    assert len(scripts) == 2


def test_the_value_under_the_pointer_is_shown(seen):
    """During the run, and after it."""
    for text in seen.pointed:
        x, y = re.fullmatch(r"input = (\S+)\nresult = (\S+)", text).groups()
        assert float(y) == pytest.approx(math.sin(float(x)), abs=0.01)


def test_a_notebook_that_is_not_trusted_keeps_its_colours(seen):
    """The filter of styles leaves the mark of a run with failures its amber."""
    red, green, blue = map(int, re.findall(r"\d+", seen.colour)[:3])
    assert red > green > blue


def test_the_count_grows_while_the_first_picture_is_made(seen):
    """In steps until the picture is there, though Matplotlib is loaded and both CPUs are busy."""
    before = [text for _, picture, _, text in seen.busy if not picture]
    counts = {found[1] for text in before if (found := re.search(r"(\d+)/300", text))}
    assert len(counts) > 2, counts


def test_stop_keeps_what_is_done_and_the_notebook_goes_on(seen):
    """On a click the prompt comes within 3 s, the row says it, and the next cell runs."""
    assert seen.ended_s["stop"] < SOON_S
    stopped, after = seen.stopped
    count = re.search(r"stopped\s+(\d+)/1,000", stopped)[1]
    assert 0 < int(count) < 1000
    assert f"went on with {count}" in after


def test_stop_pressed_again_ends_a_loop_as_the_interrupt_does(seen):
    """At once, in one line, and the cells that were queued do not run. Of both nothing stays."""
    assert seen.ended_s["second stop"] < SOON_S
    assert seen.ended_s["interrupt"] < SOON_S
    row, error = seen.interrupted
    assert re.search(r"interrupted\s+[1-9]\d*/1,000", row)
    assert re.fullmatch(r"MapInterrupted: \d+ of 1000 items done, kept in .*", error.strip())
    assert seen.never == seen.buttons == 0
