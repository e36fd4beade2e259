"""Stop and the display of failures, in a real kernel. The button itself is in test_browser."""

from __future__ import annotations

import queue
import re
import time

import pytest

from tests.support.faultlab import SOON_S, wait_until
from tests.support.grids import combined
from tests.support.kernels import LONG

# ------------------------------------------------------------------------------ Stop


@pytest.mark.parametrize(("how", "presses"), combined(["sleep", "gil"], [1, 3]))
def test_stop_gives_what_is_done_and_the_notebook_goes_on(page, how, presses):
    """Partial results at once, also after a double click. The row says so, and queued cells run."""
    stopped = page.start("results = " + LONG.format(how=how))
    queued = page.start("print(results, last_job().state, last_job().n_done)")
    (row,) = page.await_rows(stopped)
    wait_until(lambda: page._listen() or "4/8" in page._cells[stopped].rows[0], what="not 4 of 8")
    at = time.monotonic()
    page.press(row)
    for _ in range(presses - 1):
        page.press(row)
    cell = page.finish(stopped)
    assert time.monotonic() - at < SOON_S
    assert cell.status == "ok", cell.traceback
    assert re.search(r"■ .*stopped\s+4/8 .* the result is partial", cell.rows[0])
    assert "count results with .count(), not len()" in cell.rows[0]
    assert not cell.stderr
    assert page.finish(queued).stdout == "[0.0 10.0 20.0 30.0 -- -- -- --] stopped 4\n"
    assert page.run("tasks.check_double()").status == "ok"


def test_stop_before_the_first_result_gives_a_list_of_gaps(page):
    """Workers that still prepare are stopped as well."""
    cell = page.start("""
results = parallel_map(tasks.double, range(3), initializer=time.sleep, initargs=[99])
print(results == [nbshare.MISSING] * 3)
""")
    page.press(page.await_rows(cell)[0])
    cell = page.finish(cell)
    assert cell.stdout == "True\n"
    assert "stopped  0/3" in cell.rows[0]


def test_stop_pressed_again_gets_out_of_a_loop(page):
    """The first map of the loop gives what it has. The second is interrupted, and Run All ends."""
    loop = page.start(f"for _ in range(5): {LONG.format(how='sleep')}")
    queued = page.start("raise SystemError('a queued cell ran')")
    page.press(page.await_rows(loop)[0])
    page.press(page.await_rows(loop, 2)[1])
    cell = page.finish(loop)
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) == 1
    assert ["stopped" in row for row in cell.rows] == [True, False]
    assert "interrupted" in cell.rows[1]
    assert page.finish(queued).status == "aborted"


def test_stop_in_two_cells_interrupts_none(page):
    """Each cell has a first press of its own."""
    for _ in range(2):
        cell = page.start(LONG.format(how="sleep"))
        page.press(page.await_rows(cell)[0])
        assert page.finish(cell).status == "ok"


def test_a_late_press_stops_nothing(page):
    """The button of a run that is over, pressed while the next cell's run goes on, does nothing."""
    first = page.start(LONG.format(how="sleep"))
    (old,) = page.await_rows(first)
    page.press(old)
    page.finish(first)
    second = page.start(
        "print(parallel_map(tasks.double, range(3)), parallel_map(time.sleep, [1]))"
    )
    page.await_rows(second)
    page.press(old)
    page.press("no such row")
    assert page.finish(second).stdout == "[0. 2. 4.] [None]\n"


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_stop_works_between_items_where_there_are_no_processes(page, backend):
    """In the kernel's own threads a run stops after the present items."""
    cell = page.start(
        f"out = parallel_map(time.sleep, [0.1] * 100, max_workers=2, backend={backend!r}); "
        "print(0 < last_job().n_done < 100, last_job().state)"
    )
    (row,) = page.await_rows(cell)
    first = re.compile(r"[1-9]\d*/100")
    wait_until(lambda: page._listen() or first.search(page._cells[cell].rows[0]), what="no item")
    page.press(row)
    assert page.finish(cell).stdout == "True stopped\n"


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_stop_before_the_first_item_begins(page, backend):
    """As soon as there is a row. Nothing is run, and nothing hangs."""
    cell = page.start(
        f"out = parallel_map(time.sleep, [0.1] * 100, max_workers=2, backend={backend!r}); "
        "print(last_job().n_done < 100, last_job().state)"
    )
    wait_until(lambda: page._listen() or page._cells[cell].rows, what="no row")
    page.press(next(iter(page._cells[cell].displays)))
    assert page.finish(cell).stdout == "True stopped\n"


def test_of_maps_in_two_threads_the_pressed_one_stops(page):
    """Each row stops its own map."""
    cell = page.start("""
kept = {}
def work(n):
    kept[n] = parallel_map(time.sleep, [0.05] * n, max_workers=1, out="list", progress=str(n))
threads = [threading.Thread(target=work, args=(n,)) for n in (30, 1000)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([nbshare.MISSING in kept[n] for n in (30, 1000)])
""")
    page.await_rows(cell, 2)
    rows = page._cells[cell].displays
    page.press(next(name for name in rows if " 1000 " in rows[name][-1]))
    assert page.finish(cell).stdout == "[False, True]\n"


def test_what_is_kept_of_a_row_has_no_button(page):
    """While a call runs its row brings a script, and in the end none."""
    page.html.clear()
    cell = page.start(LONG.format(how="sleep"))
    (row,) = page.await_rows(cell)
    page.press(row)
    page.finish(cell)
    rows = [html for html in page.html if html]
    assert "nbshare_rows" in rows[0]
    assert "<script" not in rows[-1]
    assert "button" not in rows[-1]


def test_a_page_that_asks_is_told_and_what_is_saved_meanwhile_has_no_figures(page):
    """Then nothing is sent but that it runs, and the last state, which is kept for pages."""
    cell = page.start(LONG.format(how="sleep"))
    (row,) = page.await_rows(cell)
    wait_until(lambda: "4/8" in page.look(row)["html"], what="the page is not told")
    wait_until(
        lambda: page._listen() or page._cells[cell].rows == ["● hang running at its last update"],
        what=lambda: page._cells[cell].rows,
    )
    n_shown = len(page._cells[cell].displays[row])
    state = page.look(row)
    assert not state["is_over"]
    assert "<button" in state["html"]
    assert 'role="progressbar"' in state["html"]
    page.press(row)
    page.finish(cell)
    assert len(page._cells[cell].displays[row]) == n_shown + 1
    state = page.look(row)
    assert state["is_over"]
    assert "stopped" in state["html"]
    assert "<button" not in state["html"]
    assert page.look("no such row") is None


def test_prints_stand_below_the_row(page):
    """Also where workers are there already, and quick."""
    for _ in range(2):
        page.kinds.clear()
        page.run_well("parallel_map(print, range(4), max_workers=2)")
        assert page.kinds[:2] == ["display_data", "stream"]


def test_a_stopped_map_keeps_nothing_alive(page):
    """After the next call, neither the button nor the display holds the job."""
    cell = page.start("results = " + LONG.format(how="sleep"))
    page.press(page.await_rows(cell)[0])
    page.finish(cell)
    cell = page.run("""
import weakref
job = weakref.ref(last_job())
del results
tasks.check_double()
print(job())
""")
    assert cell.stdout == "None\n", cell


@pytest.mark.parametrize(
    "change", ["del os.environ['JPY_SESSION_NAME']", "os.environ['NBSHARE_STATIC'] = '1'"]
)
def test_no_button_where_nobody_can_press_it(page, change):
    """No server (nbclient, a console), or a document that is rebuilt."""
    page.run_well(f"environ = dict(os.environ); {change}")
    page.html.clear()
    try:
        cell = page.run("parallel_map(time.sleep, [0.1] * 8, max_workers=2)")
        assert "8/8" in cell.rows[0]
        assert "nbshare_rows" not in "".join(page.html)
        with pytest.raises(queue.Empty):
            page.client.get_control_msg(timeout=0)
    finally:
        page.run_well("os.environ.clear(); os.environ.update(environ)")


# ---------------------------------------------------------------------------- errors


ERRORS = {
    "function": ("parallel_map(failing.root, range(20), max_workers=2)", 'failing.py", line 5, in'),
    "serial": ("parallel_map(failing.root, range(20), backend='serial')", "failing.py:5, in root"),
    "recursion": ("parallel_map(failing.deep, range(7, 20), max_workers=1)", 'failing.py", line 5'),
    "no pickling": ("parallel_map(failing.strange, range(7, 8))", 'failing.py", line 23'),
    "many words": ("parallel_map(failing.explains, range(7, 8))", "RuntimeError: many"),
    "of the notebook": (
        "def f(x):\n    return 1 / (x - 7)\nparallel_map(f, range(20))",
        "], line 2, in f\n    return 1 / (x - 7)\n",
    ),
    "in C": (
        "parallel_map(failing.sqrt, range(-7, 0), max_workers=1)",
        "raised for item 0 (-7) in worker",
    ),
    "job": ("list(nbshare.map_async(failing.root, range(20), max_workers=2))", 'y", line 5, in'),
    "task": ("nbshare.Executor(2).submit(failing.root, 7).result()", 'y", line 5, in root'),
    "task of a map": ("list(nbshare.Executor(2).map(failing.root, [7]))", 'y", line 5, in root'),
    "called deep": (
        "def call(n):\n    if n: return call(n - 1)\n    parallel_map(failing.deep, [7])\ncall(20)",
        'failing.py", line 5, in root',
    ),
}


LAST = {
    "of the notebook": "return 1 / (x - 7)",
    "no pickling": "raise Strange(1, 2)",
    "in C": "ValueError: ",
    "many words": "many",
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_failed_map_shows_the_users_frames_only(page, name):
    """At most 30 lines, with cell, item, the worker's frames with their code, none of ours."""
    code, place = ERRORS[name]
    cell = page.run(code)
    shown = re.sub(r"\x1b\[[\d;]*m", "", cell.traceback)
    assert len(shown.splitlines()) <= 30
    assert not re.search(r"nbshare/\w+(/\w+)?\.py", shown)
    assert "Cell In[" in shown
    assert place in shown
    assert re.search(r"raised for item (7|\d+ \((root\()?-?7\))", shown)
    assert LAST.get(name, 'raise ValueError(f"no root of {x}")') in shown


WRONG = {
    "function": ("parallel_map(3, [1])", "TypeError: func must be callable"),
    "count": ("nbshare.map_async(tasks.double, [1], max_workers=0)", "ValueError: max_workers=0"),
    "plot": ("parallel_map(tasks.double, [1], plot='lines')", "ValueError: plot='lines'"),
    "name": ("nbshare.map_async(tasks.double, [1], typo=1)", "map_async() has no argument typo="),
    "item": ("parallel_map(len, [threading.Lock()])", "nbshare.errors.UnsendableError: "),
    "array": ("nbshare.share(np.array([print]))", "TypeError: "),
    "shape": ("nbshare.empty(-1)", "ValueError: "),
    "file": ("nbshare.import_file('no such file.py')", "FileNotFoundError: "),
    "stage": ("nbshare.pipeline(tasks.double, shape=3)", "TypeError: pipeline(load, stage"),
    "live plot": ("nbshare.LivePlot('image', bins=0)", "ValueError: bins=0"),
    "ring": ("nbshare.RingBuffer(0, 3)", "ValueError: slots=0"),
    "buffer": ("nbshare.SharedBuffer(-1)", "ValueError: nbytes=-1"),
    "executor": ("nbshare.Executor(max_workers=0)", "ValueError: max_workers=0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_shows_the_line_that_is_wrong_and_why(page, name):
    """In a few lines, none of which is nbshare's."""
    code, why = WRONG[name]
    shown = re.sub(r"\x1b\[[\d;]*m", "", page.run(code).traceback)
    assert len(shown.splitlines()) <= 8
    assert not re.search(r"nbshare/\w+(/\w+)?\.py", shown)
    assert "Cell In[" in shown
    assert why.removeprefix("nbshare.errors.") in shown


def test_an_interrupted_wait_for_a_job_shows_one_line(page):
    """MapInterrupted is one line, wherever it is raised."""
    cell = page.run("job = nbshare.map_async(time.sleep, [9]); job._interrupt(); job.result()")
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) == 1


def test_a_script_shows_its_own_line_first_and_the_workers_last(script):
    """As Python shows it, and with nothing attached to the exception."""
    shown = script("""
import math, traceback
from nbshare import parallel_map
try:
    parallel_map(math.sqrt, [1, -1], max_workers=1)
except ValueError as error:
    assert not hasattr(error, "_render_traceback_")
    print(traceback.format_exc())
""")
    assert 'script.py", line 5, in <module>' in shown.splitlines()[1]
    assert "raised for item 1 (-1)" in shown
    assert shown.count("nbshare/") <= 2
