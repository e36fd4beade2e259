"""Grids, groups, rows, tiles and reductions against a loop, interrupted and continued."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from nbshare._core.system import SYSTEM
from tests.support.grids import combined

pytest.importorskip("scipy", reason="SciPy is not installed")
from tests.support import shapes  # which needs it


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.first
@pytest.mark.parametrize(
    ("backend", "kind"), combined([None, "threads", "serial", "pool"], shapes.KINDS)
)
def test_an_interrupted_run_continues_to_what_a_loop_gives(backend, kind, pool):
    """And runs each item once that has no stored result."""
    if backend == "pool" and SYSTEM != "linux":
        pytest.skip("an executor as backend needs Linux")
    shapes.check(kind, pool if backend == "pool" else backend)
