"""What nbshare's own plots have in common: colours, labels, and axes that keep calm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from numpy.typing import NDArray

# Okabe and Ito's colours, which the colour-blind tell apart too; each line has its own marker.
COLOURS = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000"
MARKERS = "osD^vPX*"

_CALM = 0.1  # of the range: limits that are passed move this much further than needed


def named(label: str, unit: str) -> str:
    """Return the text at an axis."""
    return f"{label} ({unit})" if label and unit else label or unit


def tidy(axes: Axes) -> None:
    """Make the frame and the ticks lighter than the data."""
    axes.tick_params(color="#999999", labelcolor="#444444", labelsize=9)
    axes.spines[:].set_color("#BBBBBB")


def write_dates(axis: Axis) -> None:
    """Write the numbers of an axis as dates."""
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


class CalmLimits:
    """Limits of an axis around all that has come, which do not move with every frame."""

    def __init__(self) -> None:
        self.low, self.high = math.nan, math.nan

    def follow(self, numbers: NDArray[np.float64], *, final: bool) -> None:
        """Move if a number is outside; in the last frame lie close around all of them."""
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            return
        low, high = float(finite.min()), float(finite.max())
        if final or not (self.low <= low and high <= self.high):  # or NaN: the first time
            spread = 0.0 if final else _CALM * (high - low)
            below, above = low < self.low, high > self.high
            first = math.isnan(self.low)
            self.low = low - spread * (below or first)
            self.high = high + spread * (above or first)
            if low >= 0 > self.low:  # counts and energies have no negative values
                self.low = 0.0
        if self.low == self.high:
            margin = abs(self.low) / 10 or 0.5
            self.low, self.high = self.low - margin, self.high + margin
