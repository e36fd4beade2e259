"""Objects that several items of a call hold."""

from __future__ import annotations

import numpy as np


class Model:
    """An object with a method."""

    def __init__(self, parts):
        self.parts = parts

    def run(self, i):
        """Return what it takes."""
        return i


class Job:
    """An item of its own class."""

    def __init__(self, table, i):
        self.given = {"table": table}
        self.i = i


class Counted:
    """An object that counts how often it is pickled."""

    def __init__(self, parts):
        self.parts = parts
        self.n_pickled = 0

    def __getstate__(self):
        self.n_pickled += 1
        return {"parts": self.parts}


class Noted:
    """An object that notes how many of its class this process has loaded."""

    n_loaded = 0

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return _noted, (self.array,)


def _noted(array):
    Noted.n_loaded += 1
    return Noted(array)


def n_loaded(_):
    """Return how many objects this process has loaded."""
    return Noted.n_loaded


class Derived:
    """An object whose pickle makes its arrays anew, as some classes of tables do."""

    def __reduce__(self):
        return _derived, (np.ones(200_000), np.arange(100_000))


def _derived(*_):
    return Derived()


def look_up(item):
    table, i = item
    return table["a"][i] * len(table["b"][i])


def ignore(_, **shared):
    """Return as many as there are shared objects."""
    return len(shared)
