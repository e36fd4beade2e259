"""What Tab offers in a real kernel."""

from __future__ import annotations

import pytest

import nbshare
from tests.support.kernels import listening


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Give a kernel that has imported nbshare."""
    yield from listening(tmp_path_factory, "page")


def offered(page, code):
    """Return what the kernel answers to Tab at the end of a code."""
    reply = page.client.complete(code, reply=True, timeout=60)["content"]
    start, end = reply["cursor_start"], reply["cursor_end"]
    return [code[:start] + match + code[end:] for match in reply["matches"]]


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ('parallel_map(f, range(3), plot="', ["hist", "image", "line"]),
        ('nbshare.parallel_map(f, [g(x) for x in "abc"], plot = "', ["hist", "image", "line"]),
        ("parallel_map(\n    f,\n    range(3),\n    plot='", ["hist", "image", "line"]),
        ('parallel_map(f, items, out="', ["list", "stack", "xarray"]),
        ('parallel_map(f, items, on_error="', ["raise", "return"]),
        ('job = map_async(f, items, on_error="', ["raise", "return"]),
        ('parallel_map(f, items, plot=nbshare.LivePlot("', ["hist", "image", "line"]),
        ('nbshare.LivePlot("line", reduction="', ["last", "max", "mean", "min", "sum"]),
        ('nbshare.Checkpoint("run.ckpt", durability="', ["power", "process"]),
    ],
)
def test_arguments_that_are_one_of_some_texts_are_completed(page, code, values):
    """By these texts and nothing else, such as files."""
    assert sorted(offered(page, code)) == [code + value for value in values]


def test_what_is_typed_already_counts(page):
    """Only values that begin so."""
    assert offered(page, 'parallel_map(f, range(3), plot="im') == [
        'parallel_map(f, range(3), plot="image'
    ]


@pytest.mark.parametrize("code", ['print(plot="', 'parallel_map(f, items)\nfind("', 'text = "'])
def test_other_texts_are_completed_as_ever(page, code):
    """Nothing of nbshare is offered there."""
    assert not {code + "line", code + "image"} & set(offered(page, code))


def test_imports_offer_public_names(page):
    """No inner modules; the same names as a dot after nbshare."""
    assert sorted(offered(page, "from nbshare import ")) == sorted(
        "from nbshare import " + name for name in nbshare.__all__
    )
    assert offered(page, "from nbshare import grid, paral") == [
        "from nbshare import grid, parallel_map"
    ]
