"""A model that reads turned digits: what the workers load, and what they compute."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from scipy import ndimage

import nbshare

Array = npt.NDArray[Any]

_model: Any = None  # of this worker


def load(path: str) -> None:
    """Load the model, once in each worker."""
    global _model
    _model = joblib.load(path)


def read_turned(degrees: float, images: Array, digits: Array) -> tuple[float, int]:
    """
    Turn all images, and let this worker's model read them.

    Parameters
    ----------
    degrees : float
        Clockwise.
    images : ndarray, (n, 8, 8)
    digits : ndarray of int, (n,)

    Returns
    -------
    accuracy : float
        The digits that are read correctly, in %.
    worker : int
        Number of the worker that read them, from 0.
    """
    turned = ndimage.rotate(images, -degrees, axes=(2, 1), reshape=False)
    read = _model.predict(turned.reshape(len(turned), -1))
    return 100 * float(np.mean(read == digits)), nbshare.worker_index()


def sure(image: Array, model: Any) -> Array:
    """Return how probable each of the ten digits is for one image, in %."""
    return 100 * np.asarray(model.predict_proba(image.reshape(1, -1))[0])
