"""The Ising model of a magnet, in two dimensions: what the workers simulate.

Small magnets on a square lattice point up (+1) or down (-1). Two neighbours that point the same
way have the energy -J, else +J. Temperatures are in units of J/k, where k is Boltzmann's constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare import report

SIZE = 40  # magnets along each side; the neighbours of an edge are at the opposite edge

Array = npt.NDArray[Any]


def sweep(spins: Array, temperature: float, rng: np.random.Generator) -> None:
    """
    Give every magnet one chance to flip, by the rule of Metropolis.

    Parameters
    ----------
    spins : ndarray of int, (SIZE, SIZE)
        Changed in place.
    temperature : float
        In J/k, more than 0.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        If the temperature is 0 or less.
    """
    if temperature <= 0:
        raise ValueError(f"a temperature must be more than 0 J/k, not {temperature:g}")
    chance = rng.random(spins.shape)
    for colour in FIELDS:  # as on a chessboard: the neighbours have the other colour
        neighbours = sum(np.roll(spins, step, axis) for step in (1, -1) for axis in (0, 1))
        flips = chance < np.exp(-2 / temperature * spins * neighbours)
        spins[flips & colour] *= -1


def magnetization(temperature: float, sweeps: int = 1500, *, rng: np.random.Generator) -> float:
    """
    Return how much the magnets agree on a direction: 1 if all do, 0 if none do.

    Parameters
    ----------
    temperature : float
    sweeps : int
        The first half brings the lattice to equilibrium; the result is a mean over the others.
    rng : numpy.random.Generator
    """
    spins = np.ones((SIZE, SIZE), np.int8)
    total = 0.0
    for i in range(sweeps):
        sweep(spins, temperature, rng)
        if i >= sweeps // 2:
            total += abs(spins.mean())
        report(i / sweeps, f"sweep {i} of {sweeps}")  # for the progress display
    return total / (sweeps - sweeps // 2)


def snapshot(temperature: float, sweeps: int = 500, *, rng: np.random.Generator) -> Array:
    """Return the magnets some sweeps after disorder: ndarray of int8, (SIZE, SIZE)."""
    spins = rng.choice(np.array([-1, 1], np.int8), (SIZE, SIZE))
    for _ in range(sweeps):
        sweep(spins, temperature, rng)
    return spins


def energy(temperature: float, sweeps: int = 100, *, rng: np.random.Generator) -> float:
    """Return the energy per magnet some sweeps after disorder, in units of J."""
    spins = snapshot(temperature, sweeps, rng=rng).astype(float)
    return float(-(spins * (np.roll(spins, 1, 0) + np.roll(spins, 1, 1))).mean())


FIELDS = [(np.indices((SIZE, SIZE)).sum(0) % 2 == k) for k in (0, 1)]
