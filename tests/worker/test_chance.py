"""A function that draws unseeded random numbers is told of, once. Others are not."""

from __future__ import annotations

import random
import time
import warnings
from functools import partial

import pytest

from nbshare import map_async, parallel_map
from nbshare._core.jobs import outcome
from nbshare._core.worker.chance import Draws
from nbshare.errors import UnseededWarning
from tests.support import draws


@pytest.fixture(autouse=True)
def _nothing_told():
    outcome._told_of_chance.clear()


OPTIONS = {"max_workers": 2, "chunksize": 1, "out": "list"}


@pytest.mark.parametrize("name", draws.MISUSES)
def test_a_misuse_is_told(name):
    if name in {"pandas", "scipy"}:
        pytest.importorskip(name)
    with pytest.warns(UnseededWarning, match=r"item \d+\b.*seed=1.*rng"):
        parallel_map(draws.MISUSES[name], range(8), **OPTIONS)


@pytest.mark.parametrize("name", draws.FINE)
def test_what_can_be_repeated_is_not(cold, name):
    parallel_map(draws.FINE[name], range(8), **OPTIONS)


def test_it_is_told_once_for_a_function():
    with pytest.warns(UnseededWarning):
        parallel_map(draws.shuffled, range(8), **OPTIONS)
    parallel_map(draws.shuffled, range(9), **OPTIONS)  # a warning would be an error


def test_functions_of_one_name_are_told_each():
    for func in (lambda i: random.random(), partial(lambda i: random.gauss(0, 1))):
        with pytest.warns(UnseededWarning, match="^<lambda> drew"):
            parallel_map(func, range(8), **OPTIONS)


def test_the_line_of_the_call_is_named():
    with pytest.warns(UnseededWarning) as told:
        parallel_map(draws.shuffled, range(8), **OPTIONS)
    assert told[0].filename == __file__


@pytest.mark.parametrize("take", [lambda job: job.result(), list])
def test_a_job_tells_it_where_its_results_are_taken(take):
    running = map_async(draws.shuffled, range(8), **OPTIONS)
    with pytest.warns(UnseededWarning):
        take(running)


def test_many_tiny_items_are_named_together():
    with pytest.warns(UnseededWarning, match=r"one of items 0 to \d\d+"):
        parallel_map(draws.shuffled, range(5000), max_workers=1, chunksize=1000)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_in_this_process_the_callers_own_seed_counts(backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_map(draws.shuffled, range(8), backend=backend)


def test_a_look_takes_a_few_microseconds():
    look = Draws()
    look.note()
    best_s = min(_times(look))
    assert best_s < 3e-6 * 5  # with a margin for a busy machine


def _times(look, n=200):
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(n):
            look.note()
            look.may_be()
        yield (time.perf_counter() - began) / n
