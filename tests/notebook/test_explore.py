"""`explore` in a real kernel, and what it refuses; the browser sees the rest."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Kernel

import nbshare

MAPS = np.random.default_rng(1).random((6, 20, 30))


@pytest.mark.parametrize(
    ("results", "options", "error", "message"),
    [
        ([MAPS[0]], {}, TypeError, "these are a list"),
        (np.arange(5), {}, TypeError, "single values"),
        (MAPS[:0], {}, ValueError, "nothing to show"),
        (MAPS, {"axes": {"a": [1, 2], "b": [1, 2]}}, ValueError, "2 × 2 values"),
        (MAPS, {"kind": "pie"}, ValueError, "kind='pie'"),
        (MAPS, {"plot": "image"}, TypeError, "pass a LivePlot"),
        (np.zeros((2, 3, 4, 5)), {}, ValueError, "kind= is needed"),
    ],
)
def test_what_cannot_be_explored_is_refused(results, options, error, message):
    """With what to do, before anything is drawn."""
    with pytest.raises(error, match=message):
        nbshare.explore(results, **options)


def test_outside_of_a_notebook_a_sentence_says_what_to_do():
    """And the script goes on."""
    with pytest.warns(nbshare.errors.DisplayWarning, match="call it in a cell"):
        nbshare.explore(MAPS)


def test_the_picture_is_there_when_the_cell_ends(lab):
    """In a kernel: of an image, of a line, and of the first place of a grid, with its values."""
    kernel = Kernel(lab)
    try:
        kernel.run_well("maps = np.random.default_rng(1).random((6, 20, 30))")
        image = kernel.run_well("nbshare.explore(maps)")
        assert "image/png" in image.mimetypes
        assert image.rows[-1] == "result: item 0"
        line = kernel.run_well("nbshare.explore(maps[:, 0], kind='hist')")
        assert line.rows[-1] == "result: item 0"
        code = "nbshare.explore(maps, axes={'azimuth': [0, 120.5], 'height': ['a', 'b', 'c']})"
        assert kernel.run_well(code).rows[-1] == "result: azimuth = 0, height = a"
    finally:
        kernel.close()
