"""Stages joined by rings give a loop's results, errors with a name, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
from functools import partial

import numpy as np
import pytest

import nbshare
from nbshare import Job, last_job
from nbshare._core.arguments.options import MapOptions, checked_request
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.preparing import prepare
from nbshare.errors import MapInterrupted, TaskError
from tests.support import plumbing, streams
from tests.support.faultlab import wait_until
from tests.support.grids import combined
from tests.support.plumbing import ROWS

pipeline = partial(nbshare.pipeline, shape=ROWS, dtype=int, progress=False)


def blocks(n):
    """Return the loader's blocks."""
    return [list(range(start, min(start + ROWS, n))) for start in range(0, n, ROWS)]


def n_descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if sys.platform != "win32" else 0


# ------------------------------------------------------------------- the serial loop's results


@pytest.mark.parametrize(
    ("first", "second", "ordered"), combined((1, 2, 3), (1, 2, 3), (True, False))
)
def test_results_are_those_of_a_loop(first, second, ordered):
    """With whatever workers, slots and order, all blocks come once, in their order."""
    n = 4 * 13 + 1
    done = pipeline(
        partial(plumbing.numbers, n),
        plumbing.unevenly_doubled,
        plumbing.plus_one,
        plumbing.to_list,
        workers=(first, second, 1 + (first + second) % 3),
        slots=1 + (first + second) % 3,
        ordered=ordered,
    )
    assert done.results == [[2 * i + 1 for i in block] for block in blocks(n)]
    assert [stage.n_blocks for stage in done.stages] == [14] * 4
    assert [stage.workers for stage in done.stages][:3] == [1, first, second]


@pytest.mark.parametrize("slots", [1, 2])
def test_few_slots_and_many_workers_come_to_an_end(slots):
    """A ring with fewer slots than workers, and blocks that overtake each other, never stops."""
    stages = [plumbing.unevenly_doubled, plumbing.unevenly_doubled, plumbing.total]
    done = pipeline(partial(plumbing.numbers, 400), *stages, workers=3, slots=slots)
    assert done.results.tolist() == [4 * sum(block) for block in blocks(400)]


def test_unordered_blocks_overtake_each_other(tmp_path):
    """The last stage gets a block before an earlier one. The results are in their order."""
    meet = partial(plumbing.first_waits, flag=tmp_path / "second is through")
    tell = partial(plumbing.second_tells, flag=tmp_path / "second is through")
    done = pipeline(partial(plumbing.numbers, 12), meet, tell, workers=(2, 1), ordered=False)
    assert done.results.tolist() == [0, 1, 2]


@pytest.mark.parametrize("n", [0, 1, ROWS, ROWS + 1], ids=["none", "one row", "one", "two"])
@pytest.mark.parametrize("load", [plumbing.numbers, plumbing.numbers_in_place])
def test_the_end_of_the_data_anywhere(n, load):
    """No block, one, one in part. The last is as long as what was left."""
    done = pipeline(partial(load, n=n), plumbing.doubled, plumbing.to_list, workers=2)
    assert list(done.results) == [[2 * i for i in block] for block in blocks(n)]


def test_blocks_may_be_empty_on_the_way():
    """A stage that keeps no row of a block hands on an empty one. The order stays."""
    done = pipeline(partial(plumbing.numbers, 40), plumbing.nothing_of, plumbing.total, workers=3)
    expected = [0 if i % 2 else sum(block) for i, block in enumerate(blocks(40))]
    assert done.results.tolist() == expected


@pytest.mark.parametrize("workers", [1, 3])
def test_lines_of_a_file_come_in_sequence(tmp_path, workers):
    """Integers of a file, one a line, reach one writer in their order, and none twice."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("".join(f"{i}\n" for i in range(1003)))
    write = partial(plumbing.checked, path=target)
    load = partial(plumbing.lines, path=source)
    done = pipeline(load, plumbing.slow_sometimes, write, workers=(workers, 1), shape=10)
    assert done.results.tolist() == [10] * 100 + [3]
    assert target.read_text() == source.read_text()


@pytest.mark.parametrize(("pause_s", "stage"), [(0.04, plumbing.doubled), (0, plumbing.slow)])
def test_the_bottleneck_is_visible(pause_s, stage):
    """The slow stage is busy, and the other one waits."""
    load, process, _ = pipeline(
        partial(plumbing.numbers, 100, pause_s), stage, plumbing.total
    ).stages
    assert (load.busy > process.busy) == bool(pause_s)
    assert (process.waited_for_input_s > load.waited_for_output_s) == bool(pause_s)


def test_shapes_and_dtypes_of_each_stage():
    """Each stage gets blocks of its own form, by value if it belongs to the notebook."""

    def load():
        for i in range(3):
            yield np.full((8, 2), i, "f4")

    def sums(block, out):
        assert block.dtype == np.float32
        out[...] = block.sum(axis=1)

    def kinds(block):
        return block.shape, block.dtype.name, block[0]

    done = pipeline(load, sums, kinds, shape=[(8, 2), 8], dtype=["f4", "i2"])
    assert done.results == [((8,), "int16", 2 * i) for i in range(3)]


def test_results_of_any_size_and_kind():
    """Large arrays come in frames, a slot as it was, and results that differ as a list."""
    done = pipeline(partial(plumbing.numbers, 20), plumbing.large, workers=2)
    assert done.results.shape == (5, 300, 1000)
    assert (done.results == np.arange(0, 20, ROWS)[:, None, None]).all()
    assert pipeline(partial(plumbing.numbers, 8), plumbing.whole).results.tolist() == blocks(8)
    with pytest.warns(nbshare.errors.MixedResultsWarning, match="int64, item 1 a str"):
        done = pipeline(partial(plumbing.numbers, 8), plumbing.unlike)
    assert done.results == [0, "text"]
    with pytest.warns(nbshare.errors.MixedResultsWarning, match="a float, item 1 a NoneType"):
        done = pipeline(partial(plumbing.numbers, 8), lambda block: None if block[0] else 0.5)
    assert done.results == [0.5, None]


def test_constants_reach_those_who_take_them():
    """Loader and stages get what they have parameters for, read-only, once in memory, unchanged."""
    scale = np.arange(1, ROWS + 1)
    stages = [partial(plumbing.scaled_numbers, 10), plumbing.scaled, plumbing.addressed]
    done = pipeline(*stages, shared={"scale": scale, "offset": 100}, workers=2)
    factors = (scale**2).tolist()
    values, writable, places = zip(*done.results, strict=True)
    assert list(values) == [
        [i * k + 100 for i, k in zip(block, factors, strict=False)] for block in blocks(10)
    ]
    assert set(writable) == {False}
    assert len(set(places)) == 1


@pytest.mark.parametrize("kind", ["plain", "SharedArray"])
def test_constants_cannot_be_written_to(kind):
    """A stage that tries is told the ways out. The caller's array is as it was."""
    table = np.zeros(2000) if kind == "plain" else nbshare.zeros(2000)

    def spoils(block, table):
        table[0] = 1

    _, text = raised(ValueError, plumbing.endless, spoils, shared={"table": table})
    assert "read-only in the workers" in text
    assert not table.any()


def test_what_all_stages_print_is_shown(capfd):
    """Loader and stages print. All of it is there when the pipeline is over."""

    def load():
        print("loads", flush=True)
        yield [0] * ROWS

    pipeline(load, partial(plumbing.says, word="scales"), partial(plumbing.says, word="stores"))
    assert sorted(capfd.readouterr().out.splitlines()) == ["loads", "scales 0", "stores 0"]


def test_a_file_streams_through(tmp_path):
    """A recording is read block by block into the slots. Its spectrogram is that of the whole."""
    path = tmp_path / "recording.raw"
    samples = np.random.default_rng(0).integers(-1000, 1000, (50, 256), "i2")
    samples.tofile(path)

    def load(slots):
        with open(path, "rb", buffering=0) as file:
            for slot in slots:
                if not file.readinto(slot):
                    return
                yield

    def spectrum(block, out):
        out[...] = np.fft.rfft(block)

    form = {"shape": [256, 129], "dtype": ["i2", "c16"]}
    done = pipeline(load, spectrum, np.abs, workers=2, **form)
    assert np.array_equal(done.results, abs(np.fft.rfft(samples)))


# ------------------------------------------------------------------------- how it ends early


def raised(kind, *stages, **options):
    with pytest.raises(kind) as caught:
        pipeline(*stages, **options)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    return caught.value, text


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_names_stage_and_block(place, workers):
    """It is raised as itself, with the worker's traceback. Finished results are kept."""
    stages = [partial(plumbing.numbers, 400), plumbing.slow_sometimes, plumbing.total]
    fails = partial(plumbing.broken, at=7, how="raise") if place else partial(plumbing.fails_at, 7)
    stages[place] = fails
    _, text = raised(ValueError, *stages, workers=workers)
    assert f"block 7 in stage {fails.func.__name__!r}" in text
    assert 'plumbing.py", line' in text
    job = last_job()
    assert job.state == "failed"
    assert job.errors.keys() == {7}
    kept = np.flatnonzero(job.present)
    assert not (kept >= 7).any() or (place, workers) == (2, 3)  # others may be ahead
    if len(kept):
        expected = [blocks(400)[i] for i in kept]
        assert job.partial()[kept].tolist() == (expected if place == 2 else [*map(sum, expected)])


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        (
            [plumbing.endless, plumbing.too_large, plumbing.total],
            r"shape \(8,\) does not fit .*shape=",
        ),
        ([plumbing.endless, plumbing.forgotten, plumbing.total], "the block is None"),
        ([plumbing.takes_no_slot, plumbing.total], "for slot in slots"),
        ([plumbing.endless, plumbing.gives_out, plumbing.total], "or the number of filled rows"),
        ([partial(plumbing.numbers, 8), plumbing.gives_unloadable], "cannot be unpickled: "),
        ([plumbing.endless, plumbing.halved, plumbing.total], "float64 does not .*int64: set dty"),
        ([plumbing.seven, plumbing.total], "returned 7: it must be a generator function"),
    ],
)
def test_bad_blocks_and_results_say_what_to_do(stages, says):
    """A block that fits no slot, or does not arrive, is an error, and no stage waits for ever."""
    with pytest.raises((TypeError, ValueError, RuntimeError), match=says):
        pipeline(*stages)


@pytest.mark.parametrize(
    ("where", "kind"),
    # In this process, where results are unpickled, a KeyboardInterrupt is the user's.
    [
        *itertools.product(("loader", "block", "result"), (SystemExit, KeyboardInterrupt)),
        ("result here", SystemExit),
    ],
)
def test_what_would_end_the_program_is_an_error(where, kind):
    """Raised by the loader, for a block or a result of its. No stage waits, and nothing ends."""

    def load():
        yield [1, 2, 3, 4]
        if where == "loader":
            raise kind("no data")
        if where == "block":
            yield streams.Raises(kind)

    def last(block):
        if where.startswith("result"):
            return streams.Raises(kind, "unpickled" if where == "result here" else "pickled")
        return None

    with pytest.raises(TaskError, match=kind.__name__):
        pipeline(load, last)
    assert pipeline(partial(plumbing.numbers, 8), plumbing.total).results.tolist() == [6, 22]


@pytest.mark.parametrize(
    ("stages", "options", "says"),
    [
        ([], {}, "at least one stage"),
        ([plumbing.plus_one], {}, r"plus_one \(stage 1\)"),
        ([plumbing.total], {"workers": (1, 2)}, "2 entries for 1 stage "),
        ([plumbing.total], {"workers": 0}, "workers=0"),
        ([plumbing.total], {"slots": 0}, "slots=0"),
        ([plumbing.total], {"progress": 3}, "progress=3"),
        ([plumbing.total], {"timeout": 0}, "timeout=0"),
        ([plumbing.total], {"shared": [3]}, "mapping of argument names"),
        ([plumbing.total], {"shared": {"scale": 3}}, "neither endless nor total has a parameter"),
        ([plumbing.scaled, plumbing.total], {}, "requires 3 positional .* shared={name: value}"),
        ([plumbing.total], {"shared": {"block": 3}}, "requires 0 positional"),
        ([plumbing.total], {"max_workers": 3}, "use workers="),
        ([plumbing.total], {"on_error": "return"}, "catch the error in the stage"),
        ([plumbing.total], {"sotls": 3}, "has no argument sotls=: did you mean slots="),
        ([3], {}, "not int. Pass all other arguments by keyword"),
        ([plumbing.total], {"slots": "3"}, "slots='3'"),
    ],
)
def test_wrong_use_is_refused(stages, options, says):
    """Before anything starts."""
    with pytest.raises((TypeError, ValueError), match=says):
        pipeline(plumbing.endless, *stages, **options)


def test_a_loader_that_is_no_function_is_refused():
    """Blocks, or the generator itself, in the place of the function that gives them."""
    for load in ([[1, 2, 3, 4]], plumbing.numbers(8)):
        with pytest.raises(TypeError, match=r"pipeline\(load, ...\), not"):
            pipeline(load, plumbing.total)


def test_a_call_that_is_stopped_before_it_is_submitted_never_begins():
    """One stage may fail before the others have begun. The engine goes on."""
    engine = dispatcher()
    request, _ = checked_request(plumbing.total, [range(3)], MapOptions())
    run = prepare(request, engine)
    run.stop()
    run.start()
    assert run.wait(20)
    assert run.state == "stopped"
    assert nbshare.parallel_map(abs, [-1, -2], progress=False).tolist() == [1, 2]
    assert dispatcher() is engine


def test_shutdown_in_another_thread_stops_it(tmp_path):
    """It gives what is done, as a map does, not an array with gaps that look like results."""

    def await_the_end(block):
        if block[0] == 8:
            (tmp_path / "there").touch()
            threading.Event().wait(60)
        return block.sum()

    def end():
        wait_until((tmp_path / "there").exists)
        nbshare.shutdown()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.warns(nbshare.errors.PartialResultWarning, match="was stopped: 2"):
        done = pipeline(partial(plumbing.numbers, 40), await_the_end)
    thread.join()
    assert done.results.compressed().tolist() == [6, 22]
    assert last_job().state == "stopped"


def test_an_interrupt_before_it_starts_ends_it(monkeypatch):
    monkeypatch.setattr(Job, "_start", lambda job: signal.raise_signal(signal.SIGINT))
    with pytest.raises(MapInterrupted):
        pipeline(partial(plumbing.numbers, 40), plumbing.to_list)
    assert last_job().wait(20)
    assert last_job().state == "interrupted"


def test_nothing_is_left_behind():
    """Rings and results are freed, failed or not, and all workers wait for something to do."""
    run = partial(pipeline, partial(plumbing.numbers, 40), plumbing.doubled, workers=2)
    bad = partial(plumbing.broken, at=3, how="raise")
    run(plumbing.total)
    raised(ValueError, partial(plumbing.numbers, 40), bad, plumbing.total)
    run(plumbing.total)
    before = n_descriptors(), threading.active_count()
    for _ in range(3):
        run(plumbing.total)
        raised(ValueError, partial(plumbing.numbers, 40), bad, plumbing.total)
    run(plumbing.total)
    wait_until(lambda: (n_descriptors(), threading.active_count()) <= before)
    assert last_job() is None


def test_a_pipeline_in_a_worker_is_refused():
    """Its workers would be more than were asked for."""

    def nested(i):
        return nbshare.pipeline(plumbing.endless, plumbing.total, shape=ROWS)

    with pytest.raises(RuntimeError, match="one after the other"):
        nbshare.parallel_map(nested, [1], progress=False)


# ------------------------------------------------------------------------------- what is shown


def test_a_line_for_each_stage(capsys):
    """A log says what each stage has done, and how long the queues are."""
    run = partial(pipeline, partial(plumbing.numbers, 40), plumbing.doubled, plumbing.total)
    run(progress=None)
    assert capsys.readouterr().err == ""
    run(progress=True)
    first, *stages = capsys.readouterr().err.splitlines()
    assert first.startswith("numbers → doubled → total done: 10/10")
    assert [line.split(":")[0].strip() for line in stages] == ["numbers", "doubled", "total"]
    assert "10 blocks, queue 0/4" in stages[1]
