"""The preparation of workers before their first item: the seed, and the initializer."""

from __future__ import annotations

import functools
import os
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import last_job, parallel_map
from nbshare.errors import (
    TaskError,
    TaskTimeoutError,
    WorkerDiedError,
)
from tests.support import policies
from tests.support.faultlab import SIGKILL, wait_until
from tests.support.outcomes import SOON_S, backends, runs, said
from tests.support.sweeps import noted

# ------------------------------------------------------------------------------- seed


def numbers(seed, n):
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return [np.random.default_rng(child).random() for child in sequence.spawn(n)]


@backends
@pytest.mark.parametrize(("n", "seconds"), [(3_000, 0.0), (30, 0.003)], ids=["tiny", "long"])
def test_a_seed_gives_the_same_numbers_however_long_items_are(backend, n, seconds):
    """Also items that are run together, or in another backend, have their own numbers."""
    shared = {"seconds": seconds}
    result = parallel_map(policies.draw, range(n), shared=shared, seed=7, backend=backend)
    assert result.tolist() == numbers(7, n)


@backends
def test_an_item_that_is_tried_again_has_its_numbers_again(backend, tally):
    """A failed attempt uses up nothing."""
    result = parallel_map(
        policies.draw_again, range(10), shared={"tally": tally}, seed=3, retries=1, backend=backend
    )
    assert result.tolist() == numbers(3, 10)
    assert runs(tally, 10) == [2] * 10


def test_a_seed_in_a_worker_gives_the_same_numbers():
    """A run within a worker has the numbers of any other."""
    result = parallel_map(policies.draw_nested, [5, 6], shared={"n": 4})
    assert result.tolist() == [numbers(5, 4), numbers(6, 4)]


def test_a_sequence_is_not_advanced():
    """A SeedSequence that is given is left as it was, and gives the same numbers each time."""
    sequence = np.random.SeedSequence(11)
    first = parallel_map(policies.draw, range(5), seed=sequence).tolist()
    assert sequence.n_children_spawned == 0
    assert first == numbers(np.random.SeedSequence(11), 5)
    sequence.spawn(3)
    assert parallel_map(policies.draw, range(5), seed=sequence).tolist() == first
    assert sequence.n_children_spawned == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.SeedSequence(11).spawn(3)[2],
        lambda: np.random.SeedSequence(11).spawn(2)[1].spawn(2)[0],
        lambda: np.random.SeedSequence(11, pool_size=8),
        lambda: np.random.SeedSequence([1, 2, 3]),
        lambda: np.random.SeedSequence(2**200),
    ],
    ids=["child", "grandchild", "pool", "words", "long"],
)
def test_every_sequence_gives_its_childrens_numbers(make):
    """A child's key, a larger pool and long entropy go into the numbers."""
    assert parallel_map(policies.draw, range(5), seed=make()).tolist() == numbers(make(), 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.SeedSequence([1, [2, 3]]),
        lambda: np.random.SeedSequence(5, spawn_key=([1, 2],)),
        lambda: np.array([7, 8]),
        lambda: 1 << 200,
    ],
    ids=["nested", "spawned", "array", "large"],
)
def test_any_seed_of_numpy_gives_its_numbers(make):
    """However deep its sequences are."""
    try:
        seed = make()
    except TypeError:
        pytest.skip("NumPy 2.5 and later takes no nested sequences")
    assert parallel_map(policies.draw, range(5), seed=seed).tolist() == numbers(seed, 5)


def test_a_function_that_has_every_attribute_fails_like_others():
    """Messages call its items by their repr."""
    with pytest.raises(ValueError, match="the third") as found:
        parallel_map(policies.Open(), range(6))
    assert found.value.__notes__[0].startswith("raised for item 3 in worker")


def test_what_an_item_makes_of_the_import_path_is_undone(capfd):
    """Also if it is not a list any more. Nothing is printed of it."""
    for _ in range(2):
        assert parallel_map(policies.spoil_path, range(4), max_workers=1).tolist() == [0, 1, 2, 3]
    assert "Traceback" not in capfd.readouterr().err


def test_the_error_of_a_seeded_item_shows_the_item():
    """The arguments of a failing item next to its generator are shown as they were given."""
    with pytest.raises(LookupError) as caught:
        parallel_map(policies.draw_and_fail, ["stone"], [(1, 2)], seed=1)
    assert "item 0 ('stone', (1, 2))" in said(caught.value)


SEEDED = {
    "no rng": (policies.identity, {"seed": 1}),
    "rng in shared": (policies.draw, {"seed": 1, "shared": {"rng": 3}}),
    "rng in a partial": (functools.partial(policies.draw, rng=3), {"seed": 1}),
}


@pytest.mark.parametrize(("task", "options"), SEEDED.values(), ids=SEEDED)
def test_a_function_that_cannot_take_a_generator_is_refused(task, options, cold):
    """Without a parameter ``rng``, or with it given twice, nothing is started."""
    with pytest.raises(TypeError, match="rng"):
        parallel_map(task, [1, 2], **options)
    assert set(psutil.Process().children()) <= cold


@pytest.mark.filterwarnings("ignore::nbshare.errors.UnseededWarning")
def test_without_a_seed_no_numbers_are_drawn_twice(tally, cold):
    """Workers, replaced ones too, and calls draw different numbers from the global states."""
    drawn = []
    for call in range(3):
        shared = {"bad": {20, 40} if call == 1 else (), "tally": tally}
        drawn += parallel_map(
            policies.draw_globally, range(64), shared=shared, chunksize=4, max_workers=2, retries=1
        )
    for numbers_drawn in zip(*drawn, strict=True):
        assert len(set(numbers_drawn)) == 3 * 64


# ------------------------------------------------------------------------ initializer


def marks(folder):
    """Return the process numbers of all runs of an initializer."""
    return sorted(int(p.name.split("-")[0]) for p in Path(folder).iterdir() if p.name[0].isdigit())


def read_in_two(folder, **options):
    """Read what was prepared in two workers that are there at once."""
    for path in Path(folder).glob("met-*"):
        path.unlink()
    shared = {"folder": str(folder), "n": 2}
    return dict(
        parallel_map(
            policies.read_together, range(2), shared=shared, chunksize=1, max_workers=2, **options
        )
    )


def test_an_initializer_runs_once_in_each_worker(tmp_path, cold):
    """It has run before the first item, and is not run again while the same one is given."""
    options = {"initializer": policies.prepare, "initargs": (str(tmp_path), 7)}
    first = read_in_two(tmp_path, **options)
    assert set(first.values()) == {7}
    assert read_in_two(tmp_path) == first  # a call without one keeps the workers
    assert read_in_two(tmp_path, **options) == first
    assert marks(tmp_path) == sorted(first)


def test_a_worker_whose_initializer_takes_longer_is_waited_for_by_none(tmp_path, cold):
    """Maps go on without it, do not end it, and have it when it has come, also in their middle."""
    options = {"initializer": policies.prepare_slowly, "initargs": (str(tmp_path), 0)}
    functions = policies.identity, abs
    for i in range(100):
        assert len(parallel_map(functions[i % 2], [1, 2], max_workers=2, **options)) == 2
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    found = read_in_two(tmp_path, **options)
    assert marks(tmp_path) == sorted(found)


def test_a_worker_that_dies_while_it_is_late_is_replaced(tmp_path, cold):
    """In the run that has gone on without it."""
    options = {"initializer": policies.prepare_slowly, "initargs": (str(tmp_path), 0)}
    for i in range(10):
        pids = parallel_map((abs, policies.pid)[i % 2], [1, 2], max_workers=2, **options)
    wait_until(lambda: len(marks(tmp_path)) == 2)
    (late,) = set(marks(tmp_path)) - set(pids.tolist())

    def end_it():
        os.kill(late, SIGKILL)
        (tmp_path / "go").touch()

    threading.Timer(0.2, end_it).start()
    assert late not in read_in_two(tmp_path, **options)


def test_another_initializer_has_fresh_workers(tmp_path, cold):
    """The settings of one initializer do not exist for another, nor for other arguments."""
    seen = [
        read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), value))
        for value in (1, 2, 1)
    ]
    assert [set(found.values()) for found in seen] == [{1}, {2}, {1}]
    assert not any(set(a) & set(b) for a, b in pairwise(seen))
    assert marks(tmp_path) == sorted(pid for found in seen for pid in found)


def test_fresh_workers_are_not_renewed_for_their_first_initializer(tmp_path, cold, monkeypatch):
    """Those that have come with a new environment have run none, so any may be given them."""
    read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), 1))
    monkeypatch.setenv("CHANGED", "yes")
    workers = set(read_in_two(tmp_path))
    found = read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), 2))
    assert set(found.values()) == {2}
    assert set(found) == workers


def test_two_threads_have_their_own_initializers(tmp_path):
    """Calls at the same time with different initializers see their own values each."""
    seen = {}

    def call(value):
        options = {"initializer": policies.prepare, "initargs": (str(tmp_path), value)}
        seen[value] = [parallel_map(policies.read, range(20), **options) for _ in range(5)]

    threads = [threading.Thread(target=call, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in (1, 2):
        assert [result.tolist() for result in seen[value]] == [[value] * 20] * 5


def test_what_an_initializer_changes_in_its_process_stays(tmp_path, cold, monkeypatch):
    """Items find its settings in every call that it counts for, whatever other items have done."""
    monkeypatch.setenv("UNSETTLED", "yes")
    look = partial(parallel_map, policies.look_and_litter, out="list")
    (before,) = look([0], max_workers=1)
    options = {"initializer": policies.settle, "initargs": (str(tmp_path),)}
    calls = [look([0], max_workers=n, **options) for n in (1, 1, 2)]
    (found,) = calls[0]
    assert found["environ"] == ["yes", None, "3", before["environ"][-1]]
    assert found["cwd"] == str(tmp_path)
    assert found["path"] == [*before["path"], str(tmp_path)]
    assert all(found[name] != before[name] for name in found), found
    assert calls == [[found]] * 3
    monkeypatch.chdir(tmp_path.parent)
    assert look([0], max_workers=1, **options) == [found]
    assert look([0], max_workers=1, initializer=abs, initargs=(1,)) == [
        {**before, "cwd": str(tmp_path.parent)}
    ]


def test_items_that_end_as_their_time_does_are_done_or_late():
    """None is lost with its worker, and none is blamed that the worker has just gone on to."""
    n_late, until_s = 0, time.monotonic() + 3
    begun = nbshare.zeros(20)
    for off_ms in np.random.default_rng(1).uniform(-0.2, 2, 1000):
        shared = {"long": 0.05 + off_ms / 1e3, "short": 0.002}
        result = parallel_map(
            functools.partial(policies.sleep_in_turn, begun),
            range(20),
            shared=shared,
            timeout=0.05,
            on_error="return",
            chunksize=10,
            max_workers=2,
        )
        failed = {i for i, text in enumerate(result) if isinstance(text, BaseException)}
        assert all(isinstance(result[i], TaskTimeoutError) for i in failed), result
        # The next one of its ten is another worker's, and begins after the late one's end. Not all
        # that should be quick are, as the machine may be busy.
        lasted_s = {i: begun[i + 1] - begun[i] for i in failed if i % 10 < 9}
        assert min(lasted_s.values(), default=1) > 0.04, lasted_s
        assert all(result[i] == f"item {i}" for i in set(range(20)) - failed), result
        job = last_job()
        assert set(job.errors if job is not None else ()) == failed
        n_late += len(failed)
        if time.monotonic() > until_s:
            break
    assert n_late


def test_a_time_out_is_not_for_the_initializer(cold):
    """The limit is for an item. Work before the first one has its time."""
    result = parallel_map(
        policies.identity, range(4), timeout=1, initializer=time.sleep, initargs=(1.5,)
    )
    assert result.tolist() == [0, 1, 2, 3]


def test_a_closure_is_an_initializer(tmp_path, cold):
    """A function that is sent by value works, and is kept like any other."""
    folder, value = str(tmp_path), {"a": np.arange(3).tolist()}

    def set_up(more):
        policies.prepare(folder, [value, more])

    first = read_in_two_lists(tmp_path, set_up)
    assert list(first.values()) == [[value, "b"]] * 2
    assert read_in_two_lists(tmp_path, set_up) == first
    assert marks(tmp_path) == sorted(first)


def read_in_two_lists(folder, initializer):
    return read_in_two(folder, initializer=initializer, initargs=["b"])


@backends
def test_an_initializer_runs_before_the_items_of_every_backend(backend, tmp_path):
    """Its settings exist for all items."""
    for value in (3, 4):
        result = parallel_map(
            policies.read,
            range(5),
            initializer=policies.prepare,
            initargs=(str(tmp_path), value),
            backend=backend,
        )
        assert result.tolist() == [value] * 5


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_a_failing_initializer_is_one_error(backend, on_error):
    """Its exception ends the call, says where it comes from, and leaves the next call right."""
    start = time.monotonic()
    with pytest.raises(LookupError, match="no licence") as caught:
        parallel_map(
            policies.identity,
            range(50),
            initializer=policies.refuse_to_start,
            initargs=("no licence",),
            on_error=on_error,
            backend=backend,
        )
    assert time.monotonic() - start < SOON_S
    assert "initializer" in said(caught.value)
    assert parallel_map(policies.identity, range(5), backend=backend).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("initializer", "kind", "text"),
    [
        (policies.leave_at_start, TaskError, "SystemExit"),
        (policies.end_at_start, WorkerDiedError, "died"),
    ],
)
def test_an_initializer_that_leaves_is_one_error(initializer, kind, text, tmp_path):
    """One that exits, or ends its process, is an error after few workers, not an endless refill."""
    log = str(tmp_path / "log")
    options = {"initializer": initializer, "initargs": (log,), "on_error": "return"}
    with pytest.raises(kind, match=text):
        parallel_map(policies.identity, range(50), max_workers=2, **options)
    assert 0 < len(noted(log)) < 10


def test_an_initializer_keeps_a_large_array(cold):
    """An array among its arguments stays as it was, whatever later calls put into memory."""
    array = np.arange(100_000.0)
    expected = array.sum()
    for k in range(8):
        result = parallel_map(
            policies.sum_kept,
            np.full((4, 100_000), float(k)),
            initializer=policies.keep_array if k % 2 == 0 else None,
            initargs=(array,) if k % 2 == 0 else (),
            max_workers=2,
        )
        assert result.tolist() == [expected] * 4


def test_a_replaced_worker_is_initialized(tally, tmp_path, cold):
    """A worker that takes the place of a dead one has run the initializer too."""
    result = parallel_map(
        policies.read_and_die_once,
        range(6),
        shared={"tally": tally},
        initializer=policies.prepare,
        initargs=(str(tmp_path), 5),
        retries=1,
        chunksize=1,
        max_workers=1,
    )
    assert result.tolist() == [5] * 6
    assert len(set(marks(tmp_path))) == len(marks(tmp_path)) == 2
