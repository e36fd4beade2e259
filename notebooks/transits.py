"""Planets that pass in front of their stars: what the workers compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NOISE = 0.0035  # of one measurement; the brightness of the star is 1
CADENCE = 1 / 5760  # days between two measurements
N_BINS = 60  # of a folded curve


def transit(time: Array, period: float, middle: float, depth: float, duration: float) -> Array:
    """
    Return the brightness of a star while a planet passes in front of it.

    Parameters
    ----------
    time : ndarray
        In days.
    period, middle, duration : float
        The period of the orbit, the middle of the first passage, and its duration; in days.
    depth : float
        The part of the light that the planet hides.

    Returns
    -------
    ndarray, as `time`
    """
    from_middle = abs((time - middle + period / 2) % period - period / 2)
    edge = duration / 8  # so long the planet covers the edge of the star
    return 1 - depth * np.clip((duration / 2 - from_middle) / edge, 0, 1)


def observe(days: float = 27, seed: int = 1) -> Array:
    """Return times in days, and the brightness of a star at these times: two rows."""
    time = np.arange(0, days, CADENCE)
    light = transit(time, period=3.71, middle=1.3, depth=0.0011, duration=0.125)
    return np.stack([time, light + np.random.default_rng(seed).normal(0, NOISE, len(time))])


def scatter(curve: Array) -> float:
    """Return by how much neighbouring measurements differ: the noise."""
    return float(np.diff(curve[1]).std() / math.sqrt(2))


def folded(curve: Array, period: float, n_bins: int = N_BINS) -> tuple[Array, Array]:
    """Return the mean brightness in equal parts of a period, and the measurements in each."""
    time, light = curve
    part = (time / period % 1 * n_bins).astype("i4")
    count = np.bincount(part, minlength=n_bins)
    return np.bincount(part, light, n_bins) / count, count


def search(curve: Array, periods: Array, score: Array, i: int) -> None:
    """
    Write to ``score[i]`` how clear a dip is if the curve repeats with ``periods[i]``.

    The score is the depth of the darkest part, in units of its error. It is written, not returned:
    all workers see the same `score`.
    """
    mean, count = folded(curve, periods[i])
    score[i] = ((1 - mean) * np.sqrt(count)).max() / NOISE


def misfit(parameters: Array, curve: Array) -> float:
    """
    Return how badly a planet (period, middle, depth, duration) explains a curve.

    It is chi² less that of a star without a planet: below 0 the planet explains the curve better.
    """
    time, light = curve
    rest, rest_without = light - transit(time, *parameters), light - 1
    return float((rest**2 - rest_without**2).sum()) / NOISE**2


def log_probability(parameters: Array, curve: Array) -> float:
    """Return the logarithm of the probability of a planet, up to a constant."""
    period, _, depth, duration = parameters
    if not (0 < duration < period and 0 < depth < 1):
        return -math.inf
    return -misfit(parameters, curve) / 2
