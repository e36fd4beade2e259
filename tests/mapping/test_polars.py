"""Groups of a table of polars as items, compared with a loop over them."""

from __future__ import annotations

import numpy as np
import pytest

from nbshare import parallel_map

pl = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
polars_testing = pytest.importorskip("polars.testing")

BACKENDS = [None, "threads", "serial"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "k": rng.integers(0, 5, 60),
            "s": rng.choice(["u", "vv", "www"], 60),
            "gap": [None if i % 7 == 0 else i % 3 for i in range(60)],
            "x": rng.random(60),
            "words": [["a"] * (i % 3) for i in range(60)],
        }
    )


GROUPINGS = {
    "one key": lambda t: t.group_by("k"),
    "in order": lambda t: t.group_by("k", maintain_order=True),
    "two keys": lambda t: t.group_by("k", "s"),
    "gaps": lambda t: t.group_by("gap"),
    "an expression": lambda t: t.group_by(pl.col("k") // 2),
    "a named one": lambda t: t.group_by(even=pl.col("k") % 2 == 0),
}


def itself(frame):
    return frame


def with_key(key, frame):
    return key, frame


def mean(frame):
    return frame["x"].mean()


def summary(frame):
    return {"n": len(frame), "sum": frame["x"].sum(), "first": frame["s"][0]}


def picky(frame):
    if frame["k"][0] == 3:
        raise ValueError("no three")
    return len(frame)


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_call_gets_a_group_with_its_key(table, name, backend):
    grouping = GROUPINGS[name]
    found = parallel_map(with_key, grouping(table), backend=backend, out="list")
    wanted = dict(grouping(table))
    assert len(found) == len(wanted)
    for key, frame in found:
        assert frame.equals(wanted[key])


def test_a_function_of_one_gets_the_frame(table):
    found = parallel_map(itself, table.group_by("k"), out="list")
    assert sorted(len(frame) for frame in found) == sorted(table["k"].value_counts()["count"])


def test_numbers_come_next_to_their_keys(table):
    found = parallel_map(mean, table.group_by("k")).sort("k")
    wanted = table.group_by("k").agg(pl.col("x").mean().alias("result")).sort("k")
    polars_testing.assert_frame_equal(found, wanted)


def test_dicts_become_columns(table):
    found = parallel_map(summary, table.group_by("k", "s")).sort("k", "s")
    wanted = table.group_by("k", "s", maintain_order=True).agg(
        pl.len().alias("n"), pl.col("x").sum().alias("sum"), pl.col("s").first().alias("first")
    )
    polars_testing.assert_frame_equal(found, wanted.sort("k", "s"), check_dtypes=False)


@pytest.mark.skipif(not hasattr(pl.DataFrame({"k": [1]}).group_by("k"), "having"), reason="too old")
def test_a_condition_leaves_groups_out(table):
    grouped = table.group_by("k").having(pl.len() > 11)
    wanted = grouped.agg(pl.col("x").mean().alias("result")).sort("k")
    assert 0 < len(wanted) < 5
    polars_testing.assert_frame_equal(parallel_map(mean, grouped).sort("k"), wanted)


@pytest.mark.parametrize("way", ["group_by_dynamic", "rolling"])
def test_windows_are_not_taken_for_frames(way):
    table = pl.DataFrame({"at": [1, 2, 3, 4]})
    length = {"group_by_dynamic": {"every": "2i"}, "rolling": {"period": "2i"}}[way]
    windows = getattr(table, way)("at", **length)
    with pytest.raises(TypeError, match="for _, frame in windows"):
        parallel_map(len, windows)
    frames = [frame for _, frame in windows]
    assert parallel_map(len, frames).tolist() == [len(frame) for frame in frames]


def after(frame):
    if frame["k"][0] == 3:
        raise ValueError("no three")
    return np.datetime64("2020-01-01", "ns") + np.timedelta64(int(frame["k"][0]), "ns")


def test_times_stay_times(table):
    found = parallel_map(after, table.group_by("k"), on_error="return").sort("k")
    assert found["result"].dtype == pl.Datetime("ns")
    nanoseconds = found["result"].dt.nanosecond().to_list()
    assert nanoseconds == [0, 1, 2, None, 4]


def test_groups_that_fail_have_gaps(table):
    found = parallel_map(picky, table.group_by("k"), on_error="return").sort("k")
    assert found.filter(pl.col("result").is_null())["k"].to_list() == [3]


def test_stored_groups_do_not_run_again(table, tmp_path):
    parallel_map(mean, table.filter(pl.col("k") < 3).group_by("k"), checkpoint=tmp_path / "run")
    found = parallel_map(mean, table.group_by("k"), checkpoint=tmp_path / "run").sort("k")
    wanted = table.group_by("k").agg(pl.col("x").mean().alias("result")).sort("k")
    polars_testing.assert_frame_equal(found, wanted)


def test_a_key_that_is_called_as_the_results_gives_a_list(table):
    found = parallel_map(mean, table.rename({"k": "result"}).group_by("result"))
    assert len(found) == 5
    assert isinstance(found[0], float)


def unpacks(pair):
    key, frame = pair
    return key, frame


@pytest.mark.parametrize("func", [unpacks, lambda pair: unpacks(*pair)])
def test_a_function_that_unpacks_a_group_is_told_what_it_gets(table, func):
    """It would get two columns for a key and a frame."""
    grouped = table.select("k", "x").group_by("k")
    with pytest.raises(TypeError, match="unpacks 'pair', but 'pair' is the frame of a group"):
        parallel_map(func, grouped)
    assert len(parallel_map(unpacks, list(grouped), progress=False)) == len(list(grouped))


def test_a_function_that_takes_the_second_of_a_pair_is_told_what_it_gets(table):
    """Which is a row of the frame, as polars gives it for a number."""
    grouped = table.select("k", "x").group_by("k")
    with pytest.warns(UserWarning, match=r"takes pair\[1\].* is a row.*def f\(key, frame\)"):
        parallel_map(lambda pair: len(pair[1]), grouped, progress=False)
    with pytest.raises(IndexError) as caught:
        parallel_map(lambda pair: pair[100], grouped, progress=False)
    assert "def f(key, frame)" in caught.value.__notes__[-1]
