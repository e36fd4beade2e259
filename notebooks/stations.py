"""Thirty years of temperatures at weather stations: the data, and what the workers do with them."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

DAYS = 365  # of a year; the calendar here has no leap years
LOWEST, HIGHEST = -40.0, 50.0  # °C, in steps of 0.5: the counts of `count_temperatures`
STEPS = 180

Array = npt.NDArray[Any]


def simulate(n_stations: int, years: int, seed: int) -> tuple[Array, Array]:
    """
    Return made-up measurements: seasons, days and nights, weather, altitude, noise.

    Parameters
    ----------
    n_stations, years : int
    seed : int
        The same seed gives the same measurements.

    Returns
    -------
    temperature : ndarray of float32, (n_stations, years * 365 * 24)
        Hourly, in °C, from the 1st of January.
    altitude : ndarray of float64, (n_stations,)
        In metres.
    """
    rng = np.random.default_rng(seed)
    altitude = rng.gamma(2.0, 400.0, n_stations).clip(0, 3500).round()
    hours = np.arange(years * DAYS * 24)
    season = -np.cos(2 * np.pi * (hours / 24 - 20) / DAYS)
    daily = -np.cos(2 * np.pi * (hours - 3) / 24)
    weather = np.zeros(years * DAYS + 1)
    for day in range(1, len(weather)):  # today is much like yesterday
        weather[day] = 0.8 * weather[day - 1] + 1.7 * rng.standard_normal()
    everywhere = 13 + 9.5 * season + (3.5 + 1.5 * season) * daily
    everywhere += np.interp(hours / 24, np.arange(len(weather)), weather)
    temperature = np.empty((n_stations, len(hours)), np.float32)
    for here, metres in zip(temperature, altitude, strict=True):
        rng.standard_normal(out=here, dtype=np.float32)
        here *= 1.2
        here += everywhere - 0.0065 * metres
    return temperature, altitude


def mean_year(station: int, temperature: Array) -> Array:
    """Return the mean temperature of each of the 365 days, over all years, at one station."""
    return temperature[station].reshape(-1, DAYS, 24).mean(axis=(0, 2))


def shift(offset: float, values: Array) -> Any:
    """Add an offset to values, in place, and return their mean."""
    values[:] = values + offset
    return values.mean()


def count_temperatures(values: Array, counts: Array, lock: Any) -> int:
    """
    Add one station's measurements to counts that all workers share. Return their number.

    Parameters
    ----------
    values : ndarray
        Hourly temperatures, in °C.
    counts : ndarray of int, (365, STEPS)
        How often each temperature was measured on each day of the year.
    lock : SharedLock
        Held while the counts change.
    """
    day = np.arange(len(values)) // 24 % DAYS
    step = ((values - LOWEST) * (STEPS / (HIGHEST - LOWEST))).astype(int).clip(0, STEPS - 1)
    mine = np.bincount(day * STEPS + step, minlength=DAYS * STEPS).reshape(DAYS, STEPS)
    with lock:  # short: the long part of the work is done
        counts += mine
    return len(values)


def frost_days(low: float, table: Any) -> float:
    """Return the mean number of frost days a year, of stations between `low` and `low` + 500 m."""
    here = table[(table["altitude"] >= low) & (table["altitude"] < low + 500)]
    return float(here["frost_days"].mean())


# ----------------------------------------------------------- how much memory a worker needs

_copy: Array | None = None


def memory_with_copies(n: int, temperature: Array) -> float:
    """Return the memory of `n` workers in MB, if a pool sends each of them a copy of an array."""
    with ProcessPoolExecutor(n, get_context("spawn"), receive_copy, (temperature,)) as pool:
        return sum(pool.map(memory_used, range(n)))


def receive_copy(temperature: Array) -> None:
    """Keep an array in this process: the initializer of a pool that sends copies."""
    global _copy
    _copy = temperature


def memory_used(_i: int, temperature: Array | None = None) -> float:
    """
    Read a whole array, and return the memory of this process in MB.

    It is the "proportional set size" of Linux: memory that k processes have in common counts as
    a k-th in each of them.
    """
    array = _copy if temperature is None else temperature
    assert array is not None
    array.max()
    time.sleep(1)  # until the other workers have read it too
    with open("/proc/self/smaps_rollup") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kilobytes / 1000
