"""The demo: one real job on a real map, timed, checked and drawn.

``python -m nbshare demo`` runs `run`, step by step; `terrain` holds what the workers compute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from nbshare.demo import terrain
from nbshare.mapping import parallel_map

N_AZIMUTHS = 180
N_SAMPLE = 12  # directions computed once more, one by one
SAMPLE_LIMIT_S = 10.0


def run(out: Path, workers: int | None = None) -> None:
    """
    Compute the horizon in every direction for every cell of a map, and draw the result.

    Parameters
    ----------
    out : Path
        Where the picture (PNG) goes; an older file there is replaced.
    workers : int, optional
        Number of workers. Default: one for each CPU that this process may use.

    Raises
    ------
    OSError
        If `out` cannot be written. What can be known is checked before the work starts.
    RuntimeError
        If the workers' results are not those of a plain loop, bit for bit.
    """
    _check_writable(out)
    elevation, dx, dy = terrain.load()
    azimuths = [360 * i / N_AZIMUTHS for i in terrain.spread(N_AZIMUTHS)]
    rows, columns = elevation.shape
    print(
        "How much of the sky does the land hide?\n"
        f"For {rows} × {columns} cells around the Jacksboro fault (Tennessee) and each of "
        f"{N_AZIMUTHS} directions:\nhow high does the horizon stand?",
        flush=True,
    )

    # The map comes first, the loop for comparison after it: nobody has to wait for the bar.
    start = time.perf_counter()
    horizons = parallel_map(
        terrain.horizon,
        azimuths,
        shared={"elevation": elevation, "dx": dx, "dy": dy},
        max_workers=workers,
        progress="horizons",
    )
    elapsed_s = time.perf_counter() - start
    if np.shape(horizons) != (N_AZIMUTHS, rows, columns):
        raise RuntimeError(
            f"the result has the shape {np.shape(horizons)}, expected {(N_AZIMUTHS, rows, columns)}"
        )

    n_checked, serial_s = _compare_with_loop(horizons, azimuths, elevation, dx, dy)
    speedup = serial_s * N_AZIMUTHS / elapsed_s
    print(
        f"parallel    {elapsed_s:.1f} s, the start of the workers included\n"
        f"plain loop  {serial_s * 1000:.0f} ms a direction ({n_checked} timed), "
        f"{serial_s * N_AZIMUTHS:.1f} s for all {N_AZIMUTHS}\n"
        f"speed-up    {speedup:.1f}\n"
        f"check       the {n_checked} maps of the loop and of the workers are equal, bit for bit",
        flush=True,
    )

    _draw(terrain.sky_view(horizons), float(dx.mean()), dy, out)
    print(f"picture     {out.resolve()}")


def _check_writable(out: Path) -> None:
    if out.is_dir():
        raise IsADirectoryError(f"cannot write the picture: {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"cannot write the picture: there is no folder {out.parent}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise PermissionError(f"cannot write the picture: {out} is not writable")


def _compare_with_loop(
    horizons: terrain.Array,
    azimuths: list[float],
    elevation: terrain.Array,
    dx: terrain.Array,
    dy: float,
) -> tuple[int, float]:
    """Compute some directions here, one by one: how many were equal, and the seconds of one."""
    terrain.horizon(azimuths[0], elevation, dx, dy)  # warm, as the workers are
    sample = np.linspace(0, len(azimuths) - 1, min(N_SAMPLE, len(azimuths))).astype(int)
    n_checked, serial_s = 0, 0.0
    for i in sample:
        start = time.perf_counter()
        expected = terrain.horizon(azimuths[i], elevation, dx, dy)
        serial_s += time.perf_counter() - start
        if horizons[i].dtype != expected.dtype or horizons[i].tobytes() != expected.tobytes():
            raise RuntimeError(
                f"the workers' map for azimuth {azimuths[i]:g}° (item {i}) differs from the "
                "plain loop's; this should never happen: please report it"
            )
        n_checked += 1
        if serial_s > SAMPLE_LIMIT_S:
            break
    return n_checked, serial_s / n_checked


def _draw(sky_view: terrain.Array, dx: float, dy: float, out: Path) -> None:
    """Draw the sky-view factor as a map with axes in kilometres."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = sky_view.shape
    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    image = ax.imshow(
        sky_view,
        cmap="magma",
        vmin=float(np.percentile(sky_view, 0.5)),
        vmax=1.0,
        extent=(0.0, columns * dx / 1000, 0.0, rows * dy / 1000),
        interpolation="bilinear",
    )
    ax.set(
        title="Sky-view factor around the Jacksboro fault",
        xlabel="km towards the east",
        ylabel="km towards the north",
    )
    bar = figure.colorbar(image, extend="min", shrink=0.85)
    bar.set_label("share of the sky's light that arrives")
    figure.savefig(out, format="png", dpi=110)
