"""What a user sees of a running map: rows, bars, lines and pictures, in the places where they are.

The jobs are played by a small class over a NumPy array: it is the input of the drawing code, which
itself runs in real kernels, at a real pseudo-terminal and into real pipes.
"""

from __future__ import annotations

import base64
import inspect
import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image
from tqdm.std import tqdm

from nbshare.errors import DisplayWarning, NotBuiltYetError
from nbshare.notebook import Display, bar, check_display, open_display
from nbshare.notebook.base import NEVER_S, CannotDrawError
from nbshare.notebook.figure import LiveFigure, render
from nbshare.notebook.image import ColourLimits, RunningMean, choose_layout

ROOT = Path(__file__).resolve().parents[1]


class PlayedJob:
    """A job that somebody plays."""

    n_workers = n_ready = 2

    def __init__(self, results, label="horizon"):
        self.results, self.label = results, label
        self.n_tasks, self.state = len(results), "starting"
        self.flags = np.zeros(len(results), bool)

    @property
    def n_done(self):
        """How many flags are set."""
        return int(np.count_nonzero(self.flags))

    @property
    def present(self):
        """The flags."""
        return self.flags.copy()

    def partial(self):
        """Mask the results whose flag is not set."""
        if not self.flags.any():
            return None
        if isinstance(self.results, list):
            return self.results
        missing = ~self.flags.reshape(-1, *[1] * (self.results.ndim - 1))
        missing = np.broadcast_to(missing, self.results.shape)
        return np.ma.MaskedArray(self.results, missing, copy=False)


def play(job, progress=None, plot=None, *, until=None, end="done", seconds=1.0):
    """Do what a map does while it waits."""
    check_display(progress, plot)
    job.label = progress if isinstance(progress, str) else job.label  # as parallel_map does
    display = open_display(job, progress=progress, plot=plot)
    display.update()
    job.state = "running"
    until = job.n_tasks if until is None else until
    for i in range(until):
        job.flags[i] = True
        display.update()
        time.sleep(seconds / until)
    job.state = end
    display.close()


def images(n=40):
    y, x = np.mgrid[:60, :80] / 20
    return np.stack([np.sin(x + i / 5) + np.cos(y * i / 20) for i in range(n)])


PLAYER = "\n".join(
    [
        "import sys, time",
        "import numpy as np",
        "from nbshare.notebook import check_display, open_display",
        *map(inspect.getsource, (PlayedJob, play, images)),
    ]
)


# -- a real kernel ---------------------------------------------------------------------------------

CELLS = {
    "setup": f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PLAYER}",
    "image": "play(PlayedJob(images()), plot='image', seconds=2.0)",
    "pyplot": "print('matplotlib.pyplot' in sys.modules)",
    "stopped": "play(PlayedJob(images()), until=12, end='stopped', seconds=0.2)",
    "interrupted": "play(PlayedJob(images(), 'my <label>'), True, until=3, end='interrupted')",
    "quiet": "play(PlayedJob(images()), progress=False, seconds=0.1)",
    "callable": (
        "def draw(ax, partial):\n    ax.plot(partial.mean((1, 2)))\n"
        "play(PlayedJob(images()), 'mine', plot=draw)"
    ),
    "failing": "def bad(ax, partial):\n    1 / 0\nplay(PlayedJob(images()), plot=bad, seconds=0.5)",
    "words": "play(PlayedJob(list('abcdef')), plot='image', seconds=0.5)",
    "nothing": "play(PlayedJob(images()), plot='image', until=0, end='failed')",
    "static": (
        "import os; os.environ['NBSHARE_STATIC'] = '1'\n"
        "play(PlayedJob(images()), plot='image', seconds=0.5)"
    ),
}


class RecordingClient(nbclient.NotebookClient):
    """Keeps every message that a front end would have got, by cell."""

    def process_message(self, msg, cell, cell_index):
        """Note the message."""
        self.messages.setdefault(cell_index, []).append(msg)
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def notebook():
    """Run the cells; return for each its saved outputs and the display messages it sent."""
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
    assert "width:100%" in row["text/html"]
    assert "#009E73" in row["text/html"]


def test_the_row_moves_while_the_cell_runs_and_not_too_often(notebook):
    rows = [c["data"]["text/plain"] for c in notebook["image"].shown if "text/html" in c["data"]]
    assert rows[0] == "▷ horizon starting 2 workers…  0/40 · 0 %"
    assert any(re.search(r"▶ horizon running .* % · .*/s · \d+ s elapsed", row) for row in rows)
    elapsed_s = float(re.search(r"in (\d+\.\d) s", rows[-1])[1])
    assert 4 <= len(rows) <= 3 * elapsed_s + 3  # 3 Hz, and the first and last


def test_nothing_is_saved_as_zero_percent_or_as_a_widget(notebook):
    saved = str({name: cell.outputs for name, cell in notebook.items() if name != "nothing"})
    assert "0%|" not in saved
    assert "widget-view" not in saved


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("stopped", r"■ horizon stopped  12/40 · 30 % · after \d+\.\d s"),
        ("interrupted", r"■ my <label> interrupted  3/40 · 7 % · after \d+\.\d s"),
        ("nothing", r"✗ horizon failed  0/40 · 0 % · after \d+\.\d s"),
    ],
)
def test_a_row_that_ends_early_says_how_far_it_came(notebook, cell, text):
    (row,) = bundles(notebook[cell], "text/html")
    assert re.fullmatch(text, row["text/plain"])
    assert "<label>" not in row["text/html"]


def test_progress_false_shows_nothing(notebook):
    assert notebook["quiet"].outputs == []


def test_a_saved_notebook_keeps_one_sharp_last_picture(notebook):
    (out,) = [o for o in notebook["image"].outputs if "image/png" in o.get("data", {})]
    assert out.data["text/plain"] == "horizon: mean of 40 of 40"
    assert picture(out).size == (1280, 800)
    assert len(base64.b64decode(out.data["image/png"])) < 90_000


def test_pictures_come_while_the_cell_runs_and_never_change_their_size(notebook):
    shown = frames(notebook["image"])
    assert len(shown) >= 3
    assert {picture(content).size for content in shown[:-1]} == {(640, 400)}
    sizes = [content["metadata"]["image/png"] for content in shown]
    assert sizes == [{"width": 640, "height": 400}] * len(shown)
    assert len({content["transient"]["display_id"] for content in shown}) == 1


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
    text = "".join(out.get("text", "") for out in notebook["words"].outputs)
    assert text.count("DisplayWarning") == 1
    assert "of type str" in text
    assert "plot=callable(ax, partial)" in text
    assert bundles(notebook["words"], "text/html")[0]["text/plain"].startswith("✓ horizon done")


def test_without_results_there_is_no_picture(notebook):
    assert frames(notebook["nothing"]) == []


def test_a_static_document_gets_the_last_frame_only_and_no_seconds(notebook):
    cell = notebook["static"]
    assert len(cell.shown) == 2
    assert bundles(cell, "text/html")[0]["text/plain"] == "✓ horizon done  40/40"
    assert " s" not in unstyled(bundles(cell, "text/html")[0]["text/html"])
    assert picture(frames(cell)[0]).size == (1280, 800)


# -- a terminal, a log, a bar of the user's ----------------------------------------------------


def script(line):
    return [sys.executable, "-c", f"{PLAYER}\n{line}"]


def at_a_terminal(line):
    """Run a line of the player at a pseudo-terminal; return what is on it at the end."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = subprocess.Popen(script(line), cwd=ROOT, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        assert select.select([ours], [], [], 60)[0], "nothing came within a minute"
        try:
            new = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
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


def test_a_terminals_bar_stays_where_a_stopped_map_left_it():
    shown = at_a_terminal(
        "play(PlayedJob(images()), 'mine', until=10, end='stopped', seconds=0.3)\n"
        "import threading; assert threading.active_count() == 1"
    )
    last = shown.rstrip().split("\r")[-1]
    assert last.startswith("mine:  25%|")
    assert "| 10/40 [" in last
    assert last.rstrip("]").endswith("stopped")


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
        script(f"play(PlayedJob(images()), {progress}, plot='image', seconds=0.2)"),
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
    job = PlayedJob(np.zeros(100))
    lines = bar.LogLines(job, "horizon")
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


def test_a_display_with_nothing_to_show_asks_for_no_calls():
    display = open_display(PlayedJob(images()), progress=False, plot="image")
    assert display.update() == NEVER_S
    display.close()


def test_importing_the_room_loads_nothing_that_draws():
    code = (
        "import sys, nbshare.notebook as n; n.check_display(True, 'image'); "
        "print({'matplotlib', 'tqdm', 'IPython', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


# -- arguments, failures -----------------------------------------------------------------------


@pytest.mark.parametrize("progress", [None, True, False, "a label", "", tqdm])
@pytest.mark.parametrize("plot", [None, "image", lambda ax, partial: None])
def test_what_is_allowed_passes(progress, plot):
    check_display(progress, plot)


@pytest.mark.parametrize("progress", [1, 0.5, tqdm(disable=True), int, [True], print])
def test_other_kinds_of_progress_are_refused(progress):
    with pytest.raises(TypeError, match="a tqdm class"):
        check_display(progress, None)


@pytest.mark.parametrize("kind", ["line", "hist"])
def test_plots_that_come_later_are_refused_as_such(kind):
    with pytest.raises(NotBuiltYetError, match=f"plot='{kind}' is not built yet; use"):
        check_display(None, kind)


def test_other_plots_are_refused():
    with pytest.raises(ValueError, match="plot='imgae' names no plot: pass 'image'"):
        check_display(None, "imgae")
    with pytest.raises(TypeError, match="plot=3 is not allowed"):
        check_display(None, 3)


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


# -- the picture -------------------------------------------------------------------------------


def played(results, share, label="horizon"):
    job = PlayedJob(results, label)
    job.flags[: round(share * len(results))] = True
    return job


def is_blank(png, box):
    """Tell whether a box of the picture, in fractions, is all of the missing cells' grey."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    left, top, right, bottom = (np.multiply(box, image.size * 2)).round().astype(int)
    region = np.asarray(image)[top:bottom, left:right].reshape(-1, 3).astype(int)
    return bool((abs(region - 0xE8) <= 4).all())


@pytest.mark.parametrize(
    ("results", "title"),
    [
        (np.arange(1000.0), "500 of 1000"),
        (np.arange(300_000), "150000 of 300000"),
        (np.random.default_rng(0).random((120, 50)), "60 of 120"),
        (np.random.default_rng(0).random((3000, 2000), np.float32), "1500 of 3000"),
        (np.random.default_rng(0).random((10, 30, 40)) > 0.5, "mean of 5 of 10"),
        (np.random.default_rng(0).random((4, 1500, 1100), np.float32), "mean of 2 of 4"),
        (np.full((10, 30, 40, 3), 200, np.uint8), "mean of 5 of 10"),
        (np.full((10, 30, 40), np.nan), "mean of 5 of 10"),
        (np.zeros((1, 1)), "0 of 1"),
    ],
)
def test_every_shape_of_numbers_has_its_picture(results, title):
    job = played(results, 0.5)
    if not job.n_done:
        job.flags[:], title = True, "1 of 1"
    frame = LiveFigure(job, "image", job.label).frame(final=True)
    assert frame.title == f"horizon: {title}"
    width, height = Image.open(io.BytesIO(frame.png)).size
    assert width / height == 640 / 400


def test_rows_that_are_missing_stay_blank():
    png = render(played(np.random.default_rng(0).random((100, 30)), 0.5))
    assert not is_blank(png, (0.2, 0.15, 0.7, 0.4))
    assert is_blank(png, (0.2, 0.55, 0.7, 0.75))


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (np.zeros((4, 2, 3, 5)), "the shape"),
        (np.zeros((4, 0)), "the shape"),
        (np.zeros(4, complex), "dtype complex128"),
        (np.array(["a", "b"]), "dtype <U1"),
        ([{"a": 1}], "of type dict"),
    ],
)
def test_results_that_suit_no_image_are_refused_with_a_reason(results, reason):
    with pytest.raises(CannotDrawError, match=reason):
        render(played(results, 1))


def test_a_job_without_results_cannot_be_rendered():
    with pytest.raises(ValueError, match="no result yet"):
        render(PlayedJob(np.zeros(3)))


@pytest.mark.parametrize("shape", [(50,), (50, 7), (50, 6, 5), (3000, 2), (200_000,)])
def test_the_picture_is_the_mean_and_each_result_is_read_once(shape):
    rng = np.random.default_rng(1)
    results = rng.random(shape, np.float32)
    layout = choose_layout(shape[0], shape[1:])
    order, present = rng.permutation(shape[0]), np.zeros(shape[0], bool)
    data = np.full_like(results, np.nan)  # also after it was read: reading it again would show
    mean = RunningMean(shape[0], layout)
    for part in np.array_split(order, 4):
        data[:] = np.nan
        data[part], present[part] = results[part], True
        mean.add_new(data, present, budget_s=60)
    cells = np.arange(shape[0]) * layout.n_cells // shape[0]
    sums = np.zeros((layout.n_cells, *shape[1:]))
    np.add.at(sums, cells, results)
    expected = (sums.T / np.bincount(cells)).T.squeeze()
    pixels = mean.pixels()
    np.testing.assert_allclose(pixels.ravel()[: expected.size], expected.ravel())
    assert np.isnan(pixels.ravel()[expected.size :]).all()
    assert mean.n_shown == shape[0]


def test_a_refresh_takes_in_only_what_its_time_allows_and_the_last_frame_all():
    results = np.ones((40, 500, 500))  # in float64 one block of 8 MiB holds four of them
    mean = RunningMean(40, choose_layout(40, (500, 500)))
    mean.add_new(results, np.ones(40, bool), budget_s=0)
    assert 0 < mean.n_shown < 40
    mean.add_new(results, np.ones(40, bool), budget_s=float("inf"))
    assert mean.n_shown == 40
    assert (mean.pixels() == 1).all()


def test_an_interrupt_while_results_are_taken_in_leaves_no_wrong_mean(monkeypatch):
    results, present = np.arange(12.0).reshape(4, 3, 1), np.ones(4, bool)
    mean = RunningMean(4, choose_layout(4, (3, 1)))
    real_diff, calls = np.diff, []

    def interrupted_diff(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:  # the sums are added to, the counts not yet
            raise KeyboardInterrupt
        return real_diff(*args, **kwargs)

    monkeypatch.setattr(np, "diff", interrupted_diff)
    with pytest.raises(KeyboardInterrupt):
        mean.add_new(results, present, budget_s=60)
    mean.add_new(results, present, budget_s=60)
    np.testing.assert_array_equal(mean.pixels(), results.mean(axis=0))


def test_colours_stay_while_the_data_move_little_and_are_exact_at_the_end():
    rng = np.random.default_rng(2)
    limits = ColourLimits()
    limits.follow(rng.random((50, 50)), final=False)
    before = limits.low, limits.high
    limits.follow(rng.random((50, 50)) * 1.03, final=False)
    assert (limits.low, limits.high) == before
    limits.follow(rng.random((50, 50)) * 3, final=False)
    assert limits.high > 2.5
    exact = rng.random((50, 50)) * 3.01
    limits.follow(exact, final=True)
    assert (limits.low, limits.high) == pytest.approx(np.percentile(exact, (2, 98)))


def test_a_function_gets_cleared_axes_and_its_colour_bar_does_not_pile_up():
    seen = []

    def draw(ax, partial):
        seen.append((len(ax.images), int(partial.count())))
        ax.figure.colorbar(ax.imshow(partial), ax=ax)

    job = played(np.random.default_rng(0).random((10, 5)), 0.2)
    figure = LiveFigure(job, draw, "drawn")
    widths = []
    for n in (4, 6, 8, 10):
        job.flags[:n] = True
        figure.frame(final=False)
        widths.append(figure.figure.axes[0].get_position().width)
    assert seen == [(0, 20), (0, 30), (0, 40), (0, 50)]
    assert len(figure.figure.axes) == 2
    assert widths == pytest.approx([widths[0]] * 4, rel=0.02)
