"""The offers of Tab in a real kernel."""

from __future__ import annotations

import pytest
from jupyter_client.manager import start_new_kernel

import nbshare


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


@pytest.fixture(params=[True, False], ids=["jedi", "no jedi"])
def fresh(request):
    """Give a client of a kernel that has imported nothing yet."""
    options = [f"--IPCompleter.use_jedi={request.param}"]
    manager, client = start_new_kernel(kernel_name="python3", extra_arguments=options)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_the_first_import_offers_public_names(fresh):
    """Other offers begin with an underscore."""
    names = fresh.complete("from nbshare import ", reply=True, timeout=60)["content"]["matches"]
    assert {name for name in names if not name.startswith("_")} == set(nbshare.__all__)
