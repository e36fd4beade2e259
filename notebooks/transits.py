"""Planets that pass before their stars: what the workers compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NOISE = 0.0018  # of one measurement; the star's brightness is 1
CADENCE = 1 / 1440  # days between two measurements
N_BINS = 60  # of a folded curve


def transit(time: Array, period: float, middle: float, depth: float, duration: float) -> Array:
    """
    Return the brightness of a star before which a planet passes.

    Parameters
    ----------
    time : ndarray
        In days.
    period, middle, duration : float
        Of the orbit, of the first passage, and how long it takes; in days.
    depth : float
        The part of the light that the planet hides.

    Returns
    -------
    ndarray, as `time`
    """
    from_middle = abs((time - middle + period / 2) % period - period / 2)
    edge = duration / 8  # the planet needs so long to get in front of the star
    return 1 - depth * np.clip((duration / 2 - from_middle) / edge, 0, 1)


def observe(days: float = 27, seed: int = 4) -> Array:
    """Return times in days, and the brightness of a star measured then: two rows."""
    time = np.arange(0, days, CADENCE)
    light = transit(time, period=3.71, middle=1.3, depth=0.0011, duration=0.125)
    return np.stack([time, light + np.random.default_rng(seed).normal(0, NOISE, len(time))])


def scatter(curve: Array) -> float:
    """Return by how much neighbouring measurements differ: the noise."""
    return float(np.diff(curve[1]).std() / math.sqrt(2))


def folded(curve: Array, period: float, n_bins: int = N_BINS) -> tuple[Array, Array]:
    """Return the mean brightness in equal parts of a period, and how many measurements it is of."""
    time, light = curve
    part = (time / period % 1 * n_bins).astype("i4")
    count = np.bincount(part, minlength=n_bins)
    return np.bincount(part, light, n_bins) / count, count


def search(curve: Array, periods: Array, score: Array, i: int) -> None:
    """
    Write into ``score[i]`` how clear a dip there is if the curve repeats with ``periods[i]``.

    The score is the deepest part's distance from the mean, in units of its error. It is written,
    not returned: `score` is the same memory for all.
    """
    mean, count = folded(curve, periods[i])
    score[i] = ((1 - mean) * np.sqrt(count)).max() / NOISE


def misfit(parameters: Array, curve: Array) -> float:
    """
    Return how badly a planet (period, middle, depth, duration) explains a curve.

    It is chi² less that of a star without a planet: below 0, the planet explains it better.
    """
    time, light = curve
    rest, rest_without = light - transit(time, *parameters), light - 1
    return float(rest @ rest - rest_without @ rest_without) / NOISE**2


def log_probability(parameters: Array, curve: Array) -> float:
    """Return the logarithm of the probability of a planet, up to a constant."""
    period, _, depth, duration = parameters
    if not (0 < duration < period and 0 < depth < 1):
        return -math.inf
    return -misfit(parameters, curve) / 2


def examples(n: int, seed: int = 0) -> tuple[Array, Array]:
    """
    Return folded dips of planets and of pairs of stars, simulated.

    A planet crosses the star's disc, so its dip has a flat bottom. Two stars that graze each other
    make a dip like a V.

    Parameters
    ----------
    n : int
        How many.
    seed : int
        Of the random numbers.

    Returns
    -------
    dips : ndarray of float64, (n, N_BINS)
        The middle of the dip in the middle of the row; its depth is about 1.
    is_planet : ndarray of bool, (n,)
    """
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, N_BINS)
    is_planet = rng.random(n) < 0.5
    half, shift = rng.uniform(0.2, 0.8, n), rng.normal(0, 0.05, n)
    edge = np.where(is_planet, rng.uniform(0.1, 0.4, n), rng.uniform(0.8, 1, n)) * half
    from_middle = abs(x - shift[:, np.newaxis])
    dips = np.clip((half[:, np.newaxis] - from_middle) / edge[:, np.newaxis], 0, 1)
    return 1 - dips + rng.normal(0, 0.15, dips.shape), is_planet
