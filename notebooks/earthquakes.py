"""Earthquakes in a long recording: the data, and the two steps that the workers do.

Both steps work in the same memory, a SharedBuffer: `FIRST` and `SECOND` say what lies in it when.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 50  # samples per second
STATIONS = 24
BLOCK = 120 * RATE  # samples that are worked on at a time
LEAD = 30 * RATE  # of them, samples of the block before: what the long average needs
SHORT, LONG = RATE // 2, 20 * RATE  # samples: the averages that are compared
TRIGGER = 4.0  # short over long average
WINDOW = 6 * RATE  # samples: a wave has crossed the network in that time

FIRST = {
    "signal": ((STATIONS, BLOCK), "f4"),  # µm/s
    "energy": ((STATIONS, BLOCK), "f8"),  # summed up along the block
    "ratio": ((STATIONS, BLOCK), "f4"),  # short over long average
}
SECOND = {
    "votes": (BLOCK, "i4"),  # how many stations have felt something, for each sample
    "arrivals": ((STATIONS,), "i8"),  # of how many waves, at each station
}

Array = npt.NDArray[Any]


def simulate(minutes: int, seed: int) -> tuple[Array, Array]:
    """
    Return a made-up recording of a network of seismometers, and when its earthquakes were.

    Parameters
    ----------
    minutes : int
    seed : int
        The same seed gives the same recording.

    Returns
    -------
    recording : ndarray of float32, (STATIONS, samples)
        Ground velocity in µm/s: noise, steps of passers-by, earthquakes.
    times : ndarray
        Of the earthquakes, in seconds: one every four minutes or so.
    """
    rng = np.random.default_rng(seed)
    n = minutes * 60 * RATE
    recording = rng.standard_normal((STATIONS, n), np.float32)
    recording[:, 1:] += 0.7 * recording[:, :-1]
    distance = np.linspace(5, 28, STATIONS)  # km
    times = 240 * (np.arange(minutes // 4) + rng.uniform(0.3, 0.8, minutes // 4))
    t = np.arange(25 * RATE) / RATE  # s
    for time in times:
        size = rng.uniform(60, 250)
        for station, km in enumerate(distance):
            start = int((time + km / 6.0) * RATE)  # the wave runs at 6 km/s
            shape = np.exp(-t / 4) * (1 - np.exp(-t * 4)) / km
            recording[station, start : start + t.size] += size * shape * rng.normal(0, 1, t.size)
    for _ in range(3 * minutes):  # somebody walks by one of the stations
        start = rng.integers(0, n - RATE)
        recording[rng.integers(STATIONS), start : start + RATE] += rng.normal(0, 8, RATE)
    return recording, times


def find_arrivals(buffer: Any, station: int) -> Array:
    """
    First step, one station: find where the ground begins to move.

    Parameters
    ----------
    buffer : SharedBuffer
        With a block of the recording in ``signal``.
    station : int

    Returns
    -------
    ndarray of int
        Samples at which the short average rises above `TRIGGER` times the long one.
    """
    arrays = buffer.layout(FIRST)
    signal, energy, ratio = (array[station] for array in arrays.values())
    np.square(signal, out=energy)
    np.cumsum(energy, out=energy)
    ratio[:LONG] = 0
    short = (energy[LONG:] - energy[LONG - SHORT : -SHORT]) / SHORT
    ratio[LONG:] = short / ((energy[LONG:] - energy[:-LONG]) / LONG)
    above = ratio > TRIGGER
    return np.flatnonzero(above[1:] & ~above[:-1]) + 1


def vote(buffer: Any, station: int, arrivals: Array) -> None:
    """Second step, one station: add a vote for the time after each arrival."""
    arrays = buffer.layout(SECOND)
    mine = np.zeros(BLOCK, bool)
    for arrival in arrivals:
        mine[arrival : arrival + WINDOW] = True
    arrays["arrivals"][station] = len(arrivals)  # a place of its own: no lock
    with buffer.lock:  # the votes belong to all
        arrays["votes"] += mine
