"""A library that draws when it is imported."""

import random

import numpy as np

token = random.random(), np.random.rand()  # noqa: NPY002
