"""How much of the sky a landscape hides.

The functions that the workers run, in a plain module file with NumPy only, and nothing about
parallelism. Each can be called, tested and debugged by itself, in any process.

Elevations are in metres, row 0 is the north edge of the map and column 0 its west edge. Azimuths
are in degrees clockwise from north, so 0 is north and 90 is east.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEP_M = 40.0  # half a cell of the map, so that no ridge is stepped over
REACH_M = 12_000.0  # beyond it, even the highest peak of this map stands less than 4.1 degrees high


def load() -> tuple[Array, Array, float]:
    """Load the map of the Jacksboro fault in Tennessee, a sample file of matplotlib.

    Returns
    -------
    elevation : ndarray of float32, shape (344, 403)
        Height of each cell in metres. Row 0 is the north edge.
    dx : ndarray of float64, shape (344, 1)
        Width of the cells of each row, in metres. They are narrower towards the pole.
    dy : float
        Height of a cell, from north to south, in metres.
    """
    from matplotlib import cbook  # here, because the workers do not need it

    with np.load(cbook.get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as data:
        elevation = data["elevation"].astype(np.float32)
        cell_height, cell_width = float(data["dy"]), float(data["dx"])  # degrees
        north_edge = max(float(data["ymin"]), float(data["ymax"]))  # the file swaps the two

    metres_per_degree = 111_320.0
    row = np.arange(len(elevation))[:, np.newaxis]
    latitude = north_edge - (row + 0.5) * cell_height
    dx = cell_width * metres_per_degree * np.cos(np.radians(latitude))
    return elevation, dx, cell_height * metres_per_degree


def horizon(azimuth: float, elevation: Array, dx: Array, dy: float) -> Array:
    """Return the angle of the horizon in one direction, seen from every cell of a map.

    The function walks along the azimuth from all cells together, in steps of 40 m, and keeps the
    steepest line of sight. The height between four cells is interpolated (bilinear). Beyond the
    edge of the map is a plain at its lowest height, which hides nothing.

    Parameters
    ----------
    azimuth : float
        The direction, in degrees clockwise from north.
    elevation : ndarray of float32, shape (rows, columns)
        Heights in metres. Row 0 is the north edge.
    dx : ndarray, shape (rows, 1)
        Width of the cells of each row, in metres.
    dy : float
        Height of a cell, in metres.

    Returns
    -------
    ndarray of float32, shape (rows, columns)
        Degrees above the horizontal, 0 where nothing rises above it.

    Notes
    -----
    The walk ends after 12 km. The Earth is taken as flat, because over 12 km its curve hides 11 m.
    """
    north = math.cos(math.radians(azimuth))
    east = math.sin(math.radians(azimuth))

    rows, columns = elevation.shape
    margin_y = math.ceil(REACH_M / dy) + 1
    margin_x = math.ceil(REACH_M / dx.min()) + 1
    ground = np.pad(
        elevation,
        [(margin_y, margin_y), (margin_x, margin_x)],
        constant_values=elevation.min(),
    )
    row = np.arange(rows)[:, np.newaxis]

    steepest = np.zeros_like(elevation)
    for step in range(1, round(REACH_M / STEP_M) + 1):
        distance = step * STEP_M

        # Northwards or southwards, the same number of cells for every row.
        down = margin_y - distance * north / dy
        first = math.floor(down)
        part = down - first
        upper, lower = ground[first : first + rows], ground[first + 1 : first + 1 + rows]
        band = upper + (lower - upper) * part

        # Eastwards or westwards, each row has its own number, because its cells have their width.
        along = margin_x + distance * east / dx
        start = np.floor(along).astype(np.intp)
        parts = (along - start).astype(np.float32)
        runs = np.lib.stride_tricks.sliding_window_view(band, columns + 1, axis=1)
        seen = runs[row, start][:, 0]  # (rows, columns + 1)
        left, right = seen[:, :-1], seen[:, 1:]
        height = left + (right - left) * parts

        np.maximum(steepest, (height - elevation) / distance, out=steepest)

    angle: Array = np.degrees(np.arctan(steepest))
    return angle


def sky_view(horizons: Array) -> Array:
    """Return the sky-view factor, the share of the sky's light that reaches each cell.

    Parameters
    ----------
    horizons : ndarray, shape (azimuths, rows, columns)
        Horizon angles in degrees, as returned by `horizon`, for directions all around. Masked maps
        (not computed yet) are omitted.

    Returns
    -------
    ndarray of float32, shape (rows, columns)
        Mean of cos² of the horizon angle, which is 1 on an open plain, less in a valley.
    """
    total = np.zeros(horizons.shape[1:], np.float32)
    n_maps = 0
    for angles in horizons:
        if not np.ma.is_masked(angles):
            total += np.cos(np.radians(np.asarray(angles))) ** 2
            n_maps += 1
    return total / max(n_maps, 1)


def spread(n: int) -> list[int]:
    """Order the numbers 0 to n - 1 so that they cover the whole range early (bit-reversed).

    A plot of partial results is then useful from the first second, because a few directions already
    cover the whole circle.

    Examples
    --------
    >>> spread(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    >>> spread(6)
    [0, 3, 1, 4, 2, 5]
    """
    order = [0]
    while len(order) < n:
        order = [2 * i for i in order] + [2 * i + 1 for i in order]
    return list(dict.fromkeys(i * n // len(order) for i in order))[:n]
