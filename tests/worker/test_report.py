"""`nbshare.report` tells how far an item is, as the list of the workers shows it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbshare import map_async, parallel_map, report
from nbshare._core.wire.board import REPORT_TEXT, SINCE, SLOT_WORDS, Board, reported
from nbshare._core.worker.reports import Reporter
from tests.support import reporters
from tests.support.faultlab import wait_until


@pytest.fixture
def go(tmp_path):
    """Give the file that items wait for, which is there in the end."""
    path = tmp_path / "go"
    yield str(path)
    path.touch()


def reports_of(job):
    """Return what those workers tell that are in the middle of an item."""
    return [(worker.fraction, worker.report) for worker in job._run.activity() if worker.items]


def await_reports(job, n=1):
    """Wait until some workers have told something. Return what."""

    def all_told():
        reports = [each for each in reports_of(job) if each != (None, "")]
        return reports if len(reports) == n else None

    return wait_until(all_told, what=lambda: f"reports: {reports_of(job)}")


@pytest.mark.parametrize("backend", [None, "threads"])
def test_a_report_is_seen_while_its_item_runs(go, backend):
    """Each worker's own, in processes and in threads, and none when all is over."""
    task = partial(reporters.told, go=go)
    job = map_async(task, [0.25, 0.75], max_workers=2, chunksize=1, backend=backend)
    reports = await_reports(job, 2)
    assert sorted(reports) == [(0.25, "item 0.25"), (0.75, "item 0.75")]
    open(go, "x").close()
    assert job.result(20).tolist() == [0.25, 0.75]
    assert reports_of(job) == []


def test_the_next_item_starts_without_a_report(go):
    """The report of the item before is not its own."""
    job = map_async(partial(reporters.only_the_first_tells, go=go), [0, 1], max_workers=1)
    wait_until(
        lambda: [w.items for w in job._run.activity()] == [range(1, 2)], what="no second item"
    )
    assert reports_of(job) == [(None, "")]


def test_the_next_attempt_starts_without_a_report(go, tmp_path):
    """Nor is what the same item has told before it failed."""
    task = partial(reporters.fails_first, folder=str(tmp_path), go=go)
    job = map_async(task, [1], max_workers=1, retries=1)
    wait_until((tmp_path / "tried").exists, what="no first attempt")
    wait_until(lambda: reports_of(job) == [(None, "")], what=lambda: reports_of(job))
    open(go, "x").close()
    assert job.result(20).tolist() == [1]


@pytest.mark.parametrize(
    ("task", "expected"), [("outer", (0.25, "outer")), ("in_a_thread", (None, ""))]
)
def test_only_the_item_itself_tells(go, tmp_path, task, expected):
    """Neither items of a run of its own, nor threads of its own."""
    job = map_async(partial(getattr(reporters, task), go=go), [1], max_workers=1)
    wait_until((tmp_path / "go-others").exists, what="the others have told nothing")
    assert reports_of(job) == [expected]
    open(go, "x").close()
    assert job.result(20).tolist() == [1]


def test_elsewhere_it_does_nothing():
    """In a plain program, and in items that run in this process and thread."""
    assert report(0.5, "half") is None
    assert parallel_map(reporters.inner, [1, 2], backend="serial").tolist() == [1, 2]


@pytest.mark.parametrize("fraction", ["half", None, [0.5], 1j, 10**999])
def test_what_is_no_number_is_refused_everywhere(fraction):
    """A wrong one is seen at once in any process, not only in a worker."""
    with pytest.raises(TypeError, match="from 0 to 1"):
        report(fraction)


@given(fraction=st.floats() | st.integers(-9, 9), text=st.text(st.characters(), max_size=300))
def test_any_number_and_any_text_can_be_told(fraction, text):
    """Fractions are brought between 0 and 1, NaN is none. A long text is cut to its room."""
    board = Board.create(1, 1)
    board.row(0)[SINCE] = 7
    with Reporter(board, 0):
        report(fraction, text)
    share, shown = reported(board.row(0).tolist())
    if math.isnan(fraction):
        assert share is None
    else:
        assert share == pytest.approx(min(max(fraction, 0), 1), abs=1e-6)
    wanted = text.encode("utf-8", "replace").rstrip(b"\0")
    room = 8 * (SLOT_WORDS - REPORT_TEXT)
    if len(wanted) <= room:
        assert shown == wanted.decode()
    else:
        assert wanted.decode().startswith(shown.removesuffix("…"))
        assert room - 6 <= len(shown.encode()) <= room


def test_a_fraction_may_be_a_number_of_numpy():
    """As it comes out of an array."""
    board = Board.create(1, 1)
    with Reporter(board, 0):
        report(np.float32(0.5), 3)  # type: ignore[arg-type]
    assert reported(board.row(0).tolist()) == (0.5, "3")
