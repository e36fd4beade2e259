"""Functions of tiles, most of them local filters."""

from __future__ import annotations

import time

import numpy as np
from scipy import ndimage


def median(part, r, n):
    return ndimage.median_filter(part, 2 * r + 1, axes=range(n))


def mean(part, r, n):
    return ndimage.gaussian_filter(part, r, truncate=1.0, axes=range(n))


def is_below(part, r, n):
    return ndimage.maximum_filter(part, 2 * r + 1, axes=range(n)) > part


def blind(part, r, n):
    """Return means that are wrong at the edges of the part."""
    return ndimage.gaussian_filter(part, r, truncate=1.0, mode="wrap", axes=range(n))


def without_overlap(part):
    return part[2:-2, 2:-2].sum(axis=2, dtype=float)


def smooth(part):
    return ndimage.gaussian_filter(part, 1, truncate=2.0, axes=(0, 1))


def may_share(part, where):
    assert not part.flags.writeable
    address = part.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, stop = (int(x, 16) for x in line.split()[0].split("-"))
            if start <= address < stop:
                assert where in line
    return part


def fails_at_the_middle(part):
    if part[0, 0, 0] == 7:
        raise ValueError("it is 7")
    return part


def smooth_plane(part):
    return ndimage.gaussian_filter(part, 1, truncate=2.0)


def stops(part, folder):
    with (folder / "log").open("a") as file:
        file.write("ran\n")
    if len((folder / "log").read_text().splitlines()) == int((folder / "stop").read_text()):
        raise ArithmeticError
    return smooth(part)


def waits_at_the_right(part, folder):
    while part[0, -1] == 199 and not (folder / "go").exists():
        time.sleep(0.001)
    return part


def itself(part):
    return part


def hides_the_dark(part):
    return np.ma.masked_less(part, 0.5)


def colours(part, later):
    """Return three colours of the tile at the start, and others later."""
    if part[0] == 0:
        return np.repeat(part[:, None], 3, axis=1)
    return later(part)


def more_colours(part):
    return np.repeat(part[:, None], 4, axis=1)


def one_colour(part):
    return part[:, None]


def large_numbers(part):
    return np.full((len(part), 3), 2**53 + 1)
