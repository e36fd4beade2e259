"""The contract of backends, which is what a call means, whatever runs its items.

A backend's tests inherit `BackendContract` and give the value for ``backend=``::

    class TestThreads(BackendContract):
        lacks = frozenset({"timeout"})

        @pytest.fixture
        def backend(self):
            return "threads"

`lacks` names what a backend cannot do. It has to refuse that in words, before anything runs. The
names are the keys of `CANNOT`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import tempfile
import threading
import time
import traceback
import warnings

import numpy as np
import pytest

import nbshare
from nbshare import MISSING, MapInterrupted, SharedArray, last_job, map_async, parallel_map
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.system import processes
from nbshare.errors import PartialResultWarning, TaskError
from tests.support import duties
from tests.support.faultlab import SOON_S, wait_until
from tests.support.outcomes import no_interrupt, said

TABLE = np.arange(12.0).reshape(4, 3)

# Function, iterables, options, and the dtype of the results, or None if they are a list.
CASES = {
    "numbers": (duties.identity, [range(50)], {}, "i8"),
    "floats": (duties.identity, [[0.5, np.nan, np.inf]], {}, "f8"),
    "rows": (duties.identity, [TABLE], {}, "f8"),
    "columns": (duties.identity, [TABLE.T], {}, "f8"),
    "scalars": (duties.identity, [np.arange(5, dtype=np.int16)], {}, "i2"),
    "booleans": (duties.identity, [[True, False]], {}, "?"),
    "dates": (duties.identity, [np.arange(3).astype("M8[s]")], {}, "M8[s]"),
    "images": (duties.row, [range(5)], {}, "f4"),
    "large": (np.ones, [[100_000] * 3], {}, "f8"),
    "promoted": (duties.identity, [[1, 2.5]], {}, "f8"),
    "strings": (duties.identity, [["a", "", "ß"]], {}, None),
    "objects": (duties.identity, [[{"a": 1}, None, [2]]], {}, None),
    "shapes": (np.ones, [[3, 50_000]], {"out": "list"}, None),
    "shared": (
        duties.add,
        [range(5), TABLE[0].repeat(2)[:5]],
        {"shared": {"z": TABLE[:, 1]}},
        "f8",
    ),
    "partial": (functools.partial(duties.add, 1), [range(5)], {"shared": {"z": 0.5}}, "f8"),
    "lambda": (lambda x: x + 1, [range(5)], {}, "i8"),
    "two": (duties.add, [range(5), range(4, 9)], {}, "i8"),
    "list": (duties.identity, [range(5)], {"out": "list"}, None),
    "one": (duties.identity, [[7]], {}, "i8"),
    "none": (duties.identity, [[]], {}, "f8"),
    "chunks": (duties.identity, [range(50)], {"chunksize": 3, "max_workers": 3}, "i8"),
    "tiny": (duties.identity, [range(20_000)], {}, "i8"),
    "arrays": (np.sum, [[np.ones(n) for n in (3, 60_000)]], {}, "f8"),
}


def call_with_checkpoint(**options):
    with tempfile.TemporaryDirectory() as folder:
        parallel_map(duties.doze, [0.0], checkpoint=f"{folder}/run", **options)


# For each thing that a backend may lack, a call that needs it, and words of the refusal.
CANNOT = {
    "checkpoint": (call_with_checkpoint, "checkpoint"),
    "timeout": (lambda **o: parallel_map(duties.doze, [0.0], timeout=60.0, **o), "timeout"),
    "background": (lambda **o: map_async(duties.doze, [0.0], **o).result(), "background"),
    "in place": (
        lambda **o: parallel_map(duties.fill, nbshare.zeros((2, 2)), range(2), **o),
        "SharedArray",
    ),
}


class Bar:
    """A tqdm of the user's own, as far as it is used."""

    def __init__(self, total, desc=None):
        self.total, self.n, self.is_closed = total, 0, False
        Bar.last = self

    def update(self, n):
        """Count."""
        self.n += n

    def close(self):
        """Note that it is over."""
        self.is_closed = True


@contextlib.contextmanager
def meanwhile(action):
    """Do something in a thread, and raise its error in the end."""
    errors = []

    def act():
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
    assert not errors, errors


@contextlib.contextmanager
def ended_by(action):
    """Do something with the job that runs, once an item is done. It must end soon."""
    at = []

    def act():
        job = running()
        at.append(time.monotonic())
        action(job)

    with meanwhile(act):
        yield
    assert time.monotonic() - at[0] < SOON_S


def running():
    """Return the job that runs, once its first item is done."""
    return wait_until(
        lambda: next((job for job in nbshare.jobs() if job.n_done), None), what="no item is done"
    )


def last_reports(seen):
    """Add what workers report now to a list. Return it."""
    for job in nbshare.jobs():
        seen += [(w.items, w.fraction, w.report) for w in job._run.activity() if w.report]
    return seen


def check_case(run, case):
    """Check that the results of a call are those of a loop."""
    func, iterables, options, dtype = CASES[case]
    found = run(func, *iterables, **options)
    shared = options.get("shared", {})
    expected = [func(*args, **shared) for args in zip(*iterables, strict=False)]
    assert len(found) == len(expected)
    if dtype is None:
        assert type(found) is list
        assert [type(x) for x in found] == [type(x) for x in expected]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        assert found.dtype == np.dtype(dtype)
        assert isinstance(found, SharedArray) or not len(found)
        np.testing.assert_array_equal(found, expected if expected else np.empty(0))


class BackendContract:
    """The promises of calls on every backend."""

    lacks: frozenset[str] = frozenset()  # names in `CANNOT`

    @pytest.fixture
    def backend(self):
        """Give the value for ``backend=``."""
        raise NotImplementedError

    def skip_without(self, thing):
        """Skip a test of what the backend lacks."""
        if thing in self.lacks:
            pytest.skip("tested to be refused")

    @pytest.fixture
    def run(self, backend):
        """Give `parallel_map` on the backend, with two workers."""
        return functools.partial(parallel_map, backend=backend, max_workers=2, progress=False)

    @pytest.fixture
    def log(self, tmp_path):
        """Give the file in which items note that they have run."""
        return str(tmp_path / "log")

    # -------------------------------------------------------------------------- results

    @pytest.mark.parametrize("case", CASES)
    def test_results_are_those_of_a_loop(self, run, case):
        """In the order of the items, in one array of NumPy's dtype or in a list."""
        check_case(run, case)

    def test_results_are_in_order_though_the_first_take_longest(self, run):
        """In any order of completion."""
        seconds = [0.1, 0.0, 0.03, 0.0, 0.01]
        assert run(duties.doze, seconds, chunksize=1).tolist() == seconds

    @pytest.mark.parametrize("make", [np.zeros, nbshare.zeros], ids=["plain", "shared"])
    def test_a_given_array_is_filled(self, run, make):
        """And comes back."""
        out = make((5, 2, 3), "f4")
        assert run(duties.row, range(5), out=out) is out
        assert out[:, 1, 2].tolist() == [0, 1, 2, 3, 4]

    def test_tuples_are_stacked(self, run):
        """Each part in an array of its own."""
        numbers, rows = run(duties.pair, range(4), out="stack")
        assert numbers.tolist() == [0, 1, 2, 3]
        assert rows.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]

    def test_results_of_a_grid_have_its_shape_and_are_stored(self, run, tmp_path):
        """A grid that is extended runs what is new."""
        values, kept = np.arange(5.0), {}
        if "checkpoint" not in self.lacks:
            kept = {"checkpoint": str(tmp_path / "kept")}
        for n in (3, 5):
            items = nbshare.grid(x=values[:n], y=[10, 20])
            found = run(duties.add, items, shared={"z": 0.5}, **kept)
            np.testing.assert_array_equal(found, values[:n, None] + [10.5, 20.5])
            assert found.coords["y"].tolist() == [10, 20]

    def test_groups_and_rows_of_a_table_are_those_of_pandas(self, run):
        """With their keys, and its index."""
        pd = pytest.importorskip("pandas")
        table = pd.DataFrame({"k": [2, 1, 2, 2], "x": [0.5, 1.5, 2.5, 3.5]}, index=list("abcd"))
        grouped = table.groupby("k")
        pd.testing.assert_series_equal(
            run(duties.sum_of, grouped), grouped["x"].sum(), check_names=False
        )
        keys = run(duties.key_of, grouped)
        assert (keys.index.tolist(), keys.tolist()) == ([1, 2], [1, 2])
        doubled = run(duties.double_of, nbshare.rows(table))
        pd.testing.assert_series_equal(doubled, 2 * table["x"], check_names=False)

    def test_random_numbers_are_those_of_the_item(self, run):
        """With any number of workers and any chunks."""
        children = np.random.SeedSequence(5).spawn(40)
        expected = [np.random.Generator(np.random.PCG64(child)).random() for child in children]
        for options in ({}, {"max_workers": 1}, {"chunksize": 7}):
            assert run(duties.draw, range(40), seed=5, **options).tolist() == expected

    def test_shared_objects_are_read_only(self, run):
        """A write raises, and the caller's array stays as it was."""
        for table in (np.zeros(3), np.zeros(10_000), nbshare.zeros(3)):
            with pytest.raises(ValueError, match="read-only"):
                run(duties.assign, range(3), shared={"table": table})
            assert not table.any()

    def test_items_are_copies(self, run):
        """The caller does not see what a function does to its item."""
        items = [[], [1], [1, 2]]
        assert run(duties.swallow, items).tolist() == [1, 2, 3]
        assert items == [[], [1], [1, 2]]

    def test_an_initializer_runs_before_the_first_item(self, run):
        """In each worker."""
        found = run(duties.read_ready, range(4), initializer=duties.get_ready, initargs=[10])
        assert found.tolist() == [10, 11, 12, 13]

    def test_prints_appear_where_the_call_was_made(self, run, capsys):
        """Once each."""
        run(duties.say, range(3))
        said = capsys.readouterr().out
        assert [said.count(f"item {i} says so\n") for i in range(3)] == [1, 1, 1]

    def test_calls_may_be_nested(self, run):
        """The inner ones run within their worker."""
        assert run(duties.nest, [3, 4]).tolist() == [3, 6]

    # -------------------------------------------------------------------------- failures

    def test_an_error_is_itself_and_names_item_and_line(self, run):
        """Its traceback, or that of the worker, leads to the line that raised it."""
        with pytest.raises(ValueError, match="no way on at 3") as caught:
            run(duties.fail_at, range(6), shared={"bad": {3}})
        assert "item 3" in said(caught.value)
        shown = "".join(traceback.format_exception(caught.value))
        assert "duties.py" in shown
        assert 'raise ValueError(f"no way on at {i}")' in shown
        assert list(last_job().errors) == [3]

    def test_no_more_items_run_at_once_than_workers_are_allowed(self, run, tmp_path):
        """Also where the backend has more, for a licence or memory that is there once."""
        shared = {"folder": str(tmp_path)}
        found = run(duties.be_alone, range(6), shared=shared, max_workers=1, chunksize=1)
        assert found.tolist() == list(range(6))

    def test_what_was_done_before_a_failure_is_kept(self, run):
        """In the last job."""
        with pytest.raises(ValueError, match="at 30"):
            run(duties.fail_at, range(31), shared={"bad": {30}}, max_workers=1)
        assert last_job().state == "failed"
        assert last_job().partial().compressed().tolist() == list(range(30))
        assert last_job().present.tolist() == [True] * 30 + [False]

    def test_returned_errors_are_masked(self, run):
        """And are there by index."""
        found = run(duties.fail_at, range(20), shared={"bad": {3, 7}}, on_error="return")
        assert np.flatnonzero(found.mask).tolist() == [3, 7]
        assert found.compressed().tolist() == [i for i in range(20) if i not in (3, 7)]
        assert {i: str(error) for i, error in last_job().errors.items()} == {
            i: f"no way on at {i}" for i in (3, 7)
        }

    def test_returned_errors_are_in_their_places_of_a_list(self, run):
        """If results fit no array."""
        found = run(duties.say_or_fail_at, range(5), shared={"bad": {2}}, on_error="return")
        assert isinstance(found.pop(2), ValueError)
        assert found == [f"item {i}" for i in (0, 1, 3, 4)]

    @pytest.mark.parametrize("n", [7, 2_000], ids=["few", "tiny"])
    def test_a_failing_item_alone_is_tried_again(self, run, n, log):
        """With ``retries=2`` an item that fails twice runs three times, each other one once."""
        bad = {0, n // 2, n - 1}
        found = run(duties.fail_first, range(n), shared={"bad": bad, "log": log}, retries=2)
        assert found.tolist() == list(range(n))
        ran = duties.noted(log)
        assert len(ran) == n + 2 * len(bad)
        assert {i: ran.count(str(i)) for i in bad} == dict.fromkeys(bad, 3)

    def test_after_the_last_attempt_the_item_has_failed(self, run, log):
        """Its last error comes."""
        with pytest.raises(ValueError, match="at 2"):
            run(duties.fail_first, range(3), shared={"bad": {2}, "log": log, "n": 9}, retries=1)
        assert duties.noted(log).count("2") == 2

    def test_leaving_is_a_failure_of_the_item(self, run):
        """A SystemExit ends no more than that."""
        found = run(duties.leave_at, range(5), shared={"bad": {3}}, on_error="return")
        assert found.mask.tolist() == [i == 3 for i in range(5)]
        assert isinstance(last_job().errors[3], TaskError)
        assert last_job().errors[3].index == 3

    def test_a_result_that_cannot_be_sent_is_one_failure(self, run):
        """The error says so."""
        found = run(duties.lock_at, range(5), shared={"bad": {2}}, on_error="return")
        assert found.mask.tolist() == [i == 2 for i in range(5)]
        assert "cannot be sent" in said(last_job().errors[2])

    # ------------------------------------------------------------------------ generators

    @pytest.mark.parametrize("n", [0, 1, 300, 20_000])
    def test_items_may_come_from_a_generator(self, run, n):
        """Their number need not be known."""
        found = run(duties.identity, (i for i in range(n)))
        np.testing.assert_array_equal(found, np.arange(n))

    def test_rows_may_come_from_a_generator(self, run):
        """Results that are arrays."""
        found = run(duties.row, (i for i in range(100)))
        assert found[:, 1, 2].tolist() == list(range(100))

    def test_a_generator_is_not_exhausted_in_advance(self, run):
        """An endless one ends with a failure."""
        with pytest.raises(ValueError, match="at 50"):
            run(duties.fail_at, itertools.count(), shared={"bad": {50}})
        assert list(last_job().errors) == [50]

    def test_an_error_of_the_generator_comes_after_its_items(self, run):
        """With the index of the one that did not come."""

        def source():
            yield from range(30)
            raise LookupError("no more tape")

        with pytest.raises(LookupError, match="no more tape") as caught:
            run(duties.identity, source())
        assert "item 30" in said(caught.value)
        assert last_job().partial().compressed().tolist() == list(range(30))

    # ----------------------------------------------------------------- an end before the end

    def test_stop_gives_what_is_done(self, run):
        """A masked array, with a warning. The next call works."""
        with (
            ended_by(nbshare.Job.cancel),
            pytest.warns(PartialResultWarning, match="of 2000 items done"),
        ):
            found = run(duties.slow, range(2_000), chunksize=1)
        assert last_job().state == "stopped"
        assert 0 < len(found.compressed()) < 2_000
        assert (found.compressed() == np.flatnonzero(~found.mask)).all()
        assert run(duties.identity, range(5)).tolist() == [0, 1, 2, 3, 4]

    def test_stop_of_a_list_leaves_gaps(self, run):
        """Of results that fit no array."""
        with meanwhile(lambda: running().cancel()), pytest.warns(PartialResultWarning):
            found = run(duties.slow, range(2_000), chunksize=1, out="list")
        assert len(found) == 2_000
        assert all(value is MISSING or value == i for i, value in enumerate(found))
        assert 0 < sum(value is MISSING for value in found) < 2_000

    def test_stop_of_an_endless_generator(self, run):
        """Gives what is done."""
        with meanwhile(lambda: running().cancel()), pytest.warns(PartialResultWarning):
            found = run(duties.slow, itertools.count(), chunksize=1)
        assert (found.compressed() == np.flatnonzero(~found.mask)).all()

    def test_stop_in_the_middle_of_an_item_that_reports(self, run, tmp_path):
        """It counts as not done, and need not come to its end."""

        def stop(job):
            wait_until((tmp_path / "begun-3").exists, what="no item is under way")
            # Hosts start a worker for each item that they begin, and a later one may be first.
            wait_until(lambda: job.n_done == 3, what="the others are not done")
            job.cancel()

        shared = {"first": 3, "folder": str(tmp_path)}
        with ended_by(stop), pytest.warns(PartialResultWarning):
            found = run(duties.report_from, range(8), shared=shared, chunksize=1)
        assert found.mask.tolist() == [False] * 3 + [True] * 5
        assert found.compressed().tolist() == [0, 1, 2]
        assert last_job().state == "stopped"
        assert not last_job().errors

    def test_an_interrupt_keeps_what_is_done(self, run):
        """It raises MapInterrupted soon. The next call works."""
        with (
            ended_by(lambda _: processes.interrupt()),
            pytest.raises(MapInterrupted, match="of 2000 items done"),
            no_interrupt(),
        ):
            run(duties.slow, range(2_000), chunksize=1)
        assert last_job().state == "interrupted"
        partial = last_job().partial()
        assert 0 < len(partial.compressed()) < 2_000
        assert (partial.compressed() == np.flatnonzero(~partial.mask)).all()
        assert run(duties.identity, range(5)).tolist() == [0, 1, 2, 3, 4]

    # ----------------------------------------------------------------- what can be seen

    def test_the_progress_display_ends_at_the_number_of_items(self, run):
        """A tqdm class of the user's counts them."""
        run(duties.slow, range(20), progress=Bar)
        assert (Bar.last.total, Bar.last.n, Bar.last.is_closed) == (20, 20, True)

    def test_the_plot_fills_while_items_run(self, run, tmp_path):
        """It is drawn of what is done."""
        titles = []

        def draw():
            job = wait_until(
                lambda: next((j for j in nbshare.jobs() if j.n_done == 5), None), what="not five"
            )
            titles.append(LiveFigure(job, "line").paint(final=False)[0])
            (tmp_path / "go").touch()

        with meanwhile(draw):
            shared = {"first": 5, "folder": str(tmp_path)}
            run(duties.hold_from, range(8), shared=shared, chunksize=1)
        assert titles == ["hold from: 5 of 8"]

    def test_a_report_is_seen_while_its_item_runs(self, run, tmp_path):
        """With the item's index in the call."""
        seen = []

        def look():
            wait_until(lambda: last_reports(seen), what="no report is seen")
            (tmp_path / "go").touch()

        with meanwhile(look):
            shared = {"first": 4, "folder": str(tmp_path)}
            run(duties.report_from, range(5), shared=shared, chunksize=3)
        assert seen == [(range(4, 5), 0.5, "half")]

    def test_a_job_in_the_background_gives_results_as_they_come(self, backend):
        """And in the end all of them, with figures of its workers."""
        self.skip_without("background")
        job = map_async(duties.slow, range(20), backend=backend, max_workers=2)
        assert dict(job) == {i: float(i) for i in range(20)}
        assert job.result(20).tolist() == list(range(20))
        assert sum(worker.n_items for worker in job.stats) == 20
        assert sum(job._run.durations()) == 20
        assert job.debug(3) == 3.0

    def test_a_loop_over_results_that_fill_much_memory_has_all(self, backend):
        """Of a generator, whose results are released as the loop takes them."""
        self.skip_without("background")
        source = (i for i in range(3_000))
        job = map_async(duties.long_text, source, backend=backend, max_workers=3)
        assert {i: len(text) for i, text in job} == {i: 4_000 + i for i in range(3_000)}

    # -------------------------------------------------------------------- shapes of data

    @pytest.mark.parametrize("has_folder", [False, True])
    def test_tiles_are_put_together(self, run, tmp_path, has_folder):
        """As of the whole array, also of tiles at an edge, and stored ones."""
        if has_folder:
            self.skip_without("checkpoint")
        image = np.random.default_rng(2).random((70, 50))
        options = {"checkpoint": tmp_path / "run"} if has_folder else {}
        for _ in range(1 + has_folder):
            found = run(duties.steps, nbshare.tiles(image, (32, 20), overlap=1), **options)
            assert isinstance(found, SharedArray)
            np.testing.assert_array_equal(found, duties.steps(image))

    @pytest.mark.parametrize("has_folder", [False, True])
    @pytest.mark.parametrize("make", [list, iter], ids=["list", "generator"])
    def test_one_value_of_all_results(self, run, tmp_path, make, has_folder):
        """The same floats as here, with random numbers of each item."""
        if has_folder:
            self.skip_without("checkpoint")
        options = {"reduce": np.add, "seed": 5}
        wanted = parallel_map(duties.noise, range(300), backend="serial", **options)
        options |= {"checkpoint": tmp_path / "run"} if has_folder else {}
        for _ in range(1 + has_folder):
            assert run(duties.noise, make(range(300)), **options).tobytes() == wanted.tobytes()

    def test_items_that_failed_are_not_in_the_value(self, run):
        """They are in the errors."""
        found = run(duties.odd_only, range(100), reduce=operator.add, on_error="return")
        assert found == sum(range(1, 100, 2))
        assert sorted(last_job().errors) == list(range(0, 100, 2))

    @pytest.mark.parametrize("reduce", [None, operator.add])
    def test_enough_is_enough(self, run, reduce):
        """The rest does not run, and no warning says that results are missing."""
        until = (lambda partial: partial.count() >= 9) if reduce is None else (lambda _, n: n >= 9)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PartialResultWarning)
            found = run(duties.slow, range(2000), reduce=reduce, until=until)
        assert found >= sum(range(9)) if reduce else 9 <= found.count() < 2000

    # --------------------------------------------------------------------- checkpoint

    @pytest.mark.parametrize("make", [list, iter], ids=["list", "generator"])
    def test_what_is_stored_does_not_run_again(self, run, tmp_path, log, make):
        """A sweep that is extended runs only what is new."""
        self.skip_without("checkpoint")
        run = functools.partial(
            run, duties.noted_row, shared={"log": log}, checkpoint=tmp_path / "run"
        )
        first = run(make(range(6)))
        assert duties.noted(log) == list("012345")
        os.unlink(log)
        again = run(make(range(8)))
        assert duties.noted(log) == list("67")
        assert again[:6].tobytes() == first.tobytes()
        assert again[:, 0, 0].tolist() == list(range(8))

    # ------------------------------------------------------------------- what may lack

    @pytest.mark.parametrize("thing", CANNOT)
    def test_what_it_cannot_do_is_refused_in_words(self, backend, thing):
        """Before anything runs. Anything else works."""
        call, words = CANNOT[thing]
        options = {"backend": backend, "max_workers": 2}
        if thing not in self.lacks:
            call(**options)
            return
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=words):
            call(**options)

    def test_rows_of_a_shared_array_are_written_in_place(self, run):
        """They are the caller's memory."""
        self.skip_without("in place")
        table = nbshare.zeros((4, 2))
        run(duties.fill, table, range(4))
        np.testing.assert_array_equal(table, np.arange(4.0)[:, None] * [1, 1])
