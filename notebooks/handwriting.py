"""Reading handwritten digits with scikit-learn: what the workers compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import cross_val_predict, cross_val_score
from sklearn.svm import SVC

Array = npt.NDArray[Any]


def accuracy(log_gamma: float, images: Array, digits: Array) -> float:
    """
    Return the share of digits that a support vector classifier reads correctly.

    Parameters
    ----------
    log_gamma : float
        Decimal logarithm of the classifier's parameter ``gamma``.
    images : ndarray, (n, n_pixels)
    digits : ndarray of int, (n,)

    Returns
    -------
    float
        From 0 to 1; each digit is read by a classifier that was trained without it.
    """
    classifier = SVC(C=10, gamma=10**log_gamma, random_state=0)
    return float(cross_val_score(classifier, images, digits, cv=3).mean())


def read(classifier: Any, images: Array, digits: Array) -> Array:
    """Return what a classifier reads in each image, trained without it: ndarray of int, (n,)."""
    return np.asarray(cross_val_predict(classifier, images, digits, cv=3))
