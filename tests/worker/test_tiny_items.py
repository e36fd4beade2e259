"""Tiny items run many together, and are as right as any other."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import SharedArray, last_job, map_async, parallel_map
from nbshare._core.worker.work import Work
from nbshare.errors import (
    MixedResultsWarning,
    TaskError,
)
from tests.support import objects, policies
from tests.support.grids import combined
from tests.support.outcomes import BACKENDS, MANY, backends, runs, said

SOME = 6_000  # where each one is looked at


# ------------------------------------------------------------------------- tiny items


@pytest.mark.parametrize("kind", policies.KINDS)
def test_tiny_items_give_exactly_what_the_function_returns(kind):
    """Results that are stored together are those of the built-in map, in value and class."""
    values = [policies.give(i, kind) for i in range(SOME)]
    result = parallel_map(policies.give, range(SOME), shared={"kind": kind}, out="list")
    assert list(map(facts, result)) == list(map(facts, values))


def test_tiny_items_give_objects_with_all_their_attributes():
    """NumPy's own pickle of a subclass of ndarray omits them, for results stored together too."""
    result = parallel_map(objects.small_labelled, range(SOME))
    assert [each["array"].label for each in result] == [f"{i}" for i in range(SOME)]


def facts(value):
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.tolist()
    return type(value), value


@pytest.mark.parametrize("kind", [k for k in policies.KINDS if k not in ("str", "tuple")])
def test_tiny_items_give_one_array_or_a_list(kind):
    """One array comes where every value survives in it, else the values themselves."""
    values = [policies.give(i, kind) for i in range(SOME)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = parallel_map(policies.give, range(SOME), shared={"kind": kind})
    if isinstance(result, SharedArray):
        assert not caught
        assert result.dtype == np.result_type(*{np.asarray(v).dtype for v in values})
        np.testing.assert_array_equal(result, np.array(values))
    else:
        assert [w.category for w in caught] == [MixedResultsWarning]
        assert [type(v) for v in result] == [type(v) for v in values]
        assert result == values


UNEVEN = {"int, then float, then str", "int, then 2**63 + 1", "int, then -2**64", "int, then None"}


@pytest.mark.parametrize("kind", sorted(UNEVEN))
def test_tiny_items_that_fit_no_array_are_a_list(kind):
    """A value in the middle that no array can hold with the others loses no work."""
    with pytest.warns(MixedResultsWarning):
        result = parallel_map(policies.give, range(MANY), shared={"kind": kind})
    assert result == [policies.give(i, kind) for i in range(MANY)]


@backends
@pytest.mark.parametrize(
    ("task", "out"),
    [
        (policies.give_same_array, None),
        (policies.give_same_array, "list"),
        (policies.give_same_list, None),
        (policies.give_same_scalar, None),
    ],
    ids=["array", "array to list", "list", "0-d array"],
)
def test_a_function_may_use_one_object_for_all_its_results(backend, task, out):
    """A result is what was returned for its item, also if the next item changes that object."""
    result = parallel_map(task, range(MANY), out=out, max_workers=1, backend=backend)
    assert [np.ravel(value)[0] for value in result] == list(range(MANY))


@backends
def test_a_function_may_use_one_dict_for_all_its_results(backend):
    """Also where what changes is an object in it."""
    options = {"max_workers": 1, "backend": backend}
    result = parallel_map(policies.give_same_dict, range(MANY), **options)
    assert result == [{"i": i, "also": "it"} for i in range(MANY)]
    result = parallel_map(policies.give_same_nested, range(MANY), **options)
    assert result == [{"i": [i]} for i in range(MANY)]
    result = parallel_map(policies.give_dict_of_same_array, range(MANY), **options)
    assert [each["array"][0] for each in result] == list(range(MANY))


STEPS = st.one_of(
    st.tuples(st.sampled_from(sorted(policies.REUSED)), st.sampled_from(sorted(policies.AROUND))),
    st.tuples(st.sampled_from(sorted(policies.PLAIN)), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(STEPS, min_size=1, max_size=6), backend=st.sampled_from(BACKENDS))
def test_results_are_what_was_returned_whatever_the_function_keeps(plan, backend):
    """Any mixture of plain results and of objects that the function changes and returns again."""
    expected = [repr(policies.reuse(i, plan)) for i in range(1_000)]
    options = {"max_workers": 1, "out": "list", "backend": backend}
    result = parallel_map(policies.reuse, range(1_000), shared={"plan": plan}, **options)
    assert list(map(repr, result)) == expected


@pytest.mark.parametrize(
    ("took_s", "item_s"),
    [(0.001, 1e-6), (0.01, 2e-6), (0.04, 2e-6), (0.2, 2e-4)],
    ids=["no pause", "a pause", "a long pause", "slow items"],
)
def test_a_pause_of_the_system_leaves_items_tiny(took_s, item_s):
    """If the system pauses a worker for some ms, the next items still run many together."""
    work = Work.__new__(Work)
    work._item_s = 1e-6
    work._note_time(1_000, int(took_s * 1e9))
    assert work._item_s == pytest.approx(item_s)


@backends
def test_one_key_that_cannot_be_loaded_costs_no_other_result(backend):
    """Keys of any class go with their dict alone, not with those of the items next to it."""
    bad = MANY // 2
    result = parallel_map(
        policies.give_keyed, range(MANY), shared={"bad": bad}, on_error="return", backend=backend
    )
    assert [i for i, each in enumerate(result) if isinstance(each, TaskError)] == [bad]
    assert all([*each.values()] == [i] for i, each in enumerate(result) if i != bad)


@backends
@pytest.mark.parametrize("bad", [0, 4_500, MANY - 1])
def test_a_failing_tiny_item_is_named(backend, bad):
    """An exception among thousands of items that run together names the right one."""
    with pytest.raises(ValueError, match=f"no way on at {bad}") as caught:
        parallel_map(
            policies.fail_some, range(MANY), shared={"bad": {bad}}, max_workers=1, backend=backend
        )
    assert f"item {bad}" in said(caught.value)
    assert np.flatnonzero(last_job().present).tolist() == list(range(bad))


@backends
@pytest.mark.parametrize("bad", [0, 4_500])
def test_stop_iteration_is_that_items_error(backend, bad):
    """StopIteration raised by the function fails its item, as itself, and ends nothing quietly.

    Among tiny items, which `map` runs, its arguments are lost.
    """
    with pytest.raises(StopIteration) as caught:
        parallel_map(
            policies.stop_at, range(MANY), shared={"bad": bad}, max_workers=1, backend=backend
        )
    assert f"item {bad}" in said(caught.value)
    assert bad or caught.value.args == ("that is all",)


@backends
def test_stop_iteration_can_be_returned(backend):
    """The items after one that raised StopIteration are run."""
    result = parallel_map(
        policies.stop_at,
        range(MANY),
        shared={"bad": 4_500},
        max_workers=1,
        on_error="return",
        backend=backend,
    )
    assert np.flatnonzero(result.mask).tolist() == [4_500]
    assert result.compressed().tolist() == [i for i in range(MANY) if i != 4_500]


@backends
def test_tiny_items_after_a_failure_are_not_run(backend, tally):
    """With ``on_error="raise"`` a worker begins no item after the one that failed."""
    shared = {"tally": tally, "bad": {4_500}, "ways": ["raise"]}
    with pytest.raises(ValueError, match="4500"):
        parallel_map(policies.attempt, range(MANY), shared=shared, max_workers=1, backend=backend)
    assert runs(tally, MANY) == [1] * 4_501 + [0] * (MANY - 4_501)


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_each_tiny_item_is_run_once(backend, on_error, tally):
    """Nothing is run twice because something next to it failed or did not fit."""
    bad = {5, 4_500, 4_501, MANY - 1} if on_error == "return" else ()
    shared = {"tally": tally, "bad": bad, "ways": ["raise"]}
    parallel_map(policies.attempt, range(MANY), shared=shared, on_error=on_error, backend=backend)
    assert runs(tally, MANY) == [1] * MANY


def test_no_item_is_claimed_twice():
    """By workers that claim thousands of chunks at the same time."""
    job = map_async(abs, range(20_000), chunksize=1, max_workers=4)
    assert job.result().tolist() == list(range(20_000))
    assert sum(worker.n_items for worker in job.stats) == 20_000


FACTORS = {"f4": 1, "f8": 1, "c16": 0.5, ">f8": 0.5, "f2": 0.0}


@pytest.mark.parametrize(
    ("dtype", "backend", "make"),
    combined(FACTORS, [None, "serial", "threads"], [np.zeros, nbshare.zeros]),
)
def test_tiny_items_fill_a_given_array_of_another_dtype(backend, make, dtype):
    """Values are cast to the dtype of ``out=`` as NumPy would."""
    out, factor = make(SOME, dtype), FACTORS[dtype]
    result = parallel_map(
        policies.scaled, range(SOME), shared={"factor": factor}, out=out, backend=backend
    )
    assert result is out
    np.testing.assert_array_equal(out, (np.arange(SOME) * factor).astype(dtype))


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("bad", [{700}, {700, 701, 702, 1500}, {1999}], ids=len)
def test_of_short_items_the_deadly_one_is_known(retries, bad, tally):
    """It runs as often as `retries` allows, though it runs in a batch, and no other one fails."""
    n = 2_000
    result = parallel_map(
        policies.attempt_slowly,
        range(n),
        shared={"tally": tally, "bad": bad, "ways": ["die"] * 3},
        retries=retries,
        on_error="return",
        max_workers=2,
        out="list",
    )
    found = [i for i, text in enumerate(result) if text != f"item {i:.1f}"]
    assert found == sorted(bad)
    assert set(last_job().errors) == bad
    assert all(last_job().errors[i].index == i for i in bad)
    n_runs = runs(tally, n)
    assert [n_runs[i] for i in sorted(bad)] == [retries + 1] * len(bad)
    assert min(n_runs) == 1
