"""Items with a shape, of any kind: results of a run, and those of a plain loop or a library."""

from __future__ import annotations

import functools
import itertools
import operator
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import ndimage

import nbshare
from nbshare import parallel_map

# Few examples, because each is three runs, so a failing one is not made smaller.
settings_of_runs = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)


class Case(NamedTuple):
    """A run with items of some shape."""

    func: Callable[..., Any]
    items: Any
    wanted: Any
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


def may_stop(folder: Path) -> None:
    """Count an item. Raise if that is more than may run now."""
    with (folder / "log").open("a") as log:
        log.write("x")
    if (folder / "log").stat().st_size > int((folder / "most").read_text()):
        raise ArithmeticError("enough for now")


def number(folder, **parameters):
    may_stop(folder)
    return sum((k + 1) * x for k, x in enumerate(parameters.values())) / 7


def row(folder, **parameters):
    return number(folder, **parameters) * np.arange(3)


@st.composite
def grids(draw):
    """Combine one to three parameters, with a number or an array for each combination."""
    values = st.lists(st.integers(-9, 9), min_size=1, max_size=5)
    axes = draw(st.dictionaries(st.sampled_from("xyz"), values, min_size=1))
    func = draw(st.sampled_from([number, row]))
    coarse = {"order": "coarse"} if draw(st.booleans()) else {}
    found = [
        sum((k + 1) * x for k, x in enumerate(item)) / 7 * (np.arange(3) if func is row else 1)
        for item in itertools.product(*axes.values())
    ]
    wanted = np.array(found).reshape(*map(len, axes.values()), *np.shape(found[0]))
    return Case(func, nbshare.grid(**axes, **coarse), wanted)


def total(frame, folder):
    may_stop(folder)
    return float(frame["x"].sum())


def of_key(key, frame, folder):
    return {"n": len(frame), "key": str(key), "x": total(frame, folder)}


def plain_total(frame):
    return float(frame["x"].sum())


def plain_of_key(key, frame):
    return {"n": len(frame), "key": str(key), "x": plain_total(frame)}


@st.composite
def tables(draw):
    n = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    key = draw(st.sampled_from(["i", "c", "gap", "s", ["i", "s"]]))
    table = pd.DataFrame(
        {
            "i": rng.integers(0, 5, n),
            "c": pd.Categorical(rng.choice(["a", "b"], n)),
            "gap": np.where(rng.random(n) < 0.2, np.nan, 1.0),
            "s": rng.choice(["u", "vv"], n),
            "x": rng.random(n),
        },
        index=rng.permutation(n),
    )
    return table, key


@st.composite
def groups(draw):
    """Take the groups of a table. Numbers form a Series, dicts a DataFrame."""
    table, key = draw(tables())
    grouped = table.groupby(key, sort=draw(st.booleans()), observed=True, dropna=False)
    frames = list(grouped)
    index = grouped.size().index
    if draw(st.booleans()):
        return Case(total, grouped, pd.Series([plain_total(f) for _, f in frames], index))
    return Case(
        of_key, grouped, pd.DataFrame([plain_of_key(*part) for part in frames]).set_axis(index)
    )


def of_row(part, folder):
    may_stop(folder)
    return part.x * 2 + part.i


@st.composite
def rows(draw):
    """Take the rows of a table."""
    table, _ = draw(tables())
    wanted = pd.Series([part.x * 2 + part.i for part in table.itertuples()], table.index)
    return Case(of_row, nbshare.rows(table), wanted)


def blur(part, folder):
    may_stop(folder)
    return plain_blur(part)


def plain_blur(part):
    return ndimage.gaussian_filter(part, 1, truncate=2.0)


@st.composite
def tiles(draw):
    """Cut one to three axes."""
    n_axes = draw(st.integers(1, 3))
    whole = draw(st.tuples(*[st.integers(4, (90, 30, 9)[n_axes - 1])] * n_axes))
    shape = draw(st.tuples(*[st.integers(3, 12)] * n_axes))
    array = np.random.default_rng(draw(st.integers(0, 99))).random(whole)
    return Case(blur, nbshare.tiles(array, shape, 2), plain_blur(array))


def text(x, folder):
    may_stop(folder)
    return [x / 7]


@st.composite
def sums(draw):
    """Reduce items in a list, or as they come."""
    n = draw(st.integers(1, 300))
    wanted = functools.reduce(operator.add, ([x / 7] for x in range(n)))
    make = draw(st.sampled_from([list, iter]))
    return Case(text, make(range(n)), wanted, {"reduce": operator.add})


KINDS = {"grid": grids(), "groups": groups(), "rows": rows(), "tiles": tiles(), "reduce": sums()}


def check(kind: str, backend: Any) -> None:
    """Check some runs with items of one kind."""

    @settings_of_runs
    @given(data=st.data())
    def check_runs(data: Any) -> None:
        check_run(data.draw(KINDS[kind]), backend, data)

    check_runs()


def check_run(case: Case, backend: Any, data: Any) -> None:
    """Compare a run that is interrupted somewhere and continued with what is wanted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {"checkpoint": folder / "run", "shared": {"folder": folder}, "progress": False}
        options |= {"backend": backend, "max_workers": 2} | case.options
        is_source, is_reduced = not hasattr(case.items, "__len__"), "reduce" in options
        items = list(case.items) if is_source else case.items

        def run(most: int) -> tuple[Any, int]:
            """Return the results, and how many items ran."""
            (folder / "most").write_text(str(most))
            (folder / "log").write_text("")
            found = None
            with suppress(ArithmeticError) if most < len(items) else nullcontext():
                given = iter(items) if is_source else items
                found = parallel_map(case.func, given, **options)
            return found, (folder / "log").stat().st_size

        run(data.draw(st.integers(0, len(items)), label="most"))
        stored = nbshare.open_checkpoint(folder / "run").present.sum()
        found, n_ran = run(10**9)
        assert is_reduced or n_ran == len(items) - stored
        assert_same(found, case.wanted)
        again, n_ran = run(10**9)
        assert n_ran == 0
        assert_same(again, case.wanted)


def assert_same(found: Any, wanted: Any) -> None:
    """Compare values, and the index of a table or the type of an array."""
    if isinstance(wanted, pd.Series):
        pd.testing.assert_series_equal(found, wanted)
    elif isinstance(wanted, pd.DataFrame):
        pd.testing.assert_frame_equal(found, wanted)
    else:
        assert type(found) is not np.ma.MaskedArray
        np.testing.assert_array_equal(found, wanted)
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
