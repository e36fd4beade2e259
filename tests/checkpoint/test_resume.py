"""The same call goes on where it stopped. Nothing that is stored runs again, or is lost."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import subprocess
import sys
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest

import nbshare
from nbshare import Checkpoint, MapInterrupted, map_async, open_checkpoint, parallel_map
from nbshare.errors import (
    CheckpointError,
    CheckpointWarning,
    MixedResultsWarning,
    PartialResultWarning,
)
from tests.support import small_sweeps, sweeps
from tests.support.faultlab import memfd_bytes, wait_until
from tests.support.grids import combined

BACKENDS = [None, "serial", "threads"]


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "log")


@pytest.fixture
def sweep(tmp_path, log):
    """Give a function that runs a sweep, and says what has run."""

    def run(func, items, if_changed=None, version=None, **options):
        stored = Checkpoint(tmp_path / "run", if_changed=if_changed, version=version)
        options = {"checkpoint": stored, "progress": False} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MixedResultsWarning)
            results = parallel_map(func, items, shared={"log": log}, **options)
        return results, sweeps.noted(log)

    return run


def plain(results):
    """Return results such that they can be compared."""
    if isinstance(results, np.ndarray):
        return results.dtype, results.tolist()
    return [
        {k: np.asarray(v).tolist() for k, v in x.items()} if isinstance(x, dict) else x
        for x in results
    ]


ITEMS = {
    "list": list,
    "range": lambda r: r,
    "array": np.array,
    "generator": iter,
}


@pytest.mark.parametrize(
    ("kind", "func", "backend"),
    [
        *combined(ITEMS, sweeps.RESULTS, [None]),
        *combined(["list"], sweeps.RESULTS, BACKENDS[1:]),
    ],
)
def test_what_is_stored_does_not_run_again(sweep, func, kind, backend):
    """A sweep, the same again, extended, thinned and turned round. Only new items run."""
    made = ITEMS[kind]
    expected, ran = sweep(func, made(range(12)), backend=backend, checkpoint=None)
    assert len(ran) == 12
    first, ran = sweep(func, made(range(12)), backend=backend)
    assert len(ran) == 12
    again, ran = sweep(func, made(range(12)), backend=backend)
    assert ran == []
    assert plain(first) == plain(again) == plain(expected)
    # Rows in the order of the items are those of the file, in no shared memory.
    is_in_file = func is sweeps.row and kind != "generator"
    assert type(again) is (np.ndarray if is_in_file else type(expected))
    longer, ran = sweep(func, made(range(16)), backend=backend)
    assert sorted(map(int, ran)) == [12, 13, 14, 15]
    assert plain(longer) == plain(sweep(func, made(range(16)), checkpoint=None)[0])
    other, ran = sweep(func, made(range(14, -1, -2)), backend=backend)
    assert ran == []
    assert plain(other) == plain(sweep(func, made(range(14, -1, -2)), checkpoint=None)[0])


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_after_a_failure_the_rest_runs(sweep, tmp_path, backend):
    """Results from before the failure are kept. When its cause is gone the same call ends well."""
    (tmp_path / "broken").touch()
    with pytest.raises(ValueError, match="no 3"):
        sweep(sweeps.fragile, range(20), backend=backend, max_workers=1, chunksize=1)
    (tmp_path / "broken").unlink()
    results, ran = sweep(sweeps.fragile, range(20), backend=backend)
    assert results.tolist() == list(range(20))
    assert sorted(map(int, ran)) == list(range(20))  # the first three are of the call that failed


def test_failures_that_may_be_are_kept_and_run_again(sweep, tmp_path):
    """With on_error="return" the masked items alone run in the next call."""
    (tmp_path / "broken").touch()
    results, _ = sweep(sweeps.fragile, range(20), on_error="return")
    assert results.mask.nonzero()[0].tolist() == [3, 8, 13, 18]
    text = (tmp_path / "run" / "errors.jsonl").read_text()
    assert [f"no {x}" in text for x in (3, 8, 13, 18, 4)] == [True] * 4 + [False]
    (tmp_path / "broken").unlink()
    results, ran = sweep(sweeps.fragile, range(20), on_error="return")
    assert not results.mask.any()
    assert sorted(map(int, ran)) == [3, 8, 13, 18]


def test_retries_are_counted(sweep, tmp_path):
    """The index says how many attempts a result took, also if a worker died in one."""
    results, _ = sweep(sweeps.deadly, range(8), retries=1)
    assert results.tolist() == list(range(8))
    index = np.load(tmp_path / "run" / "index.npy")
    assert index["attempts"].tolist() == [1, 1, 1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_random_numbers_are_those_of_the_item(sweep, backend):
    """With a seed a sweep that was stopped half-way is bit-identical with one that was not."""
    expected, _ = sweep(sweeps.drawn, range(10), seed=7, checkpoint=None)
    sweep(sweeps.drawn, range(4), seed=7, backend=backend)
    results, ran = sweep(sweeps.drawn, range(10), seed=7, backend=backend)
    assert sorted(map(int, ran)) == [4, 5, 6, 7, 8, 9]
    assert results.tobytes() == expected.tobytes()


def test_with_a_seed_an_item_elsewhere_is_another_one(sweep):
    """Its random numbers are those of its place."""
    sweep(sweeps.drawn, [5, 5, 6], seed=7)
    expected, _ = sweep(sweeps.drawn, [6, 5, 5], seed=7, checkpoint=None)
    results, ran = sweep(sweeps.drawn, [6, 5, 5], seed=7)
    assert sorted(ran) == ["5", "6"]
    assert results.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "generator"])
def test_equal_items_run_as_often_as_they_come(sweep, kind):
    """The second of two equal items has a result of its own."""
    results, ran = sweep(sweeps.number, kind([1, 1, 2]))
    assert ran == ["1", "1", "2"]
    results, ran = sweep(sweeps.number, kind([2, 1, 1, 1]))
    assert ran == ["1"]
    assert results.tolist() == [3.0, 1.5, 1.5, 1.5]
    sweep(sweeps.number, kind([5] * 3000))  # more than are packed together
    assert sweep(sweeps.number, kind([5] * 3010))[1] == ["5"] * 10


def ran_of(path, *iterables):
    """Return the items that run in a sweep, in this process."""
    small_sweeps.CALLS.clear()
    parallel_map(noted_here, *iterables, checkpoint=path, backend="serial", progress=False)
    return list(small_sweeps.CALLS)


def noted_here(*args):
    small_sweeps.CALLS.append(args if len(args) > 1 else args[0])
    return 1.0


@pytest.mark.parametrize(
    "items",
    [
        [1.0, 2.0, 3.0, 4.0],
        range(3, 11, 2),
        np.arange(12.0).reshape(4, 3),
        ["a", "b", "c", "d"],
        [(1, np.zeros(2)), (2, np.ones(2)), (3, None), {"k": 1}],
    ],
    ids=["floats", "range", "rows", "texts", "objects"],
)
def test_items_of_any_kind_are_known_again_wherever_they_are(items, tmp_path):
    """Turned round and thinned."""
    assert len(ran_of(tmp_path / "run", items)) == 4
    assert ran_of(tmp_path / "run", items[::-1]) == []
    assert ran_of(tmp_path / "run", items[1:3]) == []


def test_a_number_is_the_same_item_whatever_the_others_are(tmp_path):
    """Another kind of number may be added, or a number that no machine integer holds."""
    assert ran_of(tmp_path / "ints", [1, 2, 3]) == [1, 2, 3]
    assert ran_of(tmp_path / "ints", [1, 2, 3, 2.5, 2**70, None]) == [2.5, 2**70, None]
    assert ran_of(tmp_path / "ints", [0.5, 1, 2, 3]) == [0.5]
    assert ran_of(tmp_path / "scalars", np.arange(3.0)) == [0.0, 1.0, 2.0]
    assert ran_of(tmp_path / "scalars", [*np.arange(3.0), 1]) == [1]
    assert len(ran_of(tmp_path / "scalars", [*np.arange(3.0).reshape(3, 1), np.array(1.0)])) == 4
    alike = [1, 1.0, True, np.int64(1), np.float64(1), np.bool_(True), 2**70]
    assert ran_of(tmp_path / "alike", alike) == alike
    days = np.array(["2020-01-01", "2021-01-01"], "M8[D]")
    ran_of(tmp_path / "days", days)
    assert ran_of(tmp_path / "days", [*days, days[0].astype("M8[s]")]) == [days[0]]


def test_each_of_several_iterables_counts(tmp_path):
    """The same values in the other iterable are another item."""
    assert ran_of(tmp_path / "run", [1, 1], [2, 3]) == [(1, 2), (1, 3)]
    assert ran_of(tmp_path / "run", [2, 3], [1, 1]) == [(2, 1), (3, 1)]
    assert ran_of(tmp_path / "run", range(1, 3), [2, 1]) == []


def test_items_may_be_arrays_and_several(tmp_path, log):
    """Rows of an array, with a list next to them."""
    table = np.arange(12.0).reshape(4, 3)

    def run(rows, others):
        return parallel_map(
            sweeps_total, rows, others, shared={"log": log}, checkpoint=tmp_path / "run"
        )

    assert run(table, [1, 2, 3, 4]).tolist() == [4.0, 14.0, 24.0, 34.0]
    assert len(sweeps.noted(log)) == 4
    assert run(table[::-1], [4, 3, 2, 5]).tolist() == [34.0, 24.0, 14.0, 8.0]
    assert sweeps.noted(log) == ["5"]


def sweeps_total(values, other, log):
    sweeps.note(log, other)
    return values.sum() + other


# ----------------------------------------------------------------------------- outputs


def test_an_output_of_the_caller_is_filled(sweep):
    """Plain or in shared memory, with what is stored and what is new."""
    sweep(sweeps.row, range(5))
    for out in (np.zeros((8, 2, 3), np.float32), nbshare.zeros((8, 2, 3), np.float32)):
        results, ran = sweep(sweeps.row, range(8), out=out)
        assert results is out
        assert out[:, 1, 2].tolist() == list(range(8))
    assert ran == []


def test_an_output_that_does_not_take_what_is_stored_is_refused(sweep):
    """Of another dtype or shape, or a list, before anything runs."""
    sweep(sweeps.row, range(5))
    for out in (np.zeros((5, 2, 3)), np.zeros((5, 3), np.float32), "list"):
        with pytest.raises(CheckpointError, match=r"float32 of shape \(2, 3\)"):
            sweep(sweeps.row, range(5), out=out)


def test_an_array_of_the_caller_is_not_filled_with_objects(tmp_path):
    """Nor with numbers, where the stored results are objects."""
    path = tmp_path / "run"
    parallel_map(str, range(3), checkpoint=path, backend="serial")
    with pytest.raises(CheckpointError, match="other objects, which do not fit out="):
        parallel_map(str, range(3), checkpoint=path, backend="serial", out=np.zeros(3))


def test_a_stored_object_does_not_stay_out_of_an_array(tmp_path):
    """With out= its item runs again, and fits or fails as without a checkpoint."""

    def call(**options):
        return parallel_map(sometimes_text, range(5), checkpoint=tmp_path / "run", **options)

    with pytest.warns(MixedResultsWarning):
        assert call() == [0.0, 1.0, 2.0, "text", 4.0]
    out = np.full(5, -1.0)
    with pytest.raises(TypeError, match="<U4, which out= of dtype float64 cannot hold"):
        call(out=out)
    assert out.tolist() == [0.0, 1.0, 2.0, -1.0, 4.0]


def sometimes_text(x):
    return "text" if x == 3 else float(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_a_file_cannot_name_keep_their_dtype(tmp_path, backend):
    """Of a package, as bfloat16, in the order of before and in another one, and not in out=."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    for items in ([1, 2, 3], [1, 2, 3, 4], [4, 1]):
        results = parallel_map(brain_floats, items, checkpoint=tmp_path / "run", backend=backend)
        assert (results.dtype, results.tolist()) == (dtype, [[x, 0.5] for x in items])
    with pytest.raises(CheckpointError, match="out= has dtype bfloat16"):
        parallel_map(brain_floats, [1], out=np.zeros((1, 2), dtype), checkpoint=tmp_path / "other")


def brain_floats(x):
    import ml_dtypes

    return np.array([x, 0.5], ml_dtypes.bfloat16)


def test_lists_stay_lists(sweep):
    """With out="list" also what would be an array."""
    assert sweep(sweeps.number, range(3), out="list")[0] == [0.0, 1.5, 3.0]
    assert sweep(sweeps.number, range(3), out="list") == ([0.0, 1.5, 3.0], [])


def test_a_result_may_be_changed_and_what_is_stored_stays(sweep):
    """The result of a call is memory of its own."""
    results, _ = sweep(sweeps.row, range(5))
    results[:] = -1
    again, _ = sweep(sweeps.row, range(5))
    assert again[4, 0, 0] == 4
    again[:] = -1
    assert sweep(sweeps.row, range(5))[0][4, 0, 0] == 4


def test_no_items(sweep):
    """Are stored like others."""
    assert sweep(sweeps.number, [])[0].shape == (0,)
    assert sweep(sweeps.number, range(2))[0].tolist() == [0.0, 1.5]


# --------------------------------------------------------------------------- a changed key


def variant(tmp_path, monkeypatch, text):
    """Return the function of a module file with this text."""
    file = tmp_path / "variants.py"
    file.write_text(text)
    return nbshare.import_file(file).f


VARIANT = (
    "from tests.support.sweeps import note\ndef helper(x):\n    return x + {k}\ndef f(x, log):\n"
)
VARIANT += "    note(log, x)\n    return helper(1.0 * x)\n"


def test_a_change_is_refused_with_what_differs(sweep, tmp_path, monkeypatch):
    """Nothing is lost. Results of the old function are there, restart and accept do as they say."""
    old = variant(tmp_path, monkeypatch, VARIANT.format(k=1))
    sweep(old, range(6))
    new = variant(tmp_path, monkeypatch, VARIANT.format(k=2))
    with pytest.raises(
        CheckpointError,
        match=r"variants\.helper changed \(variants\.py, lines 2-3\)\. 6 of 6 results",
    ):
        sweep(new, range(8))
    results, ran = sweep(new, range(8), if_changed="accept")
    assert results.tolist() == [1, 2, 3, 4, 5, 6, 8, 9]
    assert sorted(ran) == ["6", "7"]
    assert sweep(new, range(8))[1] == []  # it is remembered
    old = variant(tmp_path, monkeypatch, VARIANT.format(k=1) + "# as before\n")
    with pytest.raises(CheckpointError, match="2 of 8 results belong to the older version"):
        sweep(old, range(8))
    results, ran = sweep(old, range(8), if_changed="restart")
    assert results.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(ran) == ["6", "7"]


def test_a_restart_may_give_other_kinds_of_results(sweep, tmp_path, monkeypatch):
    """Rows in the place of numbers, and objects in the place of rows."""
    for text in ("1.0 * x", "[x, 1.0]", "__import__('numpy').zeros(3) + x"):
        func = variant(tmp_path, monkeypatch, f"def f(x, log):\n    return {text}\n")
        expected, _ = sweep(func, range(4), checkpoint=None)
        results, _ = sweep(func, range(4), if_changed="restart")
        assert plain(results) == plain(expected)
        assert plain(sweep(func, range(4))[0]) == plain(expected)


def test_another_shared_value_is_refused_by_its_name(tmp_path):
    """Not mixed in."""

    def run(k):
        return parallel_map(power, range(3), shared={"k": k}, checkpoint=tmp_path / "run")

    run(2)
    with pytest.raises(CheckpointError, match=r"shared\['k'\] changed"):
        run(3)


def power(x, k):
    return x**k


@pytest.mark.parametrize("option", ["if_changed", "durability", "on_full", "version"])
def test_options_of_a_checkpoint_are_checked(option, tmp_path):
    """A wrong value, and one that is passed without the path."""
    with pytest.raises((ValueError, TypeError), match=f"{option}=7"):
        Checkpoint(tmp_path / "c", **{option: 7})
    with pytest.raises(TypeError, match=rf"no argument {option}=: .*Checkpoint\(path"):
        parallel_map(power, [1], shared={"k": 1}, checkpoint=tmp_path / "c", **{option: "accept"})
    assert not (tmp_path / "c").exists()


def test_a_checkpoint_keeps_its_folder(tmp_path, monkeypatch):
    """A relative path is one of the directory in which the checkpoint was described."""
    monkeypatch.chdir(tmp_path)
    stored = Checkpoint("run", version="1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    parallel_map(power, [1, 2], shared={"k": 1}, checkpoint=stored)
    assert nbshare.open_checkpoint(tmp_path / "run").results().tolist() == [1, 2]


@pytest.mark.parametrize("what", ["a file", "mine.txt", "results.npy", "README.txt", "meta.json"])
def test_what_is_no_checkpoint_is_left_alone(what, tmp_path):
    """A path that has something else is refused."""
    path = tmp_path / "run"
    if what != "a file":
        path.mkdir()
    (file := path if what == "a file" else path / what).write_text('{"format": 99, "nbshare": "9"}')
    before = sorted(tmp_path.rglob("*")), file.read_bytes()
    with pytest.raises(
        CheckpointError,
        match="format 99" if what == "meta.json" else "not .*a checkpoint",
    ):
        parallel_map(power, [1], shared={"k": 1}, checkpoint=path)
    assert (sorted(tmp_path.rglob("*")), file.read_bytes()) == before


# ------------------------------------------------------------------------- while it runs


def test_files_can_be_read_while_a_run_writes_them(tmp_path, log):
    """With NumPy alone. The results that the index calls done are there."""
    path = tmp_path / "run"
    job = map_async(sweeps.slow, range(300), shared={"log": log}, checkpoint=path, max_workers=2)
    try:
        wait_until(lambda: (path / "results.npy").exists())
        wait_until(lambda: (np.load(path / "index.npy")["state"] == 1).sum() > 20)
        done = np.load(path / "index.npy", mmap_mode="r")["state"] == 1
        assert not done.all()
        results = np.load(path / "results.npy", mmap_mode="r")
        assert (results[done] == 2.0 * np.arange(300)[done]).all()
    finally:
        job.cancel()
        job.wait()
    n_stopped = int((np.load(path / "index.npy")["state"] == 1).sum())
    assert n_stopped == job.n_done  # what is there when a job ends is stored
    sweeps.noted(log)
    job = map_async(sweeps.slow, range(300), shared={"log": log}, checkpoint=path)
    assert job.n_done >= n_stopped  # the display and the plot begin with them
    assert job.result().tolist() == [2.0 * x for x in range(300)]
    assert len(sweeps.noted(log)) == 300 - n_stopped


@pytest.mark.parametrize("func", [sweeps.number, sweeps.record], ids=lambda f: f.__name__)
def test_what_a_loop_was_given_is_stored(tmp_path, log, func):
    """Results of a generator that are not kept in memory, and of one that never ends."""
    import itertools

    path = tmp_path / "run"
    job = map_async(func, itertools.count(), shared={"log": log}, checkpoint=path)
    given = []
    for i, _ in job:
        given.append(i)
        if len(given) == 40:
            assert (np.load(path / "index.npy")["state"][given] > 0).all()
            break
    job.cancel()
    job.wait()
    sweeps.noted(log)
    results = parallel_map(func, range(40), shared={"log": log}, checkpoint=path)
    assert len(results) == 40
    assert not set(map(int, sweeps.noted(log))) & set(given)


def test_a_long_generator_goes_on_quickly(sweep):
    """Its items that are stored pass without a worker."""
    sweep(sweeps.integer, iter(range(20_000)))
    began = time.monotonic()
    results, ran = sweep(sweeps.integer, iter(range(20_010)))
    assert sorted(map(int, ran)) == list(range(20_000, 20_010))
    assert results.tolist() == [3 * x for x in range(20_010)]
    assert time.monotonic() - began < 10


def test_two_runs_at_once_are_refused(tmp_path, log):
    """In this process and in another. When the first is over its checkpoint is free."""
    path = tmp_path / "run"
    job = map_async(sweeps.slow, range(3_000), shared={"log": log}, checkpoint=path)
    with pytest.raises(BlockingIOError, match="another run of this process"):
        parallel_map(sweeps.slow, range(3), shared={"log": log}, checkpoint=path)
    program = (
        "import nbshare\nfrom tests.support import sweeps\n"
        f"shared = {{'log': {log!r}}}\n"
        f"nbshare.parallel_map(sweeps.slow, [1], shared=shared, checkpoint={str(path)!r})"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert f"process {os.getpid()} on" in ended.stderr
    assert "CheckpointInUseError" in ended.stderr
    job.cancel()
    job.wait()
    parallel_map(sweeps.slow, range(3), shared={"log": log}, checkpoint=path)


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "generator"])
def test_any_order_of_blocks_is_found(sweep, kind):
    """Parts of a sweep that come in another order, with new items between them."""
    sweep(sweeps.number, kind(range(40)))
    items = [*range(30, 40), *range(100, 105), *range(30), *range(105, 108)]
    results, ran = sweep(sweeps.number, kind(items))
    assert sorted(map(int, ran)) == [*range(100, 108)]
    assert results.tolist() == [1.5 * x for x in items]
    items = [*range(105, 108), 200, *range(40)]
    results, ran = sweep(sweeps.number, kind(items))
    assert ran == ["200"]
    assert results.tolist() == [1.5 * x for x in items]


@pytest.mark.parametrize(
    ("kind", "backend"), [(list, None), (iter, None), (list, "threads"), (iter, "serial")]
)
def test_short_objects_that_were_stored_together_come_in_any_order(tmp_path, kind, backend):
    """Each with its item, turned round, thinned, shuffled, and with new ones between them."""
    items = list(range(400))
    shuffled = random.Random(1).sample(range(500), 450)
    for some in (items, items[::-1], items[::3], items[200:] + items[:100], shuffled):
        results = parallel_map(str, kind(some), checkpoint=tmp_path / "run", backend=backend)
        assert results == list(map(str, some))


def test_arrays_are_mapped_from_the_file(sweep, tmp_path):
    """They need no memory of their own, and changing them does not change what is stored."""
    first, _ = sweep(sweeps.row, range(8))
    if sys.platform == "win32":
        assert isinstance(first.base, np.memmap)
    else:
        with open("/proc/self/maps") as maps:
            assert str(tmp_path / "run" / "results.npy") in maps.read()
    first[3] = -1
    again, ran = sweep(sweeps.row, range(8))
    assert ran == []
    assert again[3].tolist() == np.full((2, 3), 3).tolist()
    assert (first[3] == -1).all()


@pytest.mark.parametrize("backend", [None, "threads"])
def test_objects_are_in_files_only(backend, tmp_path):
    """Each that comes is right and the caller's own, and they take no shared memory."""
    options = {"max_workers": 2, "progress": False, "backend": backend, "checkpoint": tmp_path}
    before, changed = memfd_bytes([os.getpid()]), []
    for i, (number, array) in map_async(sweeps.wide, range(400), **options):
        assert number == i
        assert (array == i).all()
        array[:] = -1
        changed.append(array)
    assert memfd_bytes([os.getpid()]) - before < 400 * changed[0].nbytes / 2
    assert parallel_map(np.sum, changed[:2], progress=False).tolist() == [-1000, -1000]
    for i, (_, array) in enumerate(open_checkpoint(tmp_path).results()):
        assert (array == i).all()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_change_of_a_large_result_reaches_other_workers(is_resumed, tmp_path):
    """As one of any array does."""
    for _ in range(1 + is_resumed):
        results = parallel_map(sweeps.wide, range(3), checkpoint=tmp_path, progress=False)
    for _, array in results:
        array[:] = -1
    _, given = results[2]
    assert parallel_map(sweeps.total, range(1), shared={"given": given}).tolist() == [-1000]
    assert parallel_map(np.sum, [array for _, array in results]).tolist() == [-1000] * 3


def test_a_restart_leaves_the_arrays_of_earlier_calls(sweep):
    """New results go to another file than the one from which earlier arrays are mapped."""
    before, _ = sweep(sweeps.drawn, range(8), seed=1)
    copy = before.copy()
    after, ran = sweep(sweeps.drawn, range(8), seed=2, if_changed="restart")
    assert len(ran) == 8
    assert (after != copy).all()
    assert (before == copy).all()


def test_a_run_that_waits_for_the_disk_is_stored(tmp_path):
    """With durability="power". Warnings are errors."""
    stored = Checkpoint(tmp_path / "run", durability="power")
    assert parallel_map(abs, [-1, 2], checkpoint=stored).tolist() == [1, 2]
    assert open_checkpoint(tmp_path / "run").state == "done"


def test_a_call_runs_again_while_arrays_of_it_are_kept(sweep, tmp_path):
    """For more items, and other results for some and for all. The folder can be deleted then."""
    folder = tmp_path / "run"
    sweep(sweeps.drawn, range(4), seed=1)
    kept = [open_checkpoint(folder).results()]
    sweep(sweeps.drawn, range(6), seed=1)
    mixed, _ = sweep(sweeps.drawn, range(8), seed=2, if_changed="accept")
    kept += [mixed, open_checkpoint(folder).results()]
    copies = [array.copy() for array in kept]
    for seed, n_old in [(1, 2), (3, 8)]:
        results, ran = sweep(sweeps.drawn, range(8), seed=seed, if_changed="restart")
        assert len(ran) == n_old
        assert (
            results.tolist()
            == sweep(sweeps.drawn, range(8), seed=seed, checkpoint=None)[0].tolist()
        )
        kept.append(results)
        copies.append(results.copy())
        assert list(map(np.array_equal, kept, copies)) == [True] * len(kept)
    kept.clear()
    del mixed, results
    sweep(sweeps.drawn, range(8), seed=3)
    assert {file.name[0] for file in folder.iterdir()} & {"."} == set()
    parallel_map(abs, [1], progress=False)  # `last_job` has nothing of the folder any more
    shutil.rmtree(folder)
    assert not folder.exists()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("func", [sweeps.row, sweeps.record], ids=lambda f: f.__name__)
def test_a_folder_can_be_deleted_when_the_results_are(sweep, tmp_path, func, backend):
    """When the thread that stored them has ended, not when Python next collects garbage."""
    folder = tmp_path / "run"

    def is_open():
        held = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        paths = [os.readlink(fd) for fd in held if os.path.exists(fd)]
        with open("/proc/self/maps") as maps:
            return str(folder) in "".join([*maps, *paths])

    def is_deleted():
        with suppress(PermissionError):  # of what is open on Windows
            shutil.rmtree(folder)
        return not folder.exists()

    gc.collect()
    gc.disable()
    try:
        results, _ = sweep(func, range(8), backend=backend)
        assert len(results) == 8
        del results
        if sys.platform != "win32":  # where what is open can be removed
            wait_until(lambda: not is_open())
        wait_until(is_deleted)
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["cancel", "_interrupt"])
def test_an_early_end_says_that_the_same_call_continues(tmp_path, log, end):
    """Stop warns where no display says it. An interrupt names the checkpoint."""
    options = {"shared": {"log": log}, "checkpoint": tmp_path / "run", "max_workers": 1}
    job = map_async(sweeps.slow, range(1000), **options)
    next(iter(job))
    getattr(job, end)()
    if end == "cancel":
        message = r"items done; the same call continues; count"
        with pytest.warns(PartialResultWarning, match=message):
            job.result()
    else:
        with pytest.raises(MapInterrupted, match=r"kept in the checkpoint: the same call cont"):
            job.result()


def test_a_restart_leaves_no_files_of_earlier_results(sweep, tmp_path):
    """Arrays that are mapped from them stay as they are. Logs that are still used stay, too."""
    path = tmp_path / "run"

    def logs():
        return {log.name for log in path.glob("objects*")}

    before, _ = sweep(sweeps.record, range(4), version="1")
    old = logs()
    sweep(sweeps.record, range(8), version="2", if_changed="restart")
    assert not logs() & old
    kept = logs()
    sweep(sweeps.record, range(9), version="2", if_changed="restart")
    assert logs() > kept
    assert [x["big"].tolist() for x in before] == [[x] * 3000 for x in range(4)]


def test_the_rate_counts_what_has_run(sweep, capfd):
    """Not the stored results, of which a thousand are there at once. The line names them."""
    sweep(sweeps.slow, range(1000), max_workers=8)
    sweep(sweeps.slow, range(1020), max_workers=1, progress=True)
    shown = r"1,020/1,020 in (.*) s \((.*)/s\), 1,000 stored before"
    elapsed_s, rate = re.search(shown, capfd.readouterr().err).groups()
    assert float(elapsed_s) * float(rate) < 100  # 20, but for rounding


class Pressed:
    """A tqdm class that the user interrupts as it is made."""

    def __init__(self, *_, **__):
        raise KeyboardInterrupt

    update = close = __init__


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupt_before_the_first_item_leaves_the_checkpoint_free(tmp_path, backend):
    options = {"checkpoint": tmp_path / "run", "backend": backend}
    with pytest.raises(MapInterrupted):
        parallel_map(abs, range(3), progress=Pressed, **options)
    assert nbshare.last_job().done()
    assert parallel_map(abs, range(3), **options).tolist() == [0, 1, 2]


def test_nothing_is_stored_when_the_run_is_over(tmp_path):
    """A loop over its results may come later than the next run, or a user who moves the folder."""
    job = map_async(str, range(20), checkpoint=tmp_path / "run")
    assert job.wait()
    (tmp_path / "run").rename(tmp_path / "moved")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert sorted(job) == [(i, str(i)) for i in range(20)]
    assert not told


class Setting:
    """An object that is another one each time it is made, if it has a number."""

    def __init__(self, k, number=0):
        self.parts, self.number, self.num = {"k": k}, number, number


def taken(x, **shared):
    return 1.5


def test_a_refusal_tells_what_has_changed_in_an_object(tmp_path):
    """And what to do if it has only been made again."""
    options = {"checkpoint": tmp_path / "run", "backend": "serial"}
    parallel_map(taken, [1], shared={"a": Setting([1, 2])}, **options)
    with pytest.raises(CheckpointError, match=r"shared\['a'\] changed \(in \.parts\['k'\]\)") as e:
        parallel_map(taken, [1], shared={"a": Setting([1, 3])}, **options)
    assert '"accept" to keep them as they are, for example if an equal object' in str(e.value)
    large = [[Setting(k) for k in range(500)] for _ in range(20)]
    parallel_map(taken, [1], shared={"a": Setting(large)}, checkpoint=tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"changed \(in \.num(ber)? and \.num(ber)?\)"):
        parallel_map(taken, [1], shared={"a": Setting(large, 1)}, checkpoint=tmp_path / "b")


def test_a_refusal_tells_that_code_has_changed_and_not_where(tmp_path):
    """Not which of its instructions, of a function without a file."""
    options = {"checkpoint": tmp_path / "run", "backend": "serial"}
    parallel_map(lambda x: x, [1], **options)
    with pytest.raises(CheckpointError, match=r"lambda changed[.;]"):
        parallel_map(lambda x: -x, [1], **options)


def test_a_refusal_tells_no_more_than_a_reader_bears(tmp_path):
    """What changed, is new, or is gone."""

    def call(values):
        parallel_map(taken, [1], shared=values, checkpoint=tmp_path / "run", backend="serial")

    call({f"p{i}": 1 for i in range(9)})
    with pytest.raises(CheckpointError, match="p4'] changed; 4 more differ"):
        call({f"p{i}": 2 for i in range(9)})
    with pytest.raises(CheckpointError) as told:
        call({f"p{i}": 1 for i in range(8)} | {"q": 1})
    assert "shared['q'] is new" in str(told.value)
    assert "shared['p8'] was removed" in str(told.value)


def test_items_that_are_never_found_again_warn(tmp_path):
    """They would run in each call, though nothing is refused."""
    options = {"checkpoint": tmp_path / "run", "backend": "serial"}
    parallel_map(taken, [Setting(k, 1) for k in range(3)], **options)
    parallel_map(taken, [Setting(k, 1) for k in range(1, 5)], **options)  # some are there
    parallel_map(taken, [Setting(k, 1) for k in range(5)], **options)
    with pytest.warns(CheckpointWarning, match="none of the 2 items is among the 5 .*Setting"):
        parallel_map(taken, [Setting(k, 2) for k in range(2)], **options)
