"""Earthquakes in a long recording: the data, and the two steps that the workers do.

Both steps work in the same memory, a SharedBuffer: `FIRST` and `SECOND` are its two layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 100  # samples per second
STATIONS = 24
BLOCK = 600 * RATE  # samples that are processed at a time: ten minutes
LEAD = 60 * RATE  # samples of a block that the block before had too: averages need them
SHORT, LONG = RATE // 2, 20 * RATE  # samples: the averages that are compared
TRIGGER = 4.0  # short average over long average
WINDOW = RATE // 2  # samples: an arrival votes for so long
SPEED = 6.0  # km/s, of the waves
DEPTH = 8.0  # km, of the earthquakes
PLACES = np.linspace(0, 100, 101)  # km along the line of stations: where an earthquake may be
AT = np.linspace(2, 98, STATIONS)  # km along the line: where the stations are

FIRST = {
    "signal": ((STATIONS, BLOCK), "f4"),  # µm/s
    "energy": ((STATIONS, BLOCK), "f8"),  # summed along the block
    "ratio": ((STATIONS, BLOCK), "f4"),  # short average over long average
}
SECOND = {
    "votes": ((len(PLACES), BLOCK), "i4"),  # for an earthquake at each place and time
}

Array = npt.NDArray[Any]


def delay(place: Any, station: Any) -> Any:
    """Return how long a wave takes from a place to a station, both in km, in seconds."""
    return np.hypot(place - station, DEPTH) / SPEED


def simulate(minutes: int, seed: int) -> tuple[Array, Array, Array]:
    """
    Return a simulated recording of a line of seismometers.

    Parameters
    ----------
    minutes : int
    seed : int
        The same seed gives the same recording.

    Returns
    -------
    recording : ndarray of float32, (STATIONS, samples)
        Ground velocity in µm/s: noise, steps of passers-by, earthquakes.
    times, places : ndarray
        Times of the earthquakes in seconds, one every four minutes or so, and their places in km.
    """
    rng = np.random.default_rng(seed)
    n = minutes * 60 * RATE
    recording = rng.standard_normal((STATIONS, n), np.float32)
    recording[:, 1:] += 0.7 * recording[:, :-1]
    times = 240 * (np.arange(minutes // 4) + rng.uniform(0.3, 0.8, minutes // 4))
    places = rng.uniform(5, 95, len(times))
    t = np.arange(25 * RATE) / RATE  # s
    for time, place in zip(times, places, strict=True):
        size = rng.uniform(300, 900)
        for station, at in enumerate(AT):
            start = int((time + delay(place, at)) * RATE)
            shape = np.exp(-t / 4) * (1 - np.exp(-t * 4)) / np.hypot(place - at, DEPTH)
            recording[station, start : start + t.size] += size * shape * rng.normal(0, 1, t.size)
    for _ in range(3 * minutes):  # a person walks past one of the stations
        start = rng.integers(0, n - RATE)
        recording[rng.integers(STATIONS), start : start + RATE] += rng.normal(0, 8, RATE)
    return recording, times, places


def find_arrivals(station: int, buffer: Any) -> Array:
    """
    First step, one station: find when the ground begins to move.

    Parameters
    ----------
    station : int
    buffer : SharedBuffer
        With a block of the recording in ``signal``.

    Returns
    -------
    ndarray of int
        Samples at which the short average rises above `TRIGGER` times the long average.
    """
    arrays = buffer.layout(FIRST)
    mine, out = arrays["energy"][station], arrays["ratio"][station]
    np.square(arrays["signal"][station], out=mine)
    np.cumsum(mine, out=mine)
    out[:LONG] = 0
    short = (mine[LONG:] - mine[LONG - SHORT : -SHORT]) / SHORT
    out[LONG:] = short / ((mine[LONG:] - mine[:-LONG]) / LONG)
    above = out > TRIGGER
    return np.flatnonzero(above[1:] & ~above[:-1]) + 1


def count_votes(i: int, buffer: Any, arrivals: list[Array]) -> int:
    """
    Second step, one place: count the stations that felt an earthquake from there, for each time.

    Parameters
    ----------
    i : int
        Number of the place.
    buffer : SharedBuffer
        Row `i` of ``votes`` is filled.
    arrivals : list of ndarray
        The results of `find_arrivals`, one for each station.

    Returns
    -------
    int
        The most votes in that row.
    """
    votes = buffer.layout(SECOND)["votes"][i]
    votes[:] = 0
    for at, samples in zip(AT, arrivals, strict=True):
        felt = np.zeros(BLOCK, bool)
        for sample in samples - int(delay(PLACES[i], at) * RATE):
            felt[max(sample - WINDOW, 0) : max(sample + WINDOW, 0)] = True
        votes += felt
    return int(votes.max())


def located(votes: Array, n_stations: int = 20) -> Array:
    """
    Return where and when an earthquake was felt by most stations.

    Parameters
    ----------
    votes : ndarray, (len(PLACES), BLOCK)
    n_stations : int
        Stations that must have felt it.

    Returns
    -------
    ndarray of float64, (n_earthquakes, 2)
        Seconds since the block began, and km along the line.
    """
    found = []
    most = votes.max(axis=0)
    sample = LEAD
    while (most[sample:] >= n_stations).any():
        sample += int((most[sample:] >= n_stations).argmax())
        near = votes[:, sample : sample + 5 * RATE]
        place, later = np.argwhere(near == near.max()).mean(axis=0)
        found.append(((sample + later) / RATE, np.interp(place, range(len(PLACES)), PLACES)))
        sample += 30 * RATE  # later waves are of the same earthquake
    return np.array(found).reshape(-1, 2)
