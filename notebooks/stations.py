"""A year of temperatures at weather stations: the data, and what the workers do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HOURS = 365 * 24
LOWEST, HIGHEST = -40.0, 50.0  # °C, in steps of 0.5: the counts of `count_temperatures`
STEPS = 180

Array = npt.NDArray[Any]


def simulate(n_stations: int, seed: int) -> tuple[Array, Array]:
    """
    Return made-up measurements: seasons, days and nights, weather, altitude, noise.

    Parameters
    ----------
    n_stations : int
    seed : int
        The same seed gives the same year.

    Returns
    -------
    temperature : ndarray of float32, (n_stations, 8760)
        Hourly, in °C, from the 1st of January.
    altitude : ndarray of float64, (n_stations,)
        In metres.
    """
    rng = np.random.default_rng(seed)
    altitude = rng.gamma(2.0, 400.0, n_stations).clip(0, 3500).round()
    hours = np.arange(HOURS)
    season = -np.cos(2 * np.pi * (hours / HOURS - 20 / 365))
    daily = -np.cos(2 * np.pi * (hours - 3) / 24)
    weather = np.zeros(366)
    for day in range(1, 366):  # today is much like yesterday
        weather[day] = 0.8 * weather[day - 1] + 1.7 * rng.standard_normal()
    everywhere = 9.5 * season + (3.5 + 1.5 * season) * daily
    everywhere += np.interp(hours / 24, np.arange(366), weather)
    temperature = np.empty((n_stations, HOURS), np.float32)
    for here, metres in zip(temperature, altitude, strict=True):
        here[:] = everywhere + 13 - 0.0065 * metres + rng.normal(0, 1.2, HOURS)
    return temperature, altitude


def daily_mean(station: int, temperature: Array) -> Array:
    """Return the 365 daily means of one station."""
    return temperature[station].reshape(365, 24).mean(axis=1)


def warmest(temperature: Array) -> tuple[float, str]:
    """Return the highest value of an array, and the class that the array arrived as."""
    return float(temperature.max()), type(temperature).__name__


def shift(offset: float, values: Array) -> Any:
    """Add an offset to values, in place; return their mean."""
    values += offset
    return values.mean()


def count_temperatures(values: Array, counts: Array, lock: Any) -> None:
    """
    Add one station's year to counts that all workers share.

    Parameters
    ----------
    values : ndarray, (8760,)
        Hourly temperatures.
    counts : ndarray of int, (365, STEPS)
        How often each temperature was measured on each day of the year.
    lock : SharedLock
        Held while the counts change.
    """
    day = np.arange(HOURS) // 24
    step = ((values - LOWEST) * STEPS / (HIGHEST - LOWEST)).astype(int).clip(0, STEPS - 1)
    mine = np.bincount(day * STEPS + step, minlength=365 * STEPS).reshape(365, STEPS)
    with lock:  # short: the long part of the work is done
        counts += mine


def frost_days(low: float, table: Any) -> float:
    """Return the mean number of frost days of the stations between `low` and `low` + 500 m."""
    here = table[(table["altitude"] >= low) & (table["altitude"] < low + 500)]
    return float((here["minimum"] < 0).sum() / max(here["station"].nunique(), 1))


def frost_days_of(low: float, wrapped: Any) -> float:
    """As `frost_days`, for the wrapped table."""
    return frost_days(low, wrapped.get())
