"""Handwritten digits: what the workers measure, and how well they learn to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import cross_val_predict
from sklearn.svm import SVC

Array = npt.NDArray[Any]


def measure(path: Path) -> dict[str, float]:
    """
    Measure a digit in an image file.

    Parameters
    ----------
    path : Path
        A grey image, light on dark, whose name begins with the digit.

    Returns
    -------
    dict
        ``digit``; ``ink``, the mean brightness in per cent; ``width`` and ``height``, the standard
        deviations of the ink in pixels; ``slant`` to the right, in degrees; the number of
        ``holes``.
    """
    ink = np.asarray(Image.open(path), float)
    y, x = np.indices(ink.shape)
    weight = ink / ink.sum()
    from_left, from_top = x - (weight * x).sum(), y - (weight * y).sum()
    width2, height2 = (weight * from_left**2).sum(), (weight * from_top**2).sum()
    shear = -(weight * from_left * from_top).sum() / height2
    paper = np.pad(ink < ink.max() / 2, 1, constant_values=True)
    return {
        "digit": int(path.name[0]),
        "ink": 100 * ink.mean() / 255,
        "width": np.sqrt(width2),
        "height": np.sqrt(height2),
        "slant": np.degrees(np.arctan(shear)),
        "holes": ndimage.label(paper)[1] - 1,  # all paper that is not around the digit
    }


def read(c: float, gamma: float, images: Array, labels: Array) -> Array:
    """Return what is read in each image by a machine that has learned from the others."""
    return cross_val_predict(SVC(C=c, gamma=gamma, random_state=0), images, labels, cv=3)


def accuracy(c: float, gamma: float, images: Array, labels: Array) -> float:
    """
    Return how many digits are read correctly, in per cent.

    Parameters
    ----------
    c, gamma : float
        Parameters of the support vector machine: how much a mistake costs, and how fast the
        similarity of two images falls with their distance.
    images : ndarray, (n, k)
        One image a row.
    labels : ndarray of int, (n,)
        The digits.
    """
    return 100 * float(np.mean(read(c, gamma, images, labels) == labels))


def confusion(c: float, gamma: float, images: Array, labels: Array) -> tuple[float, Array]:
    """Return the accuracy, and how often (in per cent) each digit, a row, was read as which."""
    seen = read(c, gamma, images, labels)
    matrix = confusion_matrix(labels, seen, normalize="true")
    return 100 * float(np.mean(seen == labels)), 100 * matrix


def interval(group: Any, rng: np.random.Generator) -> dict[str, float]:
    """
    Estimate how sure the mean slant of some digits is.

    Parameters
    ----------
    group : DataFrame
        Measurements of the digits.
    rng : Generator
        Draws the samples.

    Returns
    -------
    dict
        ``mean``, and ``low`` and ``high``, between which 95 % of the means of samples lie.
    """
    slants = group["slant"].to_numpy()
    means = [rng.choice(slants, len(slants)).mean() for _ in range(5000)]
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": slants.mean(), "low": low, "high": high}


def trial(_: int, images: Array, labels: Array, rng: np.random.Generator) -> Array:
    """
    Let a machine learn two thirds of the digits, chosen at random, and read the others.

    Returns
    -------
    ndarray, (3,)
        1, the share that is read correctly, in per cent, and its square: the sums of many trials
        tell the mean and its standard error.
    """
    test, others = np.split(rng.permutation(len(labels)), [len(labels) // 3])
    machine = SVC(C=10.0, gamma=1e-3, random_state=0).fit(images[others], labels[others])
    score = 100 * machine.score(images[test], labels[test])
    return np.array([1.0, score, score**2])


def ink(page: Array) -> Array:
    """
    Return where a photographed page has ink: where it is darker than the paper around.

    Parameters
    ----------
    page : ndarray
        Brightness. A result depends on no pixel further away than 40.
    """
    paper = ndimage.gaussian_filter(ndimage.maximum_filter(page, 33), 8, truncate=3.0)
    return page < 0.75 * paper
