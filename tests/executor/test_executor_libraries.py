"""Libraries that take an executor or a pool, unchanged, on nbshare's workers."""

from __future__ import annotations

import inspect
import math
import operator
from concurrent import futures

import joblib
import numpy as np
import pytest
from tqdm import tqdm
from tqdm.contrib import concurrent as tqdm_concurrent

from nbshare import Executor, register_joblib
from nbshare._core.system import processes
from tests.support import figures
from tests.support import pool_tasks as tasks

register_joblib()


@pytest.fixture(scope="module")
def executor():
    with Executor(2) as executor:
        yield executor


def test_libraries_read_what_other_executors_have():
    """Names with an underscore too, in each state."""
    with Executor(3, initializer=math.sqrt, initargs=(4.0,)) as executor:
        with futures.ProcessPoolExecutor(3, initializer=math.sqrt, initargs=(4.0,)) as standard:
            names = ("_max_workers", "_initializer", "_initargs", "_broken", "_shutdown_thread")
            for name in names:
                assert getattr(executor, name) == getattr(standard, name), name
        assert not executor._shutdown
        assert executor._mp_context.get_start_method() == "spawn"
        for name in ("kill_workers", "terminate_workers"):
            assert callable(getattr(executor, name))
    assert executor._shutdown
    assert executor._shutdown_thread
    for name in ("map", "submit", "shutdown"):
        theirs = inspect.signature(getattr(futures.ProcessPoolExecutor, name)).parameters
        assert set(theirs) <= set(inspect.signature(getattr(Executor, name)).parameters)


def test_what_an_executor_cannot_have_is_said(executor):
    """With what to do. Code that asks whether it is there learns that it is not."""
    for name, remedy in {
        "_processes": r"terminate_workers\(\)",
        "_threads": r"terminate_workers\(\)",
        "_pending_work_items": r"future.running\(\)",
        "_work_queue": r"future.running\(\)",
        "_unknown": "an Executor has no attribute '_unknown'",
    }.items():
        assert not hasattr(executor, name)
        with pytest.raises(AttributeError, match=remedy):
            getattr(executor, name)


@pytest.mark.parametrize("scheduler", [None, "threads", "processes"])
def test_dask_schedulers(executor, scheduler):
    """`dask.config.set(pool=)` runs a graph on its workers."""
    dask = pytest.importorskip("dask")
    parts = [dask.delayed(math.sqrt)(i) for i in range(20)]
    with dask.config.set(pool=executor, **({"scheduler": scheduler} if scheduler else {})):
        assert dask.delayed(sum)(parts).compute() == sum(map(math.sqrt, range(20)))


def test_emcee(executor):
    """`emcee.EnsembleSampler(pool=)` walks as it does without a pool."""
    emcee = pytest.importorskip("emcee")

    def chain(pool):
        np.random.seed(1)  # noqa: NPY002 - that is what it draws from
        sampler = emcee.EnsembleSampler(8, 2, tasks.log_probability, pool=pool)
        sampler.run_mcmc(np.random.default_rng(0).normal(size=(8, 2)), 5)
        return sampler.get_chain()

    np.testing.assert_array_equal(chain(executor), chain(None))


def test_dynesty(executor):
    """`dynesty.NestedSampler(pool=, queue_size=)` finds the evidence."""
    dynesty = pytest.importorskip("dynesty")
    sampler = dynesty.NestedSampler(
        tasks.log_probability,
        tasks.to_cube,
        2,
        nlive=50,
        pool=executor,
        queue_size=2,
        rstate=np.random.default_rng(0),
    )
    sampler.run_nested(dlogz=0.5, print_progress=False)
    # The integral of the Gaussian over the square, of which all but nothing lies within.
    expected = math.log(2 * math.pi / 100)
    assert abs(sampler.results.logz[-1] - expected) < 5 * sampler.results.logzerr[-1]


def test_scipy_optimize(executor):
    """`differential_evolution` and `brute` find what they find with the built-in map."""
    from scipy import optimize  # late, as every process of the test run collects this file

    def evolved(workers):
        return optimize.differential_evolution(
            tasks.rosenbrock,
            [(-2, 2)] * 2,
            workers=workers,
            updating="deferred",
            maxiter=5,
            polish=False,
            rng=1,
        )

    found, expected = evolved(executor.map), evolved(map)
    np.testing.assert_array_equal(found.x, expected.x)
    assert found.nfev == expected.nfev
    grid = [
        optimize.brute(tasks.rosenbrock, ((-2, 2),) * 2, Ns=9, finish=None, workers=workers)
        for workers in (executor.map, map)
    ]
    np.testing.assert_array_equal(*grid)


def test_scipy_quad_vec(executor):
    """`quad_vec` integrates the same."""
    from scipy import integrate  # late, as above

    found, error = integrate.quad_vec(tasks.oscillation, 0, 1, workers=executor.map)
    np.testing.assert_allclose(found, [(1 - math.cos(30)) / 30, 0.5], atol=10 * error)


def test_tqdm(executor):
    """A bar of tqdm wraps its map, and takes the class where it takes concurrent.futures' own."""
    found = list(tqdm(executor.map(abs, range(9)), total=9, disable=True))
    assert found == list(range(9))
    # As `process_map` and `thread_map` do, but for the lock of processes that share a terminal.
    found = tqdm_concurrent._executor_map(
        _WithoutLock, abs, range(9), max_workers=2, chunksize=2, disable=True
    )
    assert found == list(range(9))


class _WithoutLock(Executor):
    def __init__(self, max_workers, initializer, initargs):
        super().__init__(max_workers)


# -------------------------------------------------------------------------------- joblib


def test_joblib_runs_on_its_workers():
    """`Parallel` gives the results in order, from other processes, as lists and generators."""
    calls = [joblib.delayed(math.sqrt)(i) for i in range(200)]
    expected = [math.sqrt(i) for i in range(200)]
    with joblib.parallel_config("nbshare", n_jobs=2):
        assert joblib.Parallel()(calls) == expected
        assert list(joblib.Parallel(return_as="generator")(calls)) == expected
        unordered = joblib.Parallel(return_as="generator_unordered", batch_size=7)(calls)
        assert sorted(unordered) == expected
        pids = joblib.Parallel()(joblib.delayed(tasks.pid)(i) for i in range(20))
    assert tasks.pid() not in pids
    assert joblib.Parallel(n_jobs=1, backend="nbshare")([joblib.delayed(tasks.pid)()]) == [
        tasks.pid()
    ]


def test_joblib_raises_and_goes_on():
    """A failing task ends the call with its own exception. The next call works."""
    calls = [joblib.delayed(operator.truediv)(1, i % 10) for i in range(1, 100)]
    with joblib.parallel_config("nbshare", n_jobs=2):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                joblib.Parallel()(calls)
            assert joblib.Parallel()(calls[:9]) == [1 / i for i in range(1, 10)]
        with pytest.raises(ValueError, match="n_jobs == 0"):
            joblib.Parallel(n_jobs=0)([])


def test_joblib_places_large_arrays_once():
    """An array of a megabyte is shared by all tasks, also by name. A small one is as it was."""
    large, small = np.ones(1 << 18), np.ones(9)
    parallel = joblib.Parallel(n_jobs=2, backend="nbshare")
    found = parallel(joblib.delayed(tasks.mean_of)(large, i=i) for i in range(20))
    assert found == [(1.0 + i, True) for i in range(20)]
    assert parallel([joblib.delayed(tasks.mean_of)(i=1, array=large)]) == [(2.0, True)]
    assert parallel([joblib.delayed(tasks.mean_of)(small, 1)] * 2) == [(2.0, False)] * 2


@pytest.mark.parametrize("backend", [None, "nbshare"])
def test_joblib_within_a_task_runs_there(backend):
    """Parallel within a task starts nothing, also if it names the backend."""
    parallel = joblib.Parallel(n_jobs=2, backend="nbshare")
    calls = [joblib.delayed(tasks.inner_parallel)(3, backend) for _ in range(4)]
    for pids, own in parallel(calls):
        assert pids == [own] * 3


def test_joblib_initializes_its_workers():
    """`initializer=` and `initargs=` are heeded in a call and in a context. The last one counts."""
    calls = [joblib.delayed(tasks.get_state)(i) for i in range(8)]
    given = {"backend": "nbshare", "n_jobs": 2, "initializer": tasks.set_state}
    assert joblib.Parallel(**given, initargs=("call",))(calls) == ["call"] * 8
    with joblib.parallel_config(**given, initargs=("context",)):
        assert joblib.Parallel()(calls) == ["context"] * 8
    assert joblib.Parallel(**given, initargs=("call",))(calls) == ["call"] * 8


def test_joblib_limits_the_threads_of_its_workers(monkeypatch):
    """`inner_max_num_threads=` counts more than the environment, and for its calls only."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    calls = [joblib.delayed(figures.blas_threads)(i) for i in range(4)]
    with joblib.parallel_config("nbshare", n_jobs=2, inner_max_num_threads=3):
        assert joblib.Parallel()(calls) == [(3, "3")] * 4
    with joblib.parallel_config("nbshare", n_jobs=2):
        assert joblib.Parallel()(calls) == [(2, "2")] * 4


def test_joblib_uses_all_cpus_by_default():
    """Without `n_jobs=` as with -1, also in a context."""
    assert joblib.Parallel(backend="nbshare").n_jobs == -1
    with joblib.parallel_config("nbshare"):
        assert joblib.Parallel().n_jobs == -1
        assert joblib.effective_n_jobs() == processes.usable_cpus()


def test_scikit_learn():
    """A grid search and a forest give what they give on one CPU."""
    pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification  # late, as above
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = make_classification(200, 8, random_state=0)

    def fitted(n_jobs):
        search = GridSearchCV(SVC(), {"C": [0.1, 1, 10]}, cv=3, n_jobs=n_jobs).fit(x, y)
        forest = RandomForestClassifier(10, random_state=0, n_jobs=n_jobs).fit(x, y)
        return search.cv_results_["mean_test_score"], forest.predict_proba(x)

    with joblib.parallel_config("nbshare"):
        found = fitted(2)
    for one, other in zip(found, fitted(1), strict=True):
        np.testing.assert_array_equal(one, other)
