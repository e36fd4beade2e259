"""Grids of all combinations of the values of some parameters, and results of their shape."""

from __future__ import annotations

import itertools
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import grid, map_async, parallel_map
from nbshare._core.system import SYSTEM

BACKENDS = [None, "threads", "serial"]
NO_XARRAY = pytest.mark.skipif(find_spec("xarray") is None, reason="xarray is not installed")
XARRAY = pytest.param("xarray", marks=NO_XARRAY)
values = st.lists(
    st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.sampled_from(["a", "b"]), st.none()),
    max_size=4,
)


def power(base, exponent):
    return base**exponent


def texts(**item):
    return repr(item)


def pair(base, exponent):
    return base**exponent, base * exponent


def sums(base, exponent):
    return {"sum": base + exponent, "both": [base, exponent]}


def row(base, exponent):
    return np.full(3, base + exponent)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(axes=st.dictionaries(st.sampled_from("xyz"), values, min_size=1))
def test_all_combinations_are_computed_in_order(backend, axes):
    """Of any values the results are those of nested loops, in the shape of the grid."""
    items = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    assert list(grid(**axes)) == items
    results = parallel_map(texts, grid(**axes), backend=backend, progress=False)
    assert results.shape == tuple(map(len, axes.values()))
    assert results.ravel().tolist() == list(map(repr, items))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_the_shape_of_the_grid_and_its_coordinates(backend):
    items = grid(base=np.array([1.5, 2.5, 3.5]), exponent=range(2))
    powers = parallel_map(power, items, backend=backend)
    np.testing.assert_array_equal(powers, np.array([1.5, 2.5, 3.5])[:, None] ** np.arange(2))
    assert isinstance(powers, nbshare.SharedArray)
    assert list(powers.coords) == ["base", "exponent"]
    np.testing.assert_array_equal(powers.coords["base"], [1.5, 2.5, 3.5])
    assert parallel_map(row, items, backend=backend).shape == (3, 2, 3)


def test_items_are_made_when_they_are_needed():
    """A grid of any size takes no memory, and neither does its end."""
    items = grid(a=range(10**5), b=range(10**5), c=["x", "y"])
    assert len(items) == 2 * 10**10
    assert items[-1] == {"a": 10**5 - 1, "b": 10**5 - 1, "c": "y"}
    assert items[3:5] == [{"a": 0, "b": 1, "c": "y"}, {"a": 0, "b": 2, "c": "x"}]
    assert sys.getsizeof(items) < 1000
    with pytest.raises(IndexError):
        items[2 * 10**10]


def test_a_long_grid_runs_in_chunks():
    results = parallel_map(power, grid(base=range(1000), exponent=range(6)), progress=False)
    np.testing.assert_array_equal(results, np.arange(1000)[:, None] ** np.arange(6))


def test_out_has_the_shape_of_the_grid():
    out = np.zeros((2, 3))
    results = parallel_map(power, grid(base=[2, 3], exponent=[1, 2, 3]), out=out)
    assert out.tolist() == [[2, 4, 8], [3, 9, 27]]
    assert np.shares_memory(results, out)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        parallel_map(power, grid(base=[2, 3], exponent=[1, 2, 3]), out=out.T)
    with pytest.raises(ValueError, match="a part of a larger array"):
        parallel_map(power, grid(base=[2, 3], exponent=[1, 2, 3]), out=np.zeros((2, 4))[:, :3])


def test_stack_gives_a_grid_of_each_result():
    powers, products = parallel_map(pair, grid(base=[2, 3], exponent=[1, 2, 3]), out="stack")
    assert powers.tolist() == [[2, 4, 8], [3, 9, 27]]
    assert products.tolist() == [[2, 4, 6], [3, 6, 9]]


def test_list_gives_the_results_in_the_order_of_the_items():
    items = grid(base=[2, 3], exponent=[1, 2])
    assert parallel_map(power, items, out="list") == [power(**item) for item in items]


def test_failed_items_are_masked_in_the_grid():
    items = grid(base=[0, 2], exponent=[1, -1])
    results = parallel_map(power, items, on_error="return")
    assert results.mask.tolist() == [[False, True], [False, False]]
    assert results[1, 1] == 0.5


def test_an_error_names_the_parameters_of_its_item():
    with pytest.raises(ZeroDivisionError) as caught:
        parallel_map(power, grid(base=[2, 0], exponent=[1, -1]))
    assert "item 3 ({'base': 0, 'exponent': -1})" in caught.value.__notes__[-1]


def test_partial_results_have_the_shape_of_the_grid():
    job = map_async(power, grid(base=[2, 3], exponent=[1, 2]))
    assert job.wait()
    assert job.partial().tolist() == [[2, 4], [3, 9]]
    assert job.debug(3) == 9


def test_shared_objects_and_random_numbers_go_with_a_grid():
    def draw(scale, n, offsets, rng):
        return offsets[n] + scale * rng.normal()

    keywords = {"shared": {"offsets": np.arange(5.0)}, "seed": 4}
    items = grid(scale=[0.1, 1.0], n=range(5))
    found = [parallel_map(draw, items, max_workers=n, **keywords) for n in (1, 2)]
    np.testing.assert_array_equal(*found)


@pytest.mark.skipif(SYSTEM != "linux", reason="an executor as backend needs Linux")
def test_an_executor_as_backend_gets_the_items_by_name():
    with ThreadPoolExecutor(2) as pool:
        results = parallel_map(power, grid(base=[2, 3], exponent=[1, 2]), backend=pool)
    assert results.tolist() == [[2, 4], [3, 9]]


@pytest.mark.first
def test_an_extended_grid_runs_only_what_is_new(tmp_path):
    """With a checkpoint an item is known by its values, wherever it is in the grid."""
    log = tmp_path / "log"

    def noted(base, exponent):
        with log.open("a") as file:
            file.write(f"{base} {exponent}\n")
        return base**exponent

    def run(bases, exponents):
        log.write_text("")
        results = parallel_map(
            noted, grid(base=bases, exponent=exponents), checkpoint=tmp_path / "powers"
        )
        assert results.tolist() == [[b**e for e in exponents] for b in bases]
        return sorted(log.read_text().split("\n")[:-1])

    assert len(run([2, 3], [1, 2])) == 4
    assert run([2, 3], [1, 2]) == []
    assert run([2, 3, 4], [0, 1, 2]) == ["2 0", "3 0", "4 0", "4 1", "4 2"]


@NO_XARRAY
def test_xarray_gets_the_coordinates(tmp_path):
    items = grid(base=[2, 3], exponent=[1.0, 2.0])
    powers = parallel_map(power, items, out="xarray")
    assert powers.dims == ("base", "exponent")
    assert powers.sel(base=3, exponent=2.0) == 9
    assert powers.name == "power"
    both = parallel_map(sums, items, out="xarray")
    assert both["sum"].sel(base=3, exponent=1.0) == 4
    assert both["both"].shape == (2, 2, 2)
    parts = parallel_map(pair, items, out="xarray")
    assert set(parts) == {"pair_0", "pair_1"}


@NO_XARRAY
@pytest.mark.parametrize("func", [power, sums])
def test_xarray_has_gaps_where_items_failed(func):

    def failing(base, exponent):
        return func(base, exponent) if exponent > 0 else 1 // 0

    found = parallel_map(
        failing, grid(base=[2, 3], exponent=[0, 2]), out="xarray", on_error="return"
    )
    found = found if func is power else found["sum"]
    assert np.isnan(found.values).tolist() == [[True, False], [True, False]]
    assert found.sel(base=3, exponent=2) == func(3, 2) if func is power else 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: grid(), "at least one parameter"),
        (lambda: grid(base=5), r"grid\(base=5\) is not allowed"),
        (lambda: grid(base="abc"), r"grid\(base='abc'\) is not allowed"),
        (lambda: grid(base={"a": 1}), r"grid\(base={'a': 1}\) is not allowed"),
        (lambda: grid(base=np.zeros((2, 2))), "one-dimensional"),
        (lambda: parallel_map(power, grid(base=[1]), [2]), "pass it without other"),
        (lambda: parallel_map(power, grid(base=[1], z=[2])), "no parameter 'z'"),
        (lambda: parallel_map(power, grid(base=[1])), "missing a required argument"),
        (
            lambda: parallel_map(power, grid(base=[1], exponent=[2]), shared={"base": 1}),
            r"twice: in shared= and in grid\(\)",
        ),
    ],
)
def test_what_is_no_grid_is_refused(make, says):
    with pytest.raises(TypeError, match=says):
        make()


def test_xarray_needs_a_grid():
    with pytest.raises(ValueError, match="items of a grid"):
        parallel_map(math.sqrt, [1.0], out="xarray")


def test_a_partial_keeps_its_arguments():
    """Those by name and those by position, with every backend."""
    for backend in BACKENDS:
        by_name = parallel_map(partial(power, exponent=3), grid(base=[2, 3]), backend=backend)
        assert by_name.tolist() == [8, 27]
    by_place = parallel_map(partial(power, 2), grid(exponent=[1, 2]))
    assert by_place.tolist() == [2, 4]


def test_values_are_what_a_loop_gives():
    """Of a Series the elements, not those of its array, and of an array its own copy."""
    pd = pytest.importorskip("pandas")
    dates = pd.Series(pd.date_range("2024-01-01", periods=2))
    assert [item["day"] for item in grid(day=dates)] == list(dates)
    values = np.array([1.0, 2.0])
    items = grid(x=values)
    values[:] = 0
    items.coords["x"][:] = 0
    assert list(items) == [{"x": 1.0}, {"x": 2.0}]
    assert grid(x=[1, "auto"]).coords["x"].tolist() == [1, "auto"]


def test_a_grid_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="at most"):
        grid(a=range(10**10), b=range(10**10))


def ragged(base, exponent):
    return {"n": 1} if base == exponent else {"n": 2, "more": "text"}


@NO_XARRAY
def test_xarray_has_all_variables_of_all_dicts():
    found = parallel_map(ragged, grid(base=[1, 2], exponent=[1, 2]), out="xarray")
    assert found["n"].values.tolist() == [[1, 2], [2, 1]]
    assert found["more"].isnull().values.tolist() == [[True, False], [False, True]]
    assert found["more"].sel(base=1, exponent=2) == "text"


GAPS = [  # a result, and what is in its gaps
    (np.array(["a", "b"]), None),
    (2**53 + 1, None),
    (np.uint64(2**64 - 1), None),
    (7, np.nan),
    (np.datetime64("2020-01-01"), np.datetime64("NaT", "D")),
]


@NO_XARRAY
@pytest.mark.parametrize(("result", "gap"), GAPS)
@pytest.mark.parametrize("is_dict", [False, True])
def test_gaps_change_no_result(result, gap, is_dict):
    """Text does not get a question mark, and large integers are not rounded."""

    def some(x):
        return {"one": result} if is_dict else result

    def failing(x):
        return some(x) if x else 1 // 0

    found = parallel_map(failing, grid(x=[0, 1]), out="xarray", on_error="return")
    values = found["one"].values if is_dict else found.values
    np.testing.assert_array_equal(values[1], result)
    if gap is None:
        assert (found["one"] if is_dict else found).isnull()[0].all()
    else:
        np.testing.assert_array_equal(values[0], gap)


@NO_XARRAY
def test_a_variable_may_have_no_values():
    def nothing(x):
        return {"x": x, "none": None, "mixed": x or "zero"}

    found = parallel_map(nothing, grid(x=[0, 1]), out="xarray")
    assert found["none"].isnull().all()
    assert found["mixed"].values.tolist() == ["zero", 1]


def test_a_detached_run_has_the_shape_of_its_grid(tmp_path):
    job = map_async(
        power, grid(base=[2, 3], exponent=[1, 2]), checkpoint=tmp_path / "run", detach=True
    )
    assert job.result().tolist() == [[2, 4], [3, 9]]


@pytest.mark.parametrize(
    "axes",
    [
        {"base": np.linspace(0, 1, 3), "exponent": range(2)},
        {"base": [1, 2.5, np.inf], "exponent": np.arange(2, dtype="i2")},
        {"base": ["a", "b"], "exponent": [1]},
    ],
)
@pytest.mark.parametrize("out", [None, XARRAY])
def test_another_process_that_attaches_has_the_grid(tmp_path, axes, out):
    """It knows the folder alone."""
    func = times if isinstance(axes["base"][0], str) else power
    wanted = parallel_map(func, grid(**axes), checkpoint=tmp_path / "run", out=out)
    found = nbshare.attach(tmp_path / "run").result()
    np.testing.assert_array_equal(found, wanted)
    assert found.shape == (len(axes["base"]), len(axes["exponent"]))
    for name, values in grid(**axes).coords.items():
        np.testing.assert_array_equal(found.coords[name], values)
        assert np.asarray(found.coords[name]).dtype == values.dtype


@pytest.mark.parametrize("values", [[1, None], range(20_000)], ids=["objects", "many"])
def test_of_other_grids_it_has_the_results_one_by_one(tmp_path, values):
    parallel_map(pick, grid(a=values), checkpoint=tmp_path / "run")
    found = nbshare.attach(tmp_path / "run").result()
    assert not hasattr(found, "coords")
    assert len(found) == len(values)


def times(base, exponent):
    return base * exponent


def pick(a):
    return a is None


# -------------------------------------------------------------------- coarse first


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_coarse_first_has_every_item_once(lengths):
    axes = {f"p{k}": range(n) for k, n in enumerate(lengths)}
    ordered, plain = grid(order="coarse", **axes), grid(**axes)
    assert sorted(map(str, ordered)) == sorted(map(str, plain))
    assert (ordered.shape, len(ordered)) == (plain.shape, len(plain))


def test_the_first_items_are_far_apart():
    items = grid(order="coarse", x=range(64), y=range(32))
    for step in (16, 8, 4, 2):
        first = items[: (64 // step) * (32 // step)]
        assert {(item["x"], item["y"]) for item in first} == set(
            itertools.product(range(0, 64, step), range(0, 32, step))
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("out", [None, "stack", XARRAY])
def test_results_of_a_coarse_grid_are_those_of_the_plain_one(backend, out):
    axes = {"base": np.arange(1, 7.0), "exponent": np.arange(5)}
    func = both if out == "stack" else power
    found, plain = (
        parallel_map(func, grid(**axes, **more), out=out, backend=backend)
        for more in ({"order": "coarse"}, {})
    )
    np.testing.assert_array_equal(found, plain)
    if out is None:
        assert found.coords["base"].tolist() == plain.coords["base"].tolist()


def test_objects_of_a_coarse_grid_are_in_their_places():
    found = parallel_map(lambda a, b: (a, b), grid(order="coarse", a=["x", "y", "z"], b=range(4)))
    assert found[2, 3] == ("z", 3)
    assert found[1, 0] == ("y", 0)


def test_what_is_done_of_a_coarse_grid_is_in_its_place():
    axes = {"base": np.arange(1, 33.0), "exponent": np.arange(1, 33)}
    job = map_async(slow_power, grid(order="coarse", **axes), max_workers=2)
    for n, _ in enumerate(job):
        if n == 100:
            break
    job.cancel()
    job.wait()
    partial = job.partial()
    wanted = axes["base"][:, None] ** axes["exponent"]
    there = ~np.ma.getmaskarray(partial)
    assert there[::8, ::8].all()
    assert not there.all()
    np.testing.assert_allclose(partial[there], wanted[there])
    assert (job._present.reshape(there.shape) == there).all()


def test_a_coarse_grid_continues_in_a_checkpoint_and_another_process(tmp_path):
    axes = {"base": np.arange(4.0), "exponent": np.arange(4)}
    parallel_map(power, grid(**axes), checkpoint=tmp_path / "run")
    found = parallel_map(power, grid(order="coarse", **axes), checkpoint=tmp_path / "run")
    attached = nbshare.attach(tmp_path / "run").result()
    wanted = axes["base"][:, None] ** axes["exponent"]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(attached, wanted)


def test_order_may_be_a_parameter_and_other_words_are_refused():
    assert grid(order=[1, 2]).shape == (2,)
    with pytest.raises(ValueError, match="order='fine'"):
        grid(order="fine", a=[1])
    with pytest.raises(ValueError, match="coarse"):
        parallel_map(power, grid(order="coarse", base=[1.0], exponent=[1]), out=np.zeros((1, 1)))


def both(base, exponent):
    return base, base**exponent


def slow_power(base, exponent):
    time.sleep(0.005)
    return base**exponent
