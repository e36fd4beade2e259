"""Functions that draw unseeded random numbers, and those that only seem to."""
# ruff: noqa: NPY002

from __future__ import annotations

import hashlib
import importlib
import os
import random
import secrets
import sys
import tempfile
import time
import uuid

import numpy as np


def _once(state, draw):
    """Return the value that `draw` gives, and leave the state as before."""
    get, set_ = state
    before = get()
    value = draw()
    set_(before)
    return value


def import_and_return(i):
    """Import, in each worker, a library that draws."""
    sys.modules.pop("tests.support.draws_at_import", None)
    return importlib.import_module("tests.support.draws_at_import").token[0]


def pandas_sample(i):
    import pandas as pd

    return int(pd.Series(range(100)).sample(1).iloc[0])


def scipy_rvs(i):
    from scipy import stats

    return stats.norm.rvs()


def after_ones_own_seed(i):
    np.random.seed(i)
    return np.random.normal()


def after_ones_own_python_seed(i):
    random.seed(i)
    return random.random()


def after_the_same_seed_and_many(i):
    np.random.seed(1)
    return np.random.normal(size=100_000).mean()


def shuffled(i):
    values = [1, 2, 3, 4]
    random.shuffle(values)
    return values[0]


def numpy_shuffled(i):
    values = np.arange(5)
    np.random.shuffle(values)
    return int(values[0])


MISUSES = {
    "rand": lambda i: np.random.rand(),
    "normal": lambda i: np.random.normal(),
    "randint": lambda i: np.random.randint(10),
    "choice": lambda i: np.random.choice(5),
    "shuffle": numpy_shuffled,
    "permutation": lambda i: np.random.permutation(4)[0],
    "poisson": lambda i: np.random.poisson(3.0),
    "bytes": lambda i: np.random.bytes(4),
    "all words once": lambda i: np.random.bytes(4 * 624),
    "millions": lambda i: np.random.rand(1_000_000, 2).mean(),
    "the global RandomState": lambda i: np.random.mtrand._rand.uniform(),
    "a helper": lambda i: shuffled(i) + numpy_shuffled(i),
    "pandas": pandas_sample,
    "scipy": scipy_rvs,
    "random.random": lambda i: random.random(),
    "random.gauss": lambda i: random.gauss(0, 1),
    "random.shuffle": shuffled,
    "random.sample": lambda i: random.sample(range(9), 2)[0],
    "getrandbits": lambda i: random.getrandbits(32 * 624) % 7,
    "only some items": lambda i: random.random() if i % 3 == 2 else 0.0,
}

FINE = {
    "default_rng": lambda i: np.random.default_rng(i).normal(),
    "RandomState": lambda i: np.random.RandomState(i).normal(),
    "random.Random": lambda i: random.Random(i).random(),
    "own seed": after_ones_own_seed,
    "own seed of random": after_ones_own_python_seed,
    "the same seed": after_the_same_seed_and_many,
    "SeedSequence": lambda i: np.random.SeedSequence(i).generate_state(1)[0],
    "PCG64": lambda i: np.random.Generator(np.random.PCG64(i)).normal(),
    "Philox": lambda i: np.random.Generator(np.random.Philox(i)).normal(),
    "SystemRandom": lambda i: random.SystemRandom().random(),
    "state kept": lambda i: _once((np.random.get_state, np.random.set_state), np.random.rand),
    "state of random kept": lambda i: _once((random.getstate, random.setstate), random.random),
    "hash": lambda i: hash(str(i)),
    "hashlib": lambda i: hashlib.sha256(bytes(i)).hexdigest(),
    "urandom": lambda i: os.urandom(4),
    "uuid4": lambda i: str(uuid.uuid4()),
    "secrets": lambda i: secrets.token_hex(),
    "tempfile": lambda i: tempfile.mkdtemp(),
    "time": lambda i: time.time(),
    "a library that draws at import": import_and_return,
}
