"""A user's view of a running map: rows, bars, lines and pictures, in the places where they are.

The jobs are played by a small class over a NumPy array, which is the input of the drawing code,
which itself runs in real kernels, at a real pseudo-terminal and into real pipes.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tqdm.std import tqdm

from nbshare import LivePlot, MapInterrupted, map_async, parallel_map
from nbshare._core.engine.stats import WorkerActivity
from nbshare._core.notebook import NEVER_S, Display, bar, check_display, open_display, row
from nbshare.errors import DisplayWarning
from tests.support.played import PlayedJob, images, play

ROOT = Path(__file__).resolve().parents[2]


PLAYER = (
    "import time\nimport nbshare\nimport numpy as np\n"
    "from nbshare import LivePlot, parallel_map\n"
    "from tests.support.played import PlayedJob, images, play\n"
)

# -- a real kernel ---------------------------------------------------------------------------------

CELLS = {
    "setup": f"import sys; sys.path[:0] = {[str(ROOT)]!r}\n{PLAYER}",
    "image": ("job = PlayedJob(images())\njob.n_workers = 1\nplay(job, plot='image', seconds=2.5)"),
    "changed": (
        "import os\nos.environ['NBSHARE_STATIC'] = '1'\n"  # frames before the last set the layout
        "job = PlayedJob(images())\nplay(job, plot=['image', 'line', 'hist'], seconds=0.1)\n"
        "job.results[:] = np.nan"
    ),
    "unchanged": (
        "play(PlayedJob(images()), plot=['image', 'line', 'hist'], seconds=0.1)\n"
        "del os.environ['NBSHARE_STATIC']"
    ),
    "pyplot": "print('matplotlib.pyplot' in sys.modules)",
    "stopped": "play(PlayedJob(images()), until=12, end='stopped', seconds=0.2)",
    "interrupted": (
        "play(PlayedJob(images(), 'my <label>'), True, until=3, end='interrupted', seconds=0.3)"
    ),
    "quiet": "play(PlayedJob(images()), progress=False, seconds=0.1)",
    "callable": (
        "def draw(ax, partial):\n    ax.plot(partial.mean((1, 2)))\n"
        "play(PlayedJob(images()), 'mine', plot=draw, seconds=0.3)"
    ),
    "failing": "def bad(ax, partial):\n    1 / 0\nplay(PlayedJob(images()), plot=bad, seconds=0.5)",
    "objects": "play(PlayedJob([object()] * 6), plot='image', seconds=0.2)",
    "nothing": "play(PlayedJob(images()), plot='image', until=0, end='failed')",
    "slow frames": "play(PlayedJob(images()), plot=LivePlot('image', interval_s=1), seconds=1.5)",
    "loop": ("for i in range(15): play(PlayedJob(images(4), f'map {i}'), plot='image', seconds=0)"),
    "many at once": (
        "from threading import Thread\n"
        "def alone(i): play(PlayedJob(images(4), f'map {i}'), seconds=0.3)\n"
        "threads = [Thread(target=alone, args=(i,)) for i in range(12)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    ),
    "workers": (
        "import time, operator\n"
        "r = parallel_map(time.sleep, [0.2] * 12, max_workers=2)\n"
        "r = parallel_map(operator.truediv, [1, 2, 3], [1, 0, 2], on_error='return')"
    ),
    "hints": (
        "from nbshare._core.engine import hints\nlarge, hints.LARGE = hints.LARGE, 1000\n"
        "r = parallel_map(lambda i, d: i, range(4), shared={'d': ['<a>'] * 1000})\n"
        "hints.LARGE = large"
    ),
    "pipeline": (
        "def load():\n    for i in range(30): time.sleep(0.03); yield np.full(4, i)\n"
        "r = nbshare.pipeline(load, lambda block: 2 * block, np.sum, shape=4, workers=(2, 1),\n"
        "                     plot='line')"
    ),
    "endless": "job = PlayedJob(images())\njob.n_items = None\nplay(job, until=40, seconds=0.6)",
    "static": (
        "import os; os.environ['NBSHARE_STATIC'] = '1'\n"
        "play(PlayedJob(images()), plot='image', seconds=0.2)"
    ),
}


@pytest.fixture(scope="module")
def notebook():
    """Run the cells. Return for each its saved outputs and the display messages it sent."""
    nbclient = pytest.importorskip("nbclient")  # late, as all collect this file
    import nbformat

    class RecordingClient(nbclient.NotebookClient):
        """Keeps every message that a front end would have got, by cell."""

        def process_message(self, msg, cell, cell_index):
            """Note the message."""
            self.messages.setdefault(cell_index, []).append(msg)
            return super().process_message(msg, cell, cell_index)

    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    client = RecordingClient(nbformat.v4.new_notebook(cells=cells), timeout=60)
    client.messages = {}
    environment = {name: value for name, value in os.environ.items() if name != "NBSHARE_STATIC"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what nbclient and zmq say is not for this test
        client.execute(env=environment)
    seen = {}
    for index, (name, cell) in enumerate(zip(CELLS, client.nb.cells, strict=True)):
        shown = [
            message["content"]
            for message in client.messages.get(index, [])
            if message["msg_type"] in ("display_data", "update_display_data")
        ]
        seen[name] = SimpleNamespace(outputs=cell.outputs, shown=shown)
    return seen


def bundles(cell, mime):
    return [out.data for out in cell.outputs if mime in out.get("data", {})]


def frames(cell):
    return [content for content in cell.shown if "image/png" in content["data"]]


def picture(content):
    return Image.open(io.BytesIO(base64.b64decode(content["data"]["image/png"])))


def unstyled(html):
    return re.sub(r"<[^>]+>", "", html)


def test_a_saved_notebook_shows_one_finished_row(notebook):
    (row,) = bundles(notebook["image"], "text/html")
    assert re.fullmatch(r"✓ horizon done  40/40 in \d+\.\d s \(\S+/s\)", row["text/plain"])
    assert "horizon done" in unstyled(row["text/html"].replace("<b>", "").replace("</b>", ""))
    assert "40/40" in unstyled(row["text/html"])
    assert "progressbar" not in row["text/html"]  # one line
    assert "#009E73" in row["text/html"]


def test_the_row_moves_while_the_cell_runs_and_not_too_often(notebook):
    rows = [c["data"]["text/plain"] for c in notebook["image"].shown if "text/html" in c["data"]]
    assert rows[0] == "○ horizon starting 1 worker…  0/40 · 0 %"
    assert any(re.search(r"● horizon running .* % · .*/s · \d+ s elapsed", row) for row in rows)
    elapsed_s = float(re.search(r"in (\d+\.\d) s", rows[-1])[1])
    assert 4 <= len(rows) <= 3 * elapsed_s + 3  # 3 Hz, and the first and last


def test_nothing_is_saved_as_zero_percent_or_as_a_widget(notebook):
    saved = str({name: cell.outputs for name, cell in notebook.items() if name != "nothing"})
    assert "0%|" not in saved
    assert "widget-view" not in saved


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("stopped", r"■ horizon stopped  12/40 · 30 % · after \d+\.\d s · the result is partial"),
        ("interrupted", r"■ my <label> interrupted  3/40 · 7 % · after \d+\.\d s"),
        ("nothing", r"✗ horizon failed  0/40 · 0 %( · after \d+\.\d s| in under 0.1 s)"),
    ],
)
def test_a_row_that_ends_early_says_how_far_it_came(notebook, cell, text):
    (row,) = bundles(notebook[cell], "text/html")
    assert re.fullmatch(text, row["text/plain"])
    assert "<label>" not in row["text/html"]


def test_collapsed_outputs_say_what_the_row_says(notebook):
    """JupyterLab shows the first line of their markup."""
    (row,) = bundles(notebook["nothing"], "text/html")
    assert row["text/html"].splitlines()[0] == f'<div aria-label="{row["text/plain"]}"'


def test_progress_false_shows_nothing(notebook):
    assert notebook["quiet"].outputs == []


def test_a_saved_notebook_keeps_one_sharp_last_picture(notebook):
    (out,) = [o for o in notebook["image"].outputs if "image/png" in o.get("data", {})]
    assert out.data["text/plain"] == "horizon: mean of 40 of 40"
    assert picture(out).height == 880
    assert len(base64.b64decode(out.data["image/png"])) < 90_000


def test_pictures_come_while_the_cell_runs_and_never_change_their_size(notebook):
    shown = frames(notebook["image"])
    assert len(shown) >= 3
    ((width, height),) = {picture(content).size for content in shown[:-1]}
    assert (width <= 760, height) == (True, 440)
    for content in shown:
        described = {"width": width, "height": 440, "alt": content["data"]["text/plain"]}
        assert content["metadata"]["image/png"] == described
    assert len({content["transient"]["display_id"] for content in shown}) == 1


def test_what_happens_to_the_results_after_the_call_is_not_in_the_picture(notebook):
    """The last frame is drawn before the cell goes on with the results."""
    (changed,), (unchanged,) = (frames(notebook[name]) for name in ("changed", "unchanged"))
    assert changed["data"] == unchanged["data"]


def test_pyplot_is_never_imported(notebook):
    assert notebook["pyplot"].outputs[0].text == "False\n"


def test_a_function_draws_into_our_axes(notebook):
    (data,) = bundles(notebook["callable"], "image/png")
    assert data["text/plain"] == "mine: 40 of 40"


def test_a_failing_plot_function_costs_one_warning_and_not_the_map(notebook):
    text = "".join(out.get("text", "") for out in notebook["failing"].outputs)
    assert text.count("DisplayWarning") == 1
    assert text.count("ZeroDivisionError") == 1
    assert "in bad" in text
    assert "notebook/figure.py" not in text  # the user's lines only
    (row,) = bundles(notebook["failing"], "text/html")
    assert row["text/plain"].startswith("✓ horizon done  40/40")


def test_results_that_make_no_image_are_told_once_with_the_remedy(notebook):
    text = "".join(out.get("text", "") for out in notebook["objects"].outputs)
    assert text.count("DisplayWarning") == 1
    assert "of type object" in text
    assert "plot=callable(ax, partial)" in text
    assert bundles(notebook["objects"], "text/html")[0]["text/plain"].startswith("✓ horizon done")


def test_without_results_there_is_no_picture(notebook):
    assert frames(notebook["nothing"]) == []


def texts(cell):
    return [data["text/plain"] for data in bundles(cell, "text/html")]


def test_the_interval_of_a_live_plot_lies_between_its_frames(notebook):
    (row,) = texts(notebook["slow frames"])
    elapsed_s = float(re.search(r"in (\d+\.\d) s", row)[1])
    assert len(frames(notebook["slow frames"])) <= elapsed_s + 2  # and the first, and the last


def test_a_loop_of_quick_maps_shows_some_rows_and_pictures_and_the_last(notebook):
    rows = texts(notebook["loop"])
    assert [row.split()[2] for row in rows] == [*map(str, range(8)), "14"]
    assert rows[-1].endswith("the last of runs 9 to 15 of this cell")
    pictures = [data["text/plain"] for data in bundles(notebook["loop"], "image/png")]
    assert len(pictures) == 9
    assert pictures[-1] == "map 14: mean of 4 of 4"


def test_maps_that_run_at_the_same_time_have_a_row_each(notebook):
    rows = texts(notebook["many at once"])
    assert sorted(int(row.split()[2]) for row in rows) == list(range(12))


def test_the_workers_are_folded_under_the_row_while_they_work_and_afterwards(notebook):
    live = "".join(
        content["data"]["text/html"]
        for content in notebook["workers"].shown
        if " sleep running" in content["data"]["text/plain"]
    )
    now = r"<td>item \d+: 0\.2</td><td>[\d.]+ m?s</td><td>\d+</td><td>\d+ MB</td>"
    assert re.search(now, re.sub("<td [^>]*>", "<td>", live))
    done, failed = (data["text/html"] for data in bundles(notebook["workers"], "text/html"))
    assert "<th>starting</th>" in done
    assert re.search(r"item \d+ \(0\.2\): [\d.]+ s", done)
    gain = re.search(r"([\d.]+) × as fast as one after the other, \d+ % busy", done)
    assert 0 < float(gain[1]) <= 2  # of two workers, one of which may start when all is done
    assert "as fast" not in failed  # it was too short
    assert "item 1: ZeroDivisionError: division by zero" in failed
    assert "script" not in done
    assert texts(notebook["workers"])[1].startswith("✓ truediv done with 1 failed  3/3")


def test_a_large_input_that_could_take_less_is_named_under_the_row(notebook):
    (row,) = bundles(notebook["hints"], "text/html")
    assert "1 hint</span>" in row["text/html"]
    hint = "&emsp;shared[&#x27;d&#x27;]: about 0 MB of Python objects in each worker"
    assert hint in row["text/html"]


def test_a_pipeline_s_row_has_a_table_of_its_stages_and_a_picture(notebook):
    cell = notebook["pipeline"]
    (row,) = bundles(cell, "text/html")
    first, *stages = row["text/plain"].splitlines()
    assert first.startswith("✓ load → <lambda> → sum done  30/30")
    assert [line.split(":")[0] for line in stages] == ["  load", "  <lambda>", "  sum"]
    figures = r"<td>&lt;lambda&gt;</td><td>2</td><td>30</td><td>0 of 4</td><td>\d+%</td>"
    assert re.search(figures, re.sub("<td [^>]*>", "<td>", row["text/html"]))
    assert any(
        "load running" in c["data"].get("text/plain", "").replace(" → <lambda> → sum", "")
        for c in cell.shown
    )
    assert len(frames(cell)) > 0


def test_a_row_of_unknown_length_has_neither_percent_nor_time_left(notebook):
    rows = [c["data"]["text/plain"] for c in notebook["endless"].shown]
    assert any(
        re.fullmatch(r"● horizon running  \d+ · \d+\.\d/s( · \d+ s elapsed)?", r) for r in rows
    )
    assert not [row for row in rows if "%" in row or "left" in row or "/4" in row.split(" · ")[0]]
    assert re.fullmatch(r"✓ horizon done  40 in \d+\.\d s \(\S+/s\)", rows[-1])


def test_a_static_document_gets_the_last_frame_only_and_no_seconds(notebook):
    cell = notebook["static"]
    assert len(cell.shown) == 2
    assert bundles(cell, "text/html")[0]["text/plain"] == "✓ horizon done  40/40"
    assert " s" not in unstyled(bundles(cell, "text/html")[0]["text/html"])
    assert picture(frames(cell)[0]).height == 880


# -- a terminal, a log, a bar of the user's ----------------------------------------------------


def script(line):
    return [
        sys.executable,
        "-c",
        f"{PLAYER}\n{line}",
    ]


def at_a_terminal(line, width=100):
    """Run a line of the player at a pseudo-terminal. Return what is on it at the end."""
    pty, termios = map(pytest.importorskip, ("pty", "termios"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, width))
    process = subprocess.Popen(script(line), cwd=ROOT, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        assert select.select([ours], [], [], 60)[0], "nothing came within a minute"
        try:
            new = os.read(ours, 65536)
        except OSError:  # on Linux, if the other end is closed
            break
        shown += new
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_a_terminal_shows_tqdm_with_the_true_count():
    shown = at_a_terminal("play(PlayedJob(images()), seconds=0.5)")
    last = shown.rstrip().split("\r")[-1]
    assert last.startswith("horizon: 100%|")
    assert "| 40/40 [" in last
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("progress", "last"),
    [("None", ""), ("False", ""), ("True", "abs: 100%|"), ("'a job'", "a job: 100%|")],
)
def test_a_job_has_a_bar_in_a_terminal_if_it_is_asked_for(progress, last):
    shown = at_a_terminal(f"nbshare.map_async(abs, range(40), progress={progress}).result()")
    assert shown.rstrip().split("\r")[-1].startswith(last)
    assert bool(shown) == bool(last)


def test_a_job_writes_a_line_to_a_log_if_it_is_asked_for():
    line = "job = nbshare.map_async(abs, range(40), progress='job'); job.wait(); repr(job)"
    done = subprocess.run(script(line), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"job done: 40/40 in .*\n", done.stderr)


def test_a_terminal_and_a_log_count_without_an_end():
    line = "job = PlayedJob(images())\njob.n_items = None\nplay(job, {}until=40, seconds=0.3)"
    last = at_a_terminal(line.format("")).rstrip().split("\r")[-1]
    assert re.match(r"horizon: 40it \[", last)
    done = subprocess.run(
        script(line.format("True, ")), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert re.fullmatch(r"horizon done: 40 in \d+\.\d s \(\S+/s\)\n", done.stderr)


def test_a_terminal_groups_large_counts():
    last = at_a_terminal(
        "job = PlayedJob(np.zeros(1234)); job.flags[:1100] = True\nplay(job, until=0, seconds=0)"
    )
    assert "| 1,100/1,234 [" in last


def test_a_terminals_bar_stays_where_a_stopped_map_left_it():
    shown = at_a_terminal(
        "play(PlayedJob(images()), 'mine', until=10, end='stopped', seconds=0.3)\n"
        "import threading; assert threading.active_count() == 1"
    )
    last = shown.rstrip().split("\r")[-1]
    assert last.startswith("mine:  25%|")
    assert "| 10/40 [" in last
    assert last.rstrip("]").endswith("stopped")


def test_a_terminal_says_that_the_results_are_none():
    """As a notebook does, because a function that appends to a list returns nothing."""
    shown = at_a_terminal("import nbshare\nnbshare.parallel_map([].append, range(5))")
    assert shown.rstrip().endswith("the results are None]")


@pytest.mark.parametrize(
    ("n_items", "count"), [("40", r"100%\|.\| 40/40, 1 failed"), ("None", "40it, 1 failed")]
)
def test_a_narrow_terminal_shows_the_count_and_what_failed(n_items, count):
    """A long label is cut, not these. A run with failures does not end as any other."""
    last = at_a_terminal(
        f"job = PlayedJob(images()); job.n_items = {n_items}; job.errors = {{13: ValueError()}}\n"
        "play(job, 'a_function_with_quite_a_long_name_of_its_own', until=40, seconds=0.1)",
        width=40,
    )
    assert re.match(f"a_function_w…: {count}", last.rstrip().split("\r")[-1])


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ("None", r""),
        ("True", r"horizon done: 40/40 in \d+\.\d s \(\S+/s\)\n"),
        ("'mine'", r"mine done: 40/40 in \d+\.\d s \(\S+/s\)\n"),
    ],
)
def test_a_log_gets_lines_only_when_asked(progress, expected):
    done = subprocess.run(
        script(f"play(PlayedJob(images()), {progress}, seconds=0.2)"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.fullmatch(expected, done.stderr)
    assert done.stdout == ""


def test_a_log_gets_a_line_for_each_good_step_and_is_never_silent_for_long(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(bar, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(PlayedJob, "elapsed_s", property(lambda job: clock.now))
    job = PlayedJob(np.zeros(100))
    lines = bar.LogLines(job)
    job.state = "running"

    def told(now, n_done):
        clock.now = now
        job.flags[:n_done] = True
        lines.draw(final=False)
        return capsys.readouterr().err

    assert told(5, 50) == ""  # a good step, but soon
    assert told(20, 50) == "horizon running: 50/100, 50 %, 10.0/s, 20 s elapsed, 5 s left\n"
    assert told(40, 55) == ""  # some time, but a small step
    assert told(330, 55).startswith("horizon running: 55/100, 55 %")
    job.state = "failed"
    lines.draw(final=True)
    assert capsys.readouterr().err == "horizon failed: 55/100, 55 %, after 05:30\n"


class TellingBar(tqdm):
    """A tqdm that remembers what it was told."""

    made: tuple[object, ...] = ()
    given = 0
    closed = 0

    def __init__(self, *args, total, desc):
        type(self).made = (total, desc)
        super().__init__(total=total, desc=desc, file=io.StringIO())

    def update(self, n=1):
        """Count what is given."""
        type(self).given += n
        return super().update(n)

    def close(self):
        """Count the closings that do something."""
        type(self).closed += not self.disable
        super().close()


@pytest.mark.parametrize(("until", "end"), [(40, "done"), (17, "stopped")])
def test_a_tqdm_class_of_the_users_gets_every_completion_once(until, end):
    class Bar(TellingBar):
        monitor_interval = 0

    play(PlayedJob(images()), progress=Bar, until=until, end=end, seconds=0.3)
    assert Bar.made == (40, "horizon")
    assert Bar.given == until
    assert Bar.closed == 1


def test_a_bar_is_closed_whatever_is_pressed_meanwhile():
    """The run is interrupted then, though all is done."""

    class Pressed(TellingBar):
        monitor_interval = 0
        presses = 0

        def close(self):
            if Pressed.presses < 3:
                Pressed.presses += 1
                signal.raise_signal(signal.SIGINT)
            super().close()

    with pytest.raises(MapInterrupted, match="3 of 3 items done"):
        parallel_map(math.sqrt, [1, 4, 9], progress=Pressed)
    assert (Pressed.presses, Pressed.closed) == (3, 1)


def test_a_display_with_nothing_to_show_asks_for_no_calls():
    display = open_display(PlayedJob(images()), progress=False, plot="image")
    assert display.update() == NEVER_S
    display.close()


def test_importing_the_room_loads_nothing_that_draws():
    code = (
        "import sys, nbshare._core.notebook as n; n.check_display(True, 'image'); "
        "print({'matplotlib', 'tqdm', 'IPython', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


# -- arguments, failures -----------------------------------------------------------------------


def test_what_is_allowed_passes():
    for progress in (None, True, False, "a label", "", tqdm):
        check_display(progress, None)
    for plot in ("line", "hist", "image", LivePlot(), ["image", LivePlot("hist"), print]):
        check_display(None, plot)


def test_other_kinds_of_progress_are_refused():
    for progress in (1, 0.5, tqdm(disable=True), int, [True], print):
        with pytest.raises(TypeError, match="a tqdm class"):
            parallel_map(abs, [1], progress=progress)


@pytest.mark.parametrize(
    ("plot", "error", "message"),
    [
        ("imgae", ValueError, "plot='imgae' is not allowed: pass 'line', 'image', 'hist'"),
        (3, TypeError, "plot=3 is not allowed"),
        (LivePlot, TypeError, r"Did you mean LivePlot\(\)"),
        ([], ValueError, "1 to 6 plots"),
        (["line"] * 7, ValueError, "not 7"),
        (["line", None], TypeError, "plot=None is not allowed"),
    ],
)
def test_other_plots_are_refused(plot, error, message):
    with pytest.raises(error, match=message):
        parallel_map(abs, [1], plot=plot)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "pie"}, ValueError, "'pie' is not allowed"),
        ({"kind": 3}, TypeError, "3 is not allowed"),
        ({"x": np.zeros((2, 2))}, TypeError, "one-dimensional"),
        ({"y": ["a", "b"]}, TypeError, "dtype <U1"),
        ({"value": 3}, TypeError, "value=3 is not allowed: pass a function"),
        (
            {"reduction": "median"},
            ValueError,
            "'median' is not allowed: pass 'mean', 'sum', 'min', 'max' or 'last'",
        ),
        ({"bins": 0}, ValueError, "from 1 to 1000"),
        ({"interval_s": float("nan")}, ValueError, "above 0"),
    ],
)
def test_a_live_plot_refuses_what_it_cannot_draw_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        LivePlot(**arguments)


class Raising:
    """A drawer that fails."""

    def __init__(self, error):
        self.error, self.calls = error, 0

    def draw(self, *, final):
        """Fail."""
        self.calls += 1
        raise self.error


class Counting:
    """A drawer that works."""

    def __init__(self):
        self.calls = []

    def draw(self, *, final):
        """Note the call."""
        self.calls.append(final)
        return 0.0


def test_one_broken_drawer_leaves_the_others_drawing():
    broken, good = Raising(OSError("the front end is gone")), Counting()
    display = Display([broken, good])
    with pytest.warns(DisplayWarning, match="the front end is gone") as caught:
        display.update()
    assert Path(caught[0].filename) == Path(__file__)  # the warning names the user's line
    display.update()  # a second warning would be an error here
    display.close()
    assert (broken.calls, good.calls) == (1, [False, False, True])


def test_a_drawing_error_does_not_end_the_map_even_where_warnings_are_errors(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Display([Raising(OSError("gone"))]).close()
    assert "OSError: gone" in capsys.readouterr().err


def test_an_interrupt_passes_through_drawing():
    with pytest.raises(KeyboardInterrupt):
        Display([Raising(KeyboardInterrupt())]).update()


def test_the_last_frame_is_drawn_again_if_an_interrupt_has_met_it():
    """Each drawer's, except one that takes long, which may never end."""

    class Interrupted(Counting):
        def __init__(self, wait):
            super().__init__()
            self.wait = wait

        def draw(self, *, final):
            super().draw(final=final)
            if len(self.calls) < 3:
                self.wait()
                signal.raise_signal(signal.SIGINT)
            return 0.0

    quick, slow, last = Interrupted(lambda: None), Interrupted(lambda: time.sleep(0.6)), Counting()
    display = Display([quick, slow, last])
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            display.close()
    display.close()
    display.close()
    assert (len(quick.calls), len(slow.calls), last.calls) == (3, 1, [True])


def test_the_row_says_that_results_are_none_which_a_forgotten_return_gives():
    """The first of them are looked at. Results of another kind are not loaded for it."""

    def nothing(a, b):
        a + b

    for function, n, told in ((nothing, 3, True), (nothing, 5000, True), (divmod, 3, False)):
        job = map_async(function, *[range(1, n + 1)] * 2, progress=False)
        job.wait()
        words = str(bar.describe(job, bar.Speed(job)))
        assert ("the results are None" in words) is told


@pytest.mark.parametrize(("state", "is_told"), [("running", True), ("done", False)])
def test_a_detached_run_says_so_while_it_runs(state, is_told):
    """Its reader may shut the notebook down."""
    job = PlayedJob(np.zeros(4))
    job.flags[:], job.state, job._run.is_detached = True, state, True
    assert str(bar.describe(job, bar.Speed(job))).endswith(" · detached") is is_told


@pytest.fixture
def drawn(monkeypatch):
    """Return a row's bundle of a played job, without a kernel."""
    output = SimpleNamespace(id="row", cell=None, is_shared=False)
    monkeypatch.setattr(row, "kernel_output", lambda _: output)
    return lambda job: row.NotebookRow(job, in_background=True)._bundle(final=job.state == "done")


def test_items_that_were_run_again_are_told_and_named(drawn):
    """A run that works only by retries looks healthy otherwise."""
    job = PlayedJob(np.zeros(40))
    assert "retr" not in str(bar.describe(job, bar.Speed(job)))
    job.flags[:], job.state, job._run.retried = True, "done", lambda: np.array([3, 17])
    shown = drawn(job)
    assert shown["text/plain"].endswith(" · 2 retried")
    assert re.search(r'<span style="color:[^"]*">2 retried</span>', shown["text/html"])
    assert "retried:</div><div>&emsp;items 3, 17</div>" in shown["text/html"]


def test_durations_of_items_are_bars_in_the_fold(drawn):
    """The few that take long are seen next to the many."""
    job = PlayedJob(np.zeros(40))
    job.state, job._run.activity = "running", list
    job._run.durations = lambda: [0] * 20 + [1000, 0, 1] + [0] * 33
    bars = re.findall(
        r'<div title="([^"]*)" style="width:16px;height:(\d+)px', drawn(job)["text/html"]
    )
    assert bars == [
        ("524 µs to 1 ms: 1000 items", "26"),
        ("1 ms to 2 ms: 0 items", "0"),
        ("2 ms to 4 ms: 1 item", "2"),
    ]


def test_a_screen_reader_hears_changes_of_state_and_no_figures(drawn):
    """All that changes three times a second would be read aloud without an end."""
    job = PlayedJob(np.zeros(40))
    heard = []
    for n_done, state, job.errors in ((0, "running", {}), (7, "running", {}), (40, "done", {3: 0})):
        job.flags[:n_done], job.state = True, state
        heard += re.findall('<span role="status">(.*?)</span>', drawn(job)["text/html"])
    assert heard == ["<b>horizon</b> running"] * 2 + ["<b>horizon</b> done with 1 failed"]


@pytest.mark.parametrize(
    "start", ['<div role="progressbar"[^>]*>', '<div style="[^"]*"><div title="[^"]*µs to ']
)
def test_bars_keep_their_colours_where_the_system_forces_its_own(drawn, start):
    """They are backgrounds, all of which high contrast would make the same."""
    job = PlayedJob(np.zeros(40))
    job.state, job._run.activity = "running", list
    job._run.durations = lambda: [0] * 19 + [1]
    (bar,) = re.findall(start, drawn(job)["text/html"])
    assert "forced-color-adjust:none" in bar


@pytest.mark.parametrize(
    ("since_s", "rate", "told"),
    [
        ((2.0, 72.9), 1.0, ["slowest: item 41, 01:12"]),
        ((2.0, 72.9), 0.05, []),  # as long as the others: 2 workers, an item in 20 s
        ((2.0, 4.0), 100.0, []),
        ((2.0, 72.9), 0.0, []),  # the first ones
    ],
)
def test_the_item_that_holds_up_a_run_is_named(since_s, rate, told):
    """It answers why a run does not end, without a look at the table."""
    activity = [
        WorkerActivity(1, range(i, i + 1), str(i), s, None, "", 7, 0, 1, False)
        for i, s in zip((40, 41), since_s, strict=True)
    ]
    assert row._slowest(activity, 2, rate) == told


def test_the_time_left_comes_after_two_seconds_and_ends_as_a_moment(monkeypatch):
    """The first results say little about the others, and a last second is no figure."""
    job = PlayedJob(images())
    job.state = "running"
    speed, now_s = bar.Speed(job), job.began_s
    monkeypatch.setattr(bar.time, "monotonic", lambda: now_s)
    told = []
    for n, at_s in ((2, 0.3), (10, 1.9), (20, 4.0), (30, 6.0), (39, 8.0)):
        job.flags[:n] = True
        now_s = job.began_s + at_s
        told.append(str(bar.describe(job, speed)))
    assert ["left" in words for words in told] == [False, False, True, True, True]
    assert re.search(r"[1-9] s left", told[2])
    assert told[-1].endswith("a moment left")


@pytest.mark.parametrize(
    ("rate", "text"),
    [(12_340, "12.3k/s"), (1, "1.00/s"), (0.19, "11/min"), (0.02, "1.2/min"), (0.001, "3.6/h")],
)
def test_a_rate_below_one_has_the_next_unit(rate, text):
    """A person counts whole items."""
    assert bar._rate(rate) == text


def test_large_numbers_are_grouped():
    """In the count of a million items nobody counts digits."""
    job = PlayedJob(np.zeros(1_234_567))
    job.flags[:1_000_000] = True
    job.state, job.errors = "done", dict.fromkeys(range(1_500))
    words = str(bar.describe(job, bar.Speed(job)))
    assert words.startswith("done with 1,500 failed  1,000,000/1,234,567 in ")


@pytest.mark.parametrize(
    ("done", "at_s", "told"),
    [
        (10, 100, "ready about 22:4"),
        (10, 5000, "ready about 5 Dec, "),
        (90, 20, ""),
        (999, 900, ""),
    ],
)
def test_a_long_run_says_at_what_time_it_ends(monkeypatch, done, at_s, told):
    """Nobody adds three hours to the time of day. A run of minutes, or its last one, says none."""
    job = PlayedJob(np.zeros(1000))
    job.state = "running"
    speed, now_s = bar.Speed(job), job.began_s
    now = time.mktime((2026, 11, 29, 20, 3, 0, 0, 0, -1))
    monkeypatch.setattr(bar.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(bar.time, "time", lambda: now)
    localtime = time.localtime
    monkeypatch.setattr(bar.time, "localtime", lambda s=None: localtime(now if s is None else s))
    job.flags[:done] = True
    now_s = job.began_s + at_s
    words = str(bar.describe(job, speed))
    assert "left" in words
    assert told in words
    assert ("ready" in words) is bool(told)


def test_the_table_of_workers_has_two_digits_and_no_index_twice():
    job = map_async(time.sleep, [0.0, 0.123], max_workers=1, progress=False)
    job.wait()
    table = job.stats._repr_html_()
    assert re.search(r"item 1 \(0\.123\): 0\.\d\d s", table)
    assert not re.search(r"\d\.\d{3} s", re.sub(r"0\.0\d\d s", "", table))
    job = map_async(range, range(3), max_workers=1, progress=False)
    job.wait()
    assert re.search(r"item 2: [\d.e-]+ s", job.stats._repr_html_())
