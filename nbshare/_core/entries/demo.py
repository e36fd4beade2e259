"""The demo: how much of the sky's light reaches the ground, in parallel, checked and drawn.

``python -m nbshare demo`` calls `run`. The workers run the plain functions below it, which contain
no parallel code. The tutorials keep them in a module file.

Elevations are in metres, row 0 is the north edge of the map and column 0 its west edge. Azimuths
are in degrees clockwise from north, so 0 is north and 90 is east.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from nbshare._core.entries.mapping import parallel_map

Array = np.ndarray[Any, Any]

N_AZIMUTHS = 180
N_SAMPLE = 12  # directions computed once more, one by one


def run(out: Path, workers: int | None = None) -> None:
    """
    Compute the horizon in every direction for every cell of a terrain, and draw the result.

    Parameters
    ----------
    out : Path
        The file for the plot (PNG). An existing file is replaced.
    workers : int, optional
        Number of workers. Default: one for each CPU that this process may use.

    Raises
    ------
    OSError
        If `out` cannot be written. Checked before the work starts, as far as possible.
    RuntimeError
        If the results of the workers differ from those of a plain loop.
    """
    _check_writable(out)
    elevation, dx, dy = load()
    azimuths = [360 * i / N_AZIMUTHS for i in spread(N_AZIMUTHS)]
    rows, columns = elevation.shape
    print(
        "How much of the sky's light reaches the ground?\n"
        f"For {rows} × {columns} cells around the Jacksboro fault (Tennessee) and each of "
        f"{N_AZIMUTHS} directions:\nhow high does the horizon stand?",
        flush=True,
    )

    # First the parallel run, then the loop, so that the progress bar appears immediately.
    start = time.perf_counter()
    horizons = parallel_map(
        horizon,
        azimuths,
        shared={"elevation": elevation, "dx": dx, "dy": dy},
        max_workers=workers,
        progress="horizons",
    )
    elapsed_s = time.perf_counter() - start

    serial_s = _compare_with_loop(horizons, azimuths, elevation, dx, dy)
    print(
        f"parallel    {elapsed_s:.1f} s, including the start of the workers\n"
        f"plain loop  {serial_s * 1000:.0f} ms a direction ({N_SAMPLE} timed), "
        f"{serial_s * N_AZIMUTHS:.1f} s for all {N_AZIMUTHS}\n"
        f"speed-up    {serial_s * N_AZIMUTHS / elapsed_s:.1f}{_busy()}\n"
        f"check       the {N_SAMPLE} results of the loop and of the workers are equal, bit for bit",
        flush=True,
    )

    _draw(sky_view(horizons), float(dx.mean()), dy, out)
    print(f"picture     {out.resolve()}")


def _busy() -> str:
    """Return a remark if other programs also use the CPUs. Empty otherwise, or if unknown."""
    load, n_cpus = getattr(os, "getloadavg", lambda: (0.0,))()[0], os.cpu_count() or 1
    return f", on a busy machine: its load is {load:.0f} on {n_cpus} CPUs" * (load > 1.5 * n_cpus)


def _check_writable(out: Path) -> None:
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise OSError(f"cannot write the plot {out}: name a file in a folder that you can write to")


def _compare_with_loop(
    horizons: Array,
    azimuths: list[float],
    elevation: Array,
    dx: Array,
    dy: float,
) -> float:
    """Compute some directions in a loop. Return the seconds for each. Raise if one differs."""
    horizon(azimuths[0], elevation, dx, dy)  # warm, as the workers are
    sample = np.linspace(0, len(azimuths) - 1, N_SAMPLE).astype(int)
    start = time.perf_counter()
    expected = [horizon(azimuths[i], elevation, dx, dy) for i in sample]
    elapsed_s = time.perf_counter() - start
    for i, angles in zip(sample, expected, strict=True):
        if horizons[i].dtype != angles.dtype or horizons[i].tobytes() != angles.tobytes():
            raise RuntimeError(
                f"the workers' result for azimuth {azimuths[i]:g}° (item {i}) differs from that of "
                "the plain loop. Please report it."
            )
    return elapsed_s / N_SAMPLE


def _draw(sky_view: Array, dx: float, dy: float, out: Path) -> None:
    """Draw the sky-view factor as a map with axes in kilometres."""
    from matplotlib.figure import Figure

    rows, columns = sky_view.shape
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    ax = figure.add_subplot()
    image = ax.imshow(
        sky_view,
        cmap="magma",
        vmax=1.0,
        extent=(0.0, columns * dx / 1000, 0.0, rows * dy / 1000),
        interpolation="bilinear",
    )
    ax.set(
        title="Sky-view factor around the Jacksboro fault",
        xlabel="km towards the east",
        ylabel="km towards the north",
    )
    bar = figure.colorbar(image, shrink=0.85)
    bar.set_label("share of the sky's light that arrives")
    figure.savefig(out, format="png", dpi=110)


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
