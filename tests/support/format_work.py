"""The functions of the stored runs in ``format_5``: never to be changed."""

import numpy as np


def rows(x, scale):
    return np.array([x, scale * x], np.float32)


def objects(x, scale):
    return {"x": x, "big": np.full(600, scale * x)} if x % 2 else f"text {x}"
