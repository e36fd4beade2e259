"""Functions and items of the wrong shape are answered with how nbshare uses them."""

from __future__ import annotations

import math
import operator
import pdb
import statistics

import numpy as np
import pytest

from nbshare import LivePlot, errors, last_job, map_async, parallel_map, register_type

XS = [1.0, 2.0, 3.0]
REDUCE = "reduce= calls reduce(a, b)"
REFUSED = [
    ({"reduce": sum}, REDUCE),
    ({"reduce": np.sum}, REDUCE),
    ({"reduce": np.mean}, REDUCE),
    ({"reduce": np.stack}, REDUCE),
    ({"reduce": len}, REDUCE),
    ({"reduce": math.fsum}, REDUCE),
    ({"reduce": statistics.mean}, REDUCE),
    ({"reduce": lambda results: sum(results)}, REDUCE),
    ({"until": lambda: True}, "until= calls until(partial)"),
    ({"until": lambda value: True, "reduce": max}, "until= calls until(value, n)"),
    ({"plot": lambda partial: None}, "plot= calls plot(ax, partial)"),
    ({"plot": ["line", lambda: None]}, "plot= calls plot(ax, partial)"),
]
TAKEN = [
    ({"reduce": max}, 3.0),
    ({"reduce": np.add}, 6.0),
    ({"reduce": operator.add}, 6.0),
    ({"reduce": lambda a, b=0: a + b}, 6.0),
    ({"reduce": lambda *both: sum(both)}, 6.0),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_a_function_of_the_wrong_shape_names_the_option_and_its_call(options, said):
    """Before any item runs, also for functions that would take two arguments as something else."""
    with pytest.raises(TypeError) as caught:
        parallel_map(math.sqrt, XS, **options)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(("options", "result"), TAKEN)
def test_a_function_that_takes_two_results_is_called(options, result):
    assert parallel_map(float, XS, **options) == result


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: LivePlot(value=lambda: 0), "value= calls value(result)"),
        (lambda: map_async(abs, [1]).add_done_callback(lambda: 0), "calls function(job)"),
        (lambda: register_type(operator.itemgetter, lambda: 0), "calls reduce(obj)"),
    ],
)
def test_functions_of_other_calls_are_checked_too(call, said):
    with pytest.raises(TypeError, match=r".*calls .*") as caught:
        call()
    assert said in str(caught.value)


def test_plots_of_pyplot_are_refused():
    """They would draw into a figure of their own."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with pytest.raises(TypeError, match=r"plot=lambda ax, partial: ax\.plot"):
        parallel_map(math.sqrt, XS, plot=pyplot.plot)


def test_an_error_in_reduce_says_how_it_was_called():
    with pytest.raises(TypeError) as caught:
        parallel_map(float, XS, reduce=lambda a, b: a + "b")
    assert "(a, b) with two results" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("backend", [None, "serial"])
@pytest.mark.parametrize(
    "func", [lambda x: x.v, lambda x: x["v"], lambda x: x + 1, lambda x: x * 2.0]
)
def test_a_pair_that_is_used_as_its_part_is_named(func, backend):
    """Items of `enumerate`, `zip` and the rows of a table by ``iterrows``."""
    with pytest.raises((TypeError, AttributeError)) as caught:
        parallel_map(func, enumerate(XS), backend=backend)
    assert "nbshare.rows(df)" in "".join(caught.value.__notes__)


def broken_into(x):
    breakpoint()
    return x


def traced(x):
    pdb.set_trace()
    return x


@pytest.mark.parametrize("func", [broken_into, traced])
@pytest.mark.usefixtures("cold", "capfd")  # from Python 3.14 on a process has one, which ends once
def test_a_debugger_in_a_worker_says_where_it_can_be_used(func):
    """The error of its end would end a cell of IPython without a word."""
    with pytest.raises(errors.TaskError, match=r"last_job\(\).debug\(i\), or .* backend='serial'"):
        parallel_map(func, [1, 2])
    assert isinstance(last_job().errors[0], errors.TaskError)
    assert "bdb.py" not in "".join(last_job().errors[0].__notes__)


class TwoParts(Exception):
    """Its pickle lacks an argument."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raises_two_parts(x):
    raise TwoParts(x, 2)


def test_an_error_that_loses_its_type_says_why():
    with pytest.raises(errors.TaskError) as caught:
        parallel_map(raises_two_parts, [1])
    notes = "".join(caught.value.__notes__)
    assert "type is not kept" in notes
    assert "missing 1 required positional argument: 'b'" in notes


def test_an_item_that_fails_in_all_attempts_says_how_many():
    with pytest.raises(ValueError, match=r"math domain error|nonnegative") as caught:
        parallel_map(math.sqrt, [-1.0], retries=2)
    assert "in each of 3 attempts (retries=2)" in "".join(caught.value.__notes__)


def adds(i, array):
    return array + np.zeros(5)


def test_an_error_of_a_shared_array_has_no_frame_of_ours():
    """It is that of the same operation on a plain array."""
    from nbshare import share

    with pytest.raises(ValueError, match="broadcast") as caught:
        parallel_map(adds, [1], shared={"array": share(np.ones(3))})
    notes = "".join(caught.value.__notes__)
    assert "in adds" in notes
    assert "nbshare/_core" not in notes
