"""How much land a fire lookout sees: what the workers compute.

The map is that of [terrain.py](terrain.py): heights in metres, row 0 is the north edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STEP_M = 40.0  # along a line of sight
REACH_M = 12_000.0  # farther away, nobody sees smoke


def seen(
    row: int,
    column: int,
    elevation: Array,
    dx: Array,
    dy: float,
    tower: float = 20.0,
    n: int = 150,
    *,
    rng: np.random.Generator,
) -> float:
    """
    Return how much land a person on a tower sees, in km².

    Parameters
    ----------
    row, column : int
        The place of the tower.
    elevation : ndarray, (rows, columns)
        Heights in metres.
    dx : ndarray, (rows, 1)
        Width of the cells of each row, in metres.
    dy : float
        Height of a cell, in metres.
    tower : float
        Height of the tower, in metres.
    n : int
        Number of directions to look, at random.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        If the place is outside the map.
    """
    rows, columns = elevation.shape
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"row {row}, column {column} is outside a map of {rows} × {columns} cells")
    azimuth = rng.uniform(0, 2 * np.pi, (n, 1))
    distance = np.arange(STEP_M, REACH_M + STEP_M, STEP_M)
    r = np.rint(row - distance * np.cos(azimuth) / dy).astype(np.intp)
    c = np.rint(column + distance * np.sin(azimuth) / dx[row]).astype(np.intp)
    is_on_map = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)
    ground = elevation[r.clip(0, rows - 1), c.clip(0, columns - 1)]
    slope = (ground - (elevation[row, column] + tower)) / distance
    is_seen = is_on_map & (slope >= np.maximum.accumulate(slope, axis=1))
    ring = 2 * np.pi * distance * STEP_M  # m², of the whole circle
    return float((is_seen.mean(axis=0) * ring).sum() / 1e6)
