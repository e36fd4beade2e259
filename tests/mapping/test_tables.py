"""Tables of pandas, with their groups and their rows as items, compared with pandas itself."""

from __future__ import annotations

from functools import partial, wraps
from operator import itemgetter

import numpy as np
import pandas as pd
import pytest

import nbshare
from nbshare import map_async, parallel_map

BACKENDS = [None, "threads", "serial"]
N = 60


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 7, N),
            "c": pd.Categorical(rng.choice(["a", "c"], N), categories=["a", "b", "c"]),
            "gap": np.where(rng.random(N) < 0.3, np.nan, rng.integers(0, 3, N)),
            "x": rng.random(N),
            "day": pd.date_range("2024-01-01", periods=N, freq="7h", tz="Europe/Berlin"),
            "n": pd.array(np.where(rng.random(N) < 0.5, None, 4), dtype="Int64"),
            "s": rng.choice(["u", "vv", "www"], N),
        },
        index=rng.permutation(N),
    )


GROUPINGS = {
    "numbers": lambda t: t.groupby("k"),
    "in order of appearance": lambda t: t.groupby("k", sort=False),
    "a list of one": lambda t: t.groupby(["k"]),
    "several": lambda t: t.groupby(["k", "s"]),
    "categories with an empty one": lambda t: t.groupby("c", observed=False),
    "categories": lambda t: t.groupby("c", observed=True),
    "categories and numbers": lambda t: t.groupby(["c", "k"], observed=False),
    "keys with gaps": lambda t: t.groupby("gap"),
    "keys that are gaps": lambda t: t.groupby("gap", dropna=False),
    "nullable": lambda t: t.groupby("n"),
    "texts": lambda t: t.groupby("s"),
    "times": lambda t: t.groupby(pd.Grouper(key="day", freq="2D")),
    "a function": lambda t: t.groupby(lambda i: i % 3),
    "a level": lambda t: t.set_index("k").groupby(level=0),
    "no index": lambda t: t.groupby("k", as_index=False),
    "no index, and a key called size": lambda t: t.rename(columns={"k": "size"}).groupby(
        "size", as_index=False
    ),
    "some columns": lambda t: t.groupby("k")[["x", "s"]],
    "one column": lambda t: t.groupby("k")["x"],
}


def itself(part):
    return part


def with_key(key, part):
    return key, part


def size(part):
    return len(part)


def mean(part):
    return part["x"].mean()


def summary(part):
    return {"n": len(part), "sum": part["x"].sum()}


def sums(part):
    return part[["x"]].sum()


def magnitude(row):
    return row.x * row.Index


def assert_same(found, wanted):
    check = pd.testing.assert_series_equal
    if isinstance(wanted, pd.DataFrame):
        check = pd.testing.assert_frame_equal
    check(found, wanted)


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, None) for name in GROUPINGS]
    + [(name, x) for name in ("several", "nullable", "one column") for x in BACKENDS[1:]],
)
def test_groups_are_those_of_a_loop(table, name, backend):
    """Keys and frames are the same, in the same order, with all that a column may be."""
    grouped = GROUPINGS[name](table)
    found = parallel_map(with_key, grouped, backend=backend, out="list", progress=False)
    for (key, part), (wanted_key, wanted) in zip(found, grouped, strict=True):
        assert_same(part, wanted)
        assert type(key) is tuple or not isinstance(wanted_key, tuple)
        assert pd.Index([key], dtype=object).equals(pd.Index([wanted_key], dtype=object))


@pytest.mark.parametrize("name", ["numbers", "several", "keys with gaps", "texts", "times"])
def test_results_are_those_of_apply(table, name):
    grouped = GROUPINGS[name](table)
    for func in (mean, sums):
        found = parallel_map(func, grouped, progress=False)
        assert_same(found, grouped.apply(func).rename_axis(found.index.names))


def test_dicts_become_a_table(table):
    grouped = table.groupby("k")
    wanted = grouped["x"].agg(n="size", sum="sum")
    assert_same(parallel_map(summary, grouped), wanted)


def test_frames_stay_a_list(table):
    found = parallel_map(itself, table.groupby("k"))
    assert isinstance(found, list)
    assert len(found) == table["k"].nunique()


def test_failed_groups_are_gaps(table):
    def of_some(part):
        return 1 / (part["k"].iloc[0] - 2)

    found = parallel_map(of_some, table.groupby("k"), on_error="return", progress=False)
    assert found.index[found.isna()].tolist() == [2]
    assert found[1] == -1


def test_frames_are_read_only_views_of_one_copy(table):
    """Writes of a function into a group would be lost."""

    def overwrite(part):
        part["x"].to_numpy()[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        parallel_map(overwrite, table.groupby("k"), progress=False)


def test_rows_are_those_of_itertuples(table):
    found = parallel_map(magnitude, nbshare.rows(table), progress=False)
    wanted = pd.Series([magnitude(row) for row in table.itertuples()], table.index)
    assert_same(found, wanted)


def test_a_stored_group_is_not_run_again(table, tmp_path):
    """An item is known by its rows, so only a group with another row runs again."""
    log = tmp_path / "log"

    def noted(part):
        with log.open("a") as file:
            file.write(f"{part['k'].iloc[0]}\n")
        return part["x"].sum()

    def run(data):
        log.write_text("")
        parallel_map(noted, data.groupby("k"), checkpoint=tmp_path / "sums", progress=False)
        return sorted(map(int, log.read_text().split()))

    assert len(run(table)) == table["k"].nunique()
    assert run(table) == []
    changed = table.assign(x=table["x"].where(table["k"] != 3, 0.5))
    assert run(changed) == [3]


def test_stored_rows_are_found_in_another_table(tmp_path):
    """Of one that is longer, or of another dtype, though pandas makes a class for each."""
    log = tmp_path / "log"

    def noted(row):
        with log.open("a") as file:
            file.write(".")
        return row.x

    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]})
    longer = pd.concat([table, table + 10], ignore_index=True)
    n_run = []
    for each in table, longer, table[["x"]], table.astype("float32"):
        log.write_text("")
        found = parallel_map(noted, nbshare.rows(each), checkpoint=tmp_path / "run", progress=False)
        assert found.tolist() == each["x"].tolist()
        n_run.append(len(log.read_text()))
    assert n_run == [3, 3, 3, 0]  # as `itertuples` makes the same numbers of both dtypes


def test_partial_results_are_an_array(table):
    job = map_async(size, table.groupby("k"))
    assert job.wait()
    assert job.partial().tolist() == job.result().tolist()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: parallel_map(size, t.groupby("k"), [1]), "pass it without other"),
        (lambda t: nbshare.rows(t["x"]), "not Series"),
        (lambda t: nbshare.rows([1]), "not list"),
        (lambda t: parallel_map(size, t.groupby("k"), shared={"y": 1}), "cannot be called"),
    ],
)
def test_what_is_no_table_is_refused(table, make, says):
    with pytest.raises(TypeError, match=says):
        make(table)


def test_windows_of_time_are_not_taken_for_frames():
    days = pd.DataFrame({"x": range(4)}, pd.date_range("2026-01-01", periods=4, freq="D"))
    with pytest.raises(TypeError, match="for _, frame in windows"):
        parallel_map(len, days.resample("2D"))


def test_a_partial_keeps_its_arguments(table):
    found = parallel_map(partial(scaled, factor=10), table.groupby("k"), progress=False)
    assert found.tolist() == [10 * len(part) for _, part in table.groupby("k")]


def scaled(part, factor):
    return factor * len(part)


def test_keys_are_python_numbers_in_a_tuple_only_as_in_a_loop(table):
    for by in ("k", ["k"], ["k", "s"]):
        keys = [key for key, _ in parallel_map(with_key, table.groupby(by), out="list")]
        assert keys == [key for key, _ in table.groupby(by)]
        assert {type(part) for key in keys for part in np.atleast_1d(np.array(key, object))} <= {
            int,
            str,
        }


def test_results_that_fit_no_table_are_kept(table):
    """Ragged lists, and Series whose labels occur twice, come as a list."""
    found = parallel_map(ragged, table.groupby("k"), progress=False)
    assert isinstance(found, list)
    found = parallel_map(doubled, table.groupby("k"), progress=False)
    assert all(isinstance(part, pd.Series) for part in found)


def ragged(part):
    return [[1], [2, 3]]


def doubled(part):
    return pd.Series([1, 2], ["a", "a"])


@pytest.mark.parametrize("names", ["frame, scale", "df, x", "table1, key"])
def test_a_function_of_a_frame_and_more_is_not_taken_for_one_of_its_key(table, names):
    """The missing argument is named, with its place."""
    func = eval(f"lambda {names}: 0")
    missing = names.split(", ")[1]
    with pytest.raises(TypeError, match=rf"shared=\{{'{missing}': ...\}}"):
        parallel_map(func, table.groupby("k"))


@pytest.mark.parametrize("names", ["key, frame", "k, df", "name, group", "frame, df", "a, b"])
def test_a_function_of_two_gets_the_key_first(table, names):
    func = eval(f"lambda {names}: {names.split(', ')[0]}")
    assert parallel_map(func, table.groupby("k")).tolist() == sorted(table["k"].unique())


# -------------------------------------------------- functions of a pair, as `map` passes one


def unpacks(pair):
    key, part = pair
    return f"{key}: {len(part)}"


def unpacks_in_a_closure(pair):
    def show():
        return pair

    key, part = pair
    return key, part, show


def passes_its_parts(pair):
    return with_key(*pair)


def unpacks_with_a_default(pair, digits=2):
    key, part = pair
    return key, part, digits


class _Unpacks:
    def __call__(self, pair):
        key, part = pair
        return key, part

    def method(self, pair):
        key, part = pair
        return key, part


def hands_on(pair):
    return unpacks(pair)


def hands_on_twice(pair):
    return len(pair), hands_on(pair)


def hand_on_to(func):
    return lambda pair: func(pair)


def decorated(func):
    @wraps(func)
    def call(*args, **others):
        return func(*args, **others)

    return call


OF_PAIRS = {
    "function": unpacks,
    "closure": unpacks_in_a_closure,
    "parts": passes_its_parts,
    "default": unpacks_with_a_default,
    "lambda": lambda pair: with_key(*pair),
    "object": _Unpacks(),
    "method": _Unpacks().method,
    "partial": partial(unpacks_with_a_default, digits=3),
    "decorated": decorated(unpacks),
    "handed on": hands_on,
    "handed on twice": hands_on_twice,
    "handed on to a closure's": hand_on_to(unpacks),
}


@pytest.mark.parametrize("kind", OF_PAIRS)
@pytest.mark.parametrize("by", ["frames", "series"])
def test_a_function_that_unpacks_a_group_is_told_what_it_gets(table, kind, by):
    """It would get the names of two columns, or two values, for a key and a frame."""
    grouped = table[["k", "x"]].groupby("k")
    with pytest.raises(
        TypeError, match="unpacks 'pair', but 'pair' is the frame of a group"
    ) as caught:
        parallel_map(OF_PAIRS[kind], grouped if by == "frames" else grouped["x"], progress=False)
    assert "def f(key, frame)" in str(caught.value)
    assert "pass list(groups)" in str(caught.value)


def test_pairs_are_what_map_gives(table):
    """The function runs for a list of the groups."""
    grouped = table[["k", "x"]].groupby("k")
    found = parallel_map(unpacks, list(grouped), progress=False)
    assert found == list(map(unpacks, grouped))


def unpacks_values(frame):
    frame = frame["x"].to_numpy()[:2]
    first, second = frame
    return first + second


def unpacks_a_list(frame):
    first, second = list(frame)
    return first, second


def hands_on_another(frame):
    return unpacks((1, frame))


def calls_itself(frame):
    return len(frame) if "x" in frame else calls_itself(frame)


@pytest.mark.parametrize("func", [unpacks_values, unpacks_a_list, hands_on_another, calls_itself])
def test_a_function_of_a_frame_may_unpack_other_things(table, func):
    grouped = table[["s", "x"]].groupby("s")
    assert list(parallel_map(func, grouped, progress=False)) == [func(part) for _, part in grouped]


def wants_one(part):
    return part


FAIL_FOR_PAIRS = {
    "second": lambda pair: pair[1],
    "first": lambda pair: pair[0],
    "in C": itemgetter(1),
    "called": lambda pair: _Unpacks().method(pair),
    "arguments": lambda pair: wants_one(*list(pair)),
}


@pytest.mark.parametrize("kind", FAIL_FOR_PAIRS)
@pytest.mark.parametrize("backend", [None, "serial"])
def test_the_error_of_a_function_of_a_pair_tells_what_it_gets(table, kind, backend):
    """The note is on errors only that using a frame as a pair gives."""
    grouped = table[["k", "x", "s"]].groupby("k")
    with pytest.raises((KeyError, ValueError, TypeError)) as caught:
        parallel_map(FAIL_FOR_PAIRS[kind], grouped, progress=False, backend=backend)
    assert "def f(key, frame)" in caught.value.__notes__[-1]
    with pytest.raises(KeyError) as caught:
        parallel_map(lambda frame: frame["y"], grouped, progress=False, backend=backend)
    assert "def f(key, frame)" not in caught.value.__notes__[-1]


def test_windows_of_groups_are_the_frames_of_a_loop(table):
    """A rolling window gives frames without keys, also of groups."""
    for windows in (table[["x"]].rolling(2), table[["k", "x"]].groupby("k").rolling(2)):
        assert parallel_map(len, windows, progress=False).tolist() == [*map(len, windows)]
