"""The output of a cell that ends with one of nbshare's objects."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import nbshare


def test_an_executor_tells_its_workers_and_tasks():
    """How many workers it may use, and what is not done yet."""
    with nbshare.Executor(3) as executor:
        executor.submit(abs, -1).result()
        assert repr(executor) == "<Executor: max_workers=3, 0 tasks not done>"


def test_a_number_of_1_is_no_plural():
    """Of slots and bytes, as of all that is counted in a message."""
    assert repr(nbshare.RingBuffer(1, 3)) == "<RingBuffer of 1 slot of (3,) float64, 0 queued>"
    assert repr(nbshare.SharedBuffer(1)) == "<SharedBuffer of 1 byte>"


def test_a_shared_object_tells_its_type_and_size():
    """Also one that came from another process."""
    wrapped = nbshare.share({"a": np.zeros(10_000)}, wrap=True)
    (shown,) = nbshare.parallel_map(repr, [wrapped])
    assert (
        repr(wrapped) == shown == f"<SharedObject: dict, {wrapped.nbytes:,} bytes in shared memory>"
    )
    assert wrapped.nbytes >= 80_000


def test_a_plot_tells_what_was_given():
    """The call that makes it, without what is the default."""
    plot = nbshare.LivePlot("image", label="height", unit="m", interval_s=1)
    assert repr(plot) == "LivePlot('image', label='height', unit='m', interval_s=1.0)"
    assert repr(nbshare.LivePlot()) == "LivePlot('line')"


def test_completion_offers_the_public_names_only():
    """``nbshare.<Tab>``, and that of its modules for users, whatever has been imported."""
    assert set(dir(nbshare)) == {*nbshare.__all__, "__version__"}
    assert dir(nbshare.errors) == nbshare.errors.__all__
    assert dir(nbshare.types) == nbshare.types.__all__


@pytest.mark.parametrize("module", ["nbshare", "nbshare.errors", "nbshare.types"])
def test_completion_of_an_import_offers_the_public_names_only(module, monkeypatch, tmp_path):
    """And, as for any package, its submodules and the names that Python gives to a module."""
    from IPython.core.completer import IPCompleter, provisionalcompleter

    jedi = pytest.importorskip("jedi")
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))
    text = f"from {module} import "
    with provisionalcompleter():
        offered = {each.text for each in IPCompleter().completions(text, len(text))}
    ours = {name for name in offered if name[0] != "_"}
    assert ours == {*importlib.import_module(module).__all__}


JOB = """
add_done_callback cancel cancelled debug done elapsed_s errors exception explore in_order label
last_prints n_done n_items n_workers partial present result running stages state stats wait
"""


def test_completion_of_a_job_offers_what_users_call():
    """``job.<Tab>`` offers a Future's methods, how far it is, and what is there."""
    job = nbshare.map_async(abs, [-1, 2])
    assert {name for name in dir(job) if name[0] != "_"} == set(JOB.split())


def test_the_stats_of_a_job_are_a_table_in_a_notebook():
    """A row for each worker, the slowest items named, and in a script a list."""
    job = nbshare.map_async(abs, [-1, 2], max_workers=1)
    job.wait()
    assert [worker.n_items for worker in job.stats] == [2]
    table = job.stats._repr_html_()
    assert table.count("<tr>") == 2
    assert "<th>worker</th><th>items</th>" in table
    assert "item 1" in table
