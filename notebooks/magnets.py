"""The Ising model of a magnet, in two dimensions: what the workers simulate.

Little magnets on a square lattice point up (+1) or down (-1). Two neighbours that point the same
way have the energy -J, else +J; temperatures are in units of J/k, k being Boltzmann's constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare import report

SIZE = 40  # magnets along each side; those at the edges have neighbours at the other side

Array = npt.NDArray[Any]


def sweep(spins: Array, temperature: float, rng: np.random.Generator) -> None:
    """
    Give every magnet one chance to turn over, by the rule of Metropolis.

    Parameters
    ----------
    spins : ndarray of int, (SIZE, SIZE)
        Changed in place.
    temperature : float
    rng : numpy.random.Generator
    """
    chance = rng.random(spins.shape)
    for colour in FIELDS:  # as on a chessboard: a magnet's neighbours are of the other colour
        neighbours = sum(np.roll(spins, step, axis) for step in (1, -1) for axis in (0, 1))
        turn = chance < np.exp(-2 / temperature * spins * neighbours)
        spins[turn & colour] *= -1


def magnetization(temperature: float, sweeps: int = 600, *, rng: np.random.Generator) -> float:
    """
    Return how much the magnets agree on a direction: 1 all of them, 0 not at all.

    Parameters
    ----------
    temperature : float
    sweeps : int
        In the first half of them the magnet comes to rest, over the others the mean is taken.
    rng : numpy.random.Generator
    """
    spins = np.ones((SIZE, SIZE), np.int8)
    total = 0.0
    for i in range(sweeps):
        sweep(spins, temperature, rng)
        if i >= sweeps // 2:
            total += abs(spins.mean())
        report(i / sweeps, f"sweep {i} of {sweeps}")  # for the row in the notebook
    return total / (sweeps - sweeps // 2)


def snapshot(temperature: float, sweeps: int = 300, *, rng: np.random.Generator) -> Array:
    """Return the magnets after some sweeps from disorder: ndarray of int8, (SIZE, SIZE)."""
    spins = rng.choice(np.array([-1, 1], np.int8), (SIZE, SIZE))
    for _ in range(sweeps):
        sweep(spins, temperature, rng)
    return spins


def energy(temperature: float, sweeps: int = 100, *, rng: np.random.Generator) -> float:
    """Return the energy per magnet, in units of J, after some sweeps from disorder."""
    spins = snapshot(temperature, sweeps, rng=rng).astype(float)
    return float(-(spins * (np.roll(spins, 1, 0) + np.roll(spins, 1, 1))).mean())


FIELDS = [(np.indices((SIZE, SIZE)).sum(0) % 2 == k) for k in (0, 1)]
