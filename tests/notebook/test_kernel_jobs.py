"""Background jobs in a real kernel. Rows go on when their cells have ended. `report`."""

from __future__ import annotations

import os
import re

import pytest

from tests.support.faultlab import Lab, wait_until
from tests.support.kernels import Page

TASKS = """
import os, time
import numpy as np
import nbshare

def held(x, go="go"):
    "Items from the third on wait for a file."
    while x >= 2 and not os.path.exists(go):
        time.sleep(0.01)
    return x

def fails(x):
    if x == 3:
        raise ValueError("no way on")
    return x

def reports(x, go):
    nbshare.report(0.257, "half <way> " + 200 * "é")
    while not os.path.exists(go):
        time.sleep(0.01)
    return x
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Give a kernel that a server has started."""
    lab = Lab(tmp_path_factory.mktemp("jobs"))
    lab.folder.joinpath("jobs.py").write_text(TASKS)
    try:
        page = Page(lab, JPY_SESSION_NAME="maps.ipynb")
        try:
            page.folder = lab.folder
            code = "import gc, itertools, jobs; from nbshare import map_async"
            assert page.run(code).status == "ok"
            yield page
        finally:
            page.close()
    finally:
        lab.close()


@pytest.fixture
def go(page, tmp_path):
    """Give the file that `held` waits for, by a name for the kernel. In the end all is over."""
    path = tmp_path / "go"
    page.run(f"go = {str(path)!r}; held = functools.partial(jobs.held, go=go)")
    yield path
    path.touch()
    page.run("for o in gc.get_objects():\n    if isinstance(o, nbshare.Job): o.cancel(); o.wait()")
    page.run("del o")  # brings the last states of rows once more, so no news for the next test


def begin(page, arguments="range(6), max_workers=2", func="held"):
    """Start a job in a cell of its own. Return the cell, and the id of its row."""
    cell = page.start(f"job = map_async({func}, {arguments})")
    page.finish(cell)
    return cell, next(iter(page._cells[cell].displays))


def states(page, row):
    """Return all that has been shown of a row, in any cell."""
    shown = []
    for cell in page._cells.values():
        shown += cell.displays.get(row, [])
    return shown


def await_state(page, row, pattern):
    """Wait until a row has shown something."""

    def is_shown():
        page._listen()
        return any(re.search(pattern, state) for state in states(page, row))

    wait_until(is_shown, what=lambda: f"the row never shows {pattern}: {states(page, row)}")


def test_debug_shows_frames_of_the_user_only(page, go):
    """The call and the function, as if the function had been called in the cell."""
    page.run("job = map_async(jobs.fails, range(6), on_error='return'); job.wait()")
    cell = page.run("job.debug(3)")
    assert cell.error == "ValueError"
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", cell.traceback)
    assert "in fails(x)" in traceback
    assert "job.py" not in traceback


def test_the_row_goes_on_when_the_cell_has_ended(page, go):
    """In its place, in steps. It ends as done, and nothing is printed."""
    cell, row = begin(page)
    assert page._cells[cell].status == "ok"
    await_state(page, row, r"● held running  2/6")
    go.touch()
    await_state(page, row, r"✓ held done  6/6 in ")
    everything = page._cells[cell]
    assert (everything.stdout, everything.stderr) == ("", "")
    counts = [int(re.search(r"(\d+)/6", state)[1]) for state in states(page, row)]
    assert counts == sorted(counts)


def test_the_last_state_is_sent_to_who_reads_only_what_a_running_cell_sends(page, go):
    """As nbclient, where of a job that ends between two cells the next one brings the news."""
    _, row = begin(page)
    await_state(page, row, "2/6")
    go.touch()
    await_state(page, row, "✓ held done  6/6")
    assert re.match("✓ held done  6/6", page.run("1").displays[row][-1])
    assert row not in page.run("1").displays


def test_a_job_at_the_end_of_another_cell_shows_the_same_output_there(page, go):
    """It is drawn once for both, so that ten such cells cost no more than one."""
    _, row = begin(page, "range(6), plot='line'")
    await_state(page, row, r"2/6")
    for code in ("job", "display(job)"):
        again = page.run(code)
        assert next(iter(again.displays)) == row
        assert "running" in again.rows[0]
        assert len(again.displays) == 2  # and the picture
    go.touch()
    assert page.run("print(job.result())").stdout == "[0 1 2 3 4 5]\n"
    assert states(page, row)[-1].startswith("✓ held done  6/6")


def test_a_job_that_is_over_shows_its_end(page, go):
    """With the time that it took, not that since it is shown."""
    go.touch()
    begin(page)
    page.run("job.wait(); elapsed = job.elapsed_s")
    again = page.run("job")
    assert re.match("✓ held done  6/6", again.rows[0])
    assert page.run("print(job.elapsed_s == elapsed)").stdout == "True\n"


def test_a_job_at_the_end_of_its_own_cell_is_shown_once(page, go):
    """`map_async(…)` as the last line of a cell draws one row. With progress=False, a line."""
    go.touch()
    before: set[str] = set()  # the last state of a job may come in the cell after its own
    for code in ("map_async(held, range(4))", "job = map_async(held, range(4)); job.wait(); job"):
        cell = page.run(code)
        new = cell.displays.keys() - before
        assert [cell.displays[row][-1].split()[1] for row in new] == ["held"]
        assert cell.result == ""
        before |= new
    quiet = page.run("map_async(held, range(4), progress=False)")
    assert not quiet.displays.keys() - before
    assert quiet.result.startswith("<Job held: ")


def test_a_quiet_job_is_shown_when_it_is_asked_for(page, go):
    """With progress=False there is no progress display until the job is displayed."""
    cell = page.run("job = map_async(held, range(6), max_workers=2, progress=False)")
    assert not cell.displays
    shown = page.run("job")
    (row,) = shown.displays
    go.touch()
    await_state(page, row, "✓ held done  6/6")


def test_stop_in_two_rows_of_a_cell_interrupts_neither(page, go):
    """Jobs in the background are not a loop that a user wants to leave."""
    cell = page.run("both = [map_async(held, range(6), max_workers=2) for _ in range(2)]")
    for row in cell.displays:
        await_state(page, row, "2/6")
        page.press(row)
        await_state(page, row, "■ held stopped  2/6")
    told = page.run("print(both[1].result())")
    assert told.stdout == "[0 1 -- -- -- --]\n"
    assert not told.stderr  # the rows say it


def test_the_row_of_a_failed_job_says_so_and_the_error_is_shown_once(page, go):
    """In the cell that asks for the result."""
    cell, row = begin(page, "range(6), max_workers=1", "jobs.fails")
    await_state(page, row, r"✗ fails failed  3/6 · ")
    assert page._cells[cell].stderr == ""
    asked = page.run("job.result()")
    assert (asked.error, asked.traceback.count("ValueError: no way on")) == ("ValueError", 1)
    assert list(asked.displays) in ([], [row])  # nothing new


def test_an_endless_job_shows_a_count(page, go):
    """Neither a percentage nor a time left. Its partial results may be asked for at any time."""
    _, row = begin(page, "itertools.count(), max_workers=1", "tasks.double")
    await_state(page, row, r"● double running  [1-9][\d,]* · ")
    assert page.run("print(job.partial()[0], job.n_items)").stdout == "0.0 None\n"
    page.run("job.cancel()")
    await_state(page, row, r"■ double stopped  [\d,]+ · after")
    assert not [state for state in states(page, row) if "%" in state or "left" in state]


def test_a_cell_that_awaits_a_job_can_be_interrupted(page, go):
    """One line that says how much is done. The row says interrupted, the next call works."""
    _, row = begin(page)
    await_state(page, row, "2/6")
    waiting = page.start("await job")
    page.await_busy(waiting)
    page.manager.interrupt_kernel()
    cell = page.finish(waiting)
    assert cell.status == "error"
    assert cell.traceback == "CancelledError: 2 of 6 items done, kept in the job's partial()"
    await_state(page, row, "■ held interrupted  2/6")
    assert page.run("tasks.check_double()").status == "ok"


def test_an_interrupt_of_who_waits_ends_the_wait_only(page, go):
    """One line that says so. The row goes on."""
    _, row = begin(page)
    await_state(page, row, "2/6")
    waiting = page.start("job.result()")
    page.await_busy(waiting)
    page.manager.interrupt_kernel()
    cell = page.finish(waiting)
    assert cell.error == "KeyboardInterrupt"
    said = "KeyboardInterrupt: held is still running in the background, 2 of 6"
    assert cell.traceback.startswith(said)
    go.touch()
    await_state(page, row, "✓ held done  6/6")


def test_a_plot_that_fails_costs_one_warning_in_its_own_cell(page, go):
    """With the user's traceback, below the cell of the call, however late."""
    cell, row = begin(page, "range(6), max_workers=2, plot=lambda ax, partial: 1 / 0")
    wait_until(lambda: page._listen() or page._cells[cell].stderr, what="no warning")
    go.touch()
    await_state(page, row, "✓ held done  6/6")
    assert page._cells[cell].stderr.count("DisplayWarning") == 1
    assert page._cells[cell].stderr.count("ZeroDivisionError") == 1
    assert "threading.py" not in page._cells[cell].stderr


def test_pictures_in_the_background_leave_matplotlibs_settings_alone(page, go):
    """Its style is one for all threads, and the user's changes meanwhile stay."""
    code = """
import matplotlib as mpl
before = dict(mpl.rcParams)
changed = set()
job = map_async(held, range(6), max_workers=2, plot="line")
while job.n_done < 2: time.sleep(0.01)
until = time.monotonic() + 1
while time.monotonic() < until: changed |= {k for k in before if mpl.rcParams[k] != before[k]}
print(changed)
"""
    assert page.run(code).stdout == "set()\n"


def test_a_finished_job_is_kept_by_nobody(page, go):
    """Neither its row nor its thread holds the results, once they are over."""
    go.touch()
    page.run(
        "import weakref; job = map_async(held, range(6), plot='line'); kept = weakref.ref(job)"
    )
    page.run("job.wait(); del job")
    wait_until(lambda: page.run("print(kept())").stdout == "None\n", what="the job is kept")


def test_a_report_is_shown_in_the_list_of_the_workers(page, go):
    """How far the item is, in percent and in words, which are cut, until it is over."""
    page.html.clear()
    _, row = begin(page, "[7]", "functools.partial(jobs.reports, go=go)")
    wanted = r"<td [^>]*><b>25 %</b> half &lt;way&gt; é{27,60}…</td>"
    wait_until(lambda: page._listen() or re.search(wanted, "".join(page.html)), what="no report")
    go.touch()
    await_state(page, row, "✓ reports done  1/1")
    assert "half" not in page.html[-1]


def test_jobs_lists_what_runs(page, go):
    """At the end of a cell each has its row and button. Jobs that are over are not among them."""
    page.run("done = map_async(jobs.fails, [1]); done.wait()")
    rows = [begin(page)[1] for _ in range(2)]
    listed = page.run("nbshare.jobs()")
    assert list(listed.displays) == rows
    for row in rows:
        page.press(row)
        await_state(page, row, "■ held stopped")
    assert page.run("nbshare.jobs()").result == "[]"


def test_prints_that_come_later_are_kept_with_the_job(page, go):
    """In its fold, since the cell may not show them any more, 200 lines at most."""
    page.html.clear()
    _, row = begin(page, "range(250), max_workers=1", "print")
    await_state(page, row, "✓ print done  250/250")
    html = [each for each in page.html if each][-1]
    assert "<div>&emsp;249</div>" in html
    assert "<div>&emsp;49</div>" not in html
    assert page.run("print(job.last_prints[0], len(job.last_prints))").stdout == "50 200\n"


def test_no_items_are_told(page):
    """A run of an empty list has a row as any other."""
    (row,) = page.run("nbshare.parallel_map(jobs.fails, [])").rows
    assert row == "✓ fails done  no items"


def test_a_restart_of_the_kernel_ends_a_job_without_a_word(lab):
    """Nobody outlives it (`Lab.close`), nothing is printed, and the new kernel works."""
    page = Page(lab)
    try:
        page.run("job = nbshare.map_async(time.sleep, [60] * 4, plot='line')")
        page.manager.restart_kernel(now=False)
        page.meet()
        cell = page.run("tasks.check_double(); print('right')")
        assert (cell.stdout, cell.stderr) == ("right\n", "")
        log = lab.folder.joinpath("stderr-kernel").read_text()
        assert "Traceback" not in log
    finally:
        page.close()


def test_a_document_that_is_rebuilt_shows_the_last_state_in_the_cell_of_the_call(
    tmp_path, monkeypatch
):
    """A wait for the job, in any cell, is also a wait for its last plot."""
    nbclient = pytest.importorskip("nbclient")  # late, as all collect this file
    import nbformat

    monkeypatch.setenv("NBSHARE_STATIC", "1")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") or str(tmp_path))
    (tmp_path / "jobs.py").write_text(TASKS)
    codes = [
        "import jobs\nfrom nbshare import map_async\n"
        "job = map_async(jobs.held, range(9), plot='line')",
        "from pathlib import Path\nPath('go').touch()\nlen(job.result())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in codes])
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    row, picture = notebook.cells[0].outputs
    assert row.data["text/plain"] == "✓ held done  9/9"
    assert picture.data["text/plain"] == "held: 9 of 9"
    assert "image/png" in picture.data
    assert [output.output_type for output in notebook.cells[1].outputs] == ["execute_result"]
