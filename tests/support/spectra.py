"""Classes that pickle their arrays as bytes, some of which are registered with nbshare."""

from __future__ import annotations

from typing import Any

import numpy as np

import nbshare
from nbshare._core.memory import segment_of


class Spectrum:
    """Its module has registered it."""

    def __init__(self, flux: Any) -> None:
        self.flux = flux

    def __reduce__(self) -> Any:
        return type(self).read, (self.flux.tobytes(),)

    @classmethod
    def read(cls, data: bytes) -> Any:
        """Return the spectrum that a pickle holds."""
        return cls(np.frombuffer(data))


class Calibrated(Spectrum):
    """Is pickled as its base is."""


class Signed(Spectrum):
    """Is pickled in a way of its own."""

    def __reduce__(self) -> Any:
        return type(self).read, ((-self.flux).tobytes(),)


class Plain(Spectrum):
    """Registered by no module."""


def parts_of(spectrum: Spectrum) -> Any:
    return type(spectrum), (spectrum.flux,)


nbshare.register_type(Spectrum, parts_of)


def spectrum(i: int) -> Spectrum:
    return Spectrum(np.full(10_000, float(i)))


def is_shared(spectrum: Spectrum) -> bool:
    """Whether a spectrum's array is in memory that other processes map too."""
    return segment_of(spectrum.flux) is not None


def add_one(tensor: Any) -> float:
    """Change a tensor in place."""
    tensor += 1
    return float(tensor.sum())


def total(tensor: Any) -> float:
    return float(tensor.sum())


def sum_of(_: int, tensor: Any) -> float:
    """Return the sum of a tensor, which this changes."""
    found = total(tensor)
    tensor.zero_()
    return found
