"""A kernel of CPython without the GIL. Nothing turns it on, and the progress display says so."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(
    getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has the GIL"
)


def test_nothing_turns_the_gil_on(page):
    """Neither the import, nor runs with plots, nor the kernel."""
    cell = page.run("""
import math
for backend in (None, "threads", "serial"):
    parallel_map(math.sqrt, range(9), plot="line", backend=backend)
assert not sys._is_gil_enabled()
""")
    assert cell.status == "ok", cell.traceback


@pytest.mark.parametrize(("backend", "is_told"), [(None, True), ("threads", False)])
def test_the_fold_of_the_progress_display_tells_of_threads(page, backend, is_told):
    """If processes run what threads could run on all CPUs."""
    page.html.clear()
    cell = page.run(f"results = parallel_map(abs, range(9), backend={backend!r})")
    assert cell.status == "ok", cell.traceback
    assert ("This Python has no GIL" in "".join(page.html)) == is_told
