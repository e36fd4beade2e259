"""A recording from under the sea: how it is made, read, and turned into a spectrogram."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare import RingBuffer

RATE = 24_000  # samples per second
FRAME, HOP = 1024, 64  # samples in each spectrum, and from one spectrum to the next
N_SPECTRA = 1 + (RATE - FRAME) // HOP  # in one second
N_FREQUENCIES = 1 + FRAME // 2

Array = npt.NDArray[Any]


# ---------------------------------------------------------------------- simulation


def sound(second: int, length: int) -> Array:
    """
    Return one second of the sea: a ship that passes, calling whales, dolphins, and rain.

    Parameters
    ----------
    second : int
        Seconds since the recording began.
    length : int
        Length of the recording, in seconds.

    Returns
    -------
    ndarray of int16, (24000,)
    """
    rng = np.random.default_rng(second)
    t = second + np.arange(RATE) / RATE
    middle = length / 2

    # The engine sounds lower after the ship has passed (Doppler effect).
    turns = 300 * t - 18 * (length / 16) * np.log(np.cosh((t - middle) * 16 / length))
    near = 1 / (1 + ((t - middle) * 6 / length) ** 2)
    ship = near * sum(np.sin(2 * np.pi * k * turns) / k for k in (1, 2, 3, 4))

    since = t % 30  # seconds since the last call began, which takes 12
    call = np.sin(np.pi * np.minimum(since / 12, 1)) ** 2
    whale = call * np.sin(2 * np.pi * (2000 * since + 7 * since**3))

    whistle = np.sin(2 * np.pi * 8000 * t - 9600 * np.cos(2 * np.pi * t / 12))
    dolphin = (np.sin(2 * np.pi * t / 80) > 0) * whistle

    rain = rng.normal(size=RATE) * (0.02 + 0.25 * np.exp(-(((t / length - 0.8) / 0.08) ** 2)))
    return (4000 * (ship + 0.7 * whale + 0.3 * dolphin + rain)).astype("int16")


def record(path: Path, minutes: int) -> None:
    """Write a recording to a file, one second after the other."""
    with path.open("wb") as file:
        for second in range(60 * minutes):
            sound(second, 60 * minutes).tofile(file)


# ------------------------------------------------------- the stages of the pipeline


def read(slots: Iterator[Array], path: str) -> Iterator[int]:
    """Fill each slot with the next second of the recording; yield the number of samples."""
    with open(path, "rb", buffering=0) as file:
        for slot in slots:
            nbytes = file.readinto(slot)
            if not nbytes:
                return
            yield nbytes // slot.itemsize


def sine_tapers(n: int) -> Array:
    """Return windows for spectra with little noise: ndarray of float64, (n, FRAME)."""
    k, i = np.ogrid[1 : n + 1, 1 : FRAME + 1]
    return np.sin(np.pi * k * i / (FRAME + 1)) / np.sqrt(n)


def spectra(samples: Array, out: Array, tapers: Array) -> int:
    """
    Fill `out` with the power spectra of a block, one every HOP samples; return their number.

    Each spectrum is a mean over several windows of the same samples (a "multitaper" spectrum).
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
    power = out[: len(frames)]
    power[:] = 0
    for taper in tapers:
        power += abs(np.fft.rfft(frames * taper)) ** 2
    return len(frames)


def level(power: Array) -> Array:
    """Return the mean of a block's spectra in decibels, float32 of shape (513,)."""
    return 10 * np.log10(power.mean(axis=0) + 1).astype("float32")


def fragile(power: Array) -> Array:
    """As `level`, but refuse a silent block."""
    if not power.any():
        raise ValueError("this block is silent: was the cable unplugged?")
    return level(power)


# ------------------------------------------------------------------ a ring buffer alone


def read_numbers(ring: RingBuffer, path: str) -> None:
    """Read a file of integers, one per line, into the slots of a ring buffer."""
    with open(path) as file:
        n = 1
        while n:
            with ring.put() as slot:  # waits until a slot is free
                lines = list(itertools.islice(file, len(slot)))
                n = len(lines)
                slot[:n] = [int(line) for line in lines]
                ring.trim(slot, n)  # the last slot is not full
