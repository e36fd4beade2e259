"""Variable stars: made-up observations in a table, and what the workers do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd  # type: ignore[import-untyped]

PERIODS = np.geomspace(0.25, 1.0, 4_000)  # days: those that are tried
BINS = 12  # of a folded light curve

Array = npt.NDArray[Any]


def observe(n_stars: int, seed: int) -> pd.DataFrame:
    """
    Return made-up observations of pulsating stars, in the order of their times.

    Parameters
    ----------
    n_stars : int
    seed : int
        The same seed gives the same observations.

    Returns
    -------
    pandas.DataFrame
        One row for each observation: ``star``, ``band``, ``day`` and ``magnitude``.
    """
    rng = np.random.default_rng(seed)
    tables = []
    for k in range(n_stars):
        n, period, mean = rng.integers(60, 140), rng.uniform(0.3, 0.9), rng.uniform(11, 15)
        day, band = rng.uniform(0, 90, n), rng.choice(["g", "r"], n)
        phase = (day / period + rng.random()) % 1
        pulse = np.where(phase < 0.2, phase / 0.2, (1 - phase) / 0.8)  # a steep rise
        scale = np.where(band == "g", 1.0, 0.7) * rng.uniform(0.4, 1.1)
        magnitude = mean + 0.4 * (band == "g") - scale * pulse + rng.normal(0, 0.03, n)
        star = f"V{k + 1:03}"
        tables.append(
            pd.DataFrame({"star": star, "band": band, "day": day, "magnitude": magnitude})
        )
    return pd.concat(tables).sort_values("day", ignore_index=True)


def scatter(period: float, day: Array, magnitude: Array) -> float:
    """Return how much magnitudes differ within parts of a period, as a share of all."""
    part = (day / period % 1 * BINS).astype(int)
    n = np.bincount(part, minlength=BINS).clip(1)
    mean = np.bincount(part, magnitude, BINS) / n
    return float(
        ((magnitude - mean[part]) ** 2).sum() / ((magnitude - magnitude.mean()) ** 2).sum()
    )


def pulsation(observations: pd.DataFrame) -> dict[str, Any]:
    """Return the period of a star, in days: that whose light curve scatters least."""
    day, magnitude = observations["day"].to_numpy(), observations["magnitude"].to_numpy(copy=True)
    for band in ("g", "r"):
        magnitude[observations["band"] == band] -= magnitude[observations["band"] == band].mean()
    tried = [scatter(period, day, magnitude) for period in PERIODS]
    best = int(np.argmin(tried))
    return {"period": PERIODS[best], "scatter": tried[best], "observations": len(day)}


def colour(key: tuple[str, str], observations: pd.DataFrame) -> float:
    """Return the mean magnitude of a star in a band; `key` has both."""
    star, band = key
    assert (observations["star"] == star).all()
    assert (observations["band"] == band).all()
    return float(observations["magnitude"].mean())


def distance(star: Any) -> float:
    """Return the distance of a star in parsec, by its period and mean magnitude."""
    absolute = -1.4 * np.log10(star.period) + 0.2  # the longer the period, the brighter
    return float(10 ** ((star.magnitude - absolute + 5) / 5))
