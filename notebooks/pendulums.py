"""Pendulums, simple and double: what the workers simulate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

GRAVITY = 9.81  # m/s²
LENGTH = 0.25  # m: swings about once a second
FRICTION = 0.5  # 1/s
STEP = 0.004  # s

Array = npt.NDArray[Any]


def response(frequency: float, drive: float = 2.5) -> Array:
    """
    Return the steady swing of a pendulum that is pushed at a steady frequency.

    Parameters
    ----------
    frequency : float
        Frequency of the pushes, in Hz.
    drive : float
        Strength of the pushes, in rad/s².

    Returns
    -------
    ndarray of float64, (2,)
        The amplitude, and the lag behind the pushes; both in degrees.
    """
    angle = speed = 0.0
    in_phase = behind = 0.0
    omega = 2 * math.pi * frequency
    period = 1 / frequency
    settled, n = 15 * period, round(25 * period / STEP)
    for step in range(n):
        t = step * STEP
        push = drive * math.cos(omega * t)
        speed += STEP * (push - GRAVITY / LENGTH * math.sin(angle) - FRICTION * speed)
        angle += STEP * speed
        if t >= settled:  # the next 10 periods are averaged
            in_phase += angle * math.cos(omega * t)
            behind += angle * math.sin(omega * t)
    count = n - settled / STEP
    amplitude = 2 * math.hypot(in_phase, behind) / count
    return np.degrees([amplitude, math.atan2(behind, in_phase)])


def amplitude(frequency: float) -> float:
    """Return the amplitude of `response`, in degrees."""
    return float(response(frequency)[0])


def measured_gravity(_trial: int, rng: np.random.Generator) -> float:
    """
    Return the gravity, in m/s², that a student measures with a ruler and a stopwatch.

    The pendulum starts at about 10 degrees, and the student times ten swings by hand.
    """
    angle, speed, t, swings = math.radians(rng.normal(10, 2)), 0.0, 0.0, 0
    while swings < 10:
        speed -= STEP * GRAVITY / LENGTH * math.sin(angle)
        before, angle = angle, angle + STEP * speed
        t += STEP
        swings += before < 0 <= angle
    seconds = t + rng.normal(0, 0.1)  # of a thumb's delay
    length = LENGTH + rng.normal(0, 0.001)
    return (2 * math.pi * 9.75 / seconds) ** 2 * length  # from the top to the 10th crossing


def time_to_flip(first: float, second: Array, seconds: float = 10.0) -> Array:
    """
    Return when a double pendulum, released at rest, flips over.

    Parameters
    ----------
    first : float
        Angle of the upper arm, in degrees from hanging.
    second : ndarray, (k,)
        Angles of the lower arm, in degrees; one pendulum for each.
    seconds : float
        End of the simulation.

    Returns
    -------
    ndarray of float32, (k,)
        Seconds; NaN for pendulums that have not flipped by then.
    """
    a, b = np.full(len(second), math.radians(first)), np.radians(second)
    u, v = np.zeros_like(a), np.zeros_like(b)  # angular velocities
    flipped = np.full(len(second), np.nan, np.float32)
    step, g = 0.01, GRAVITY  # arms of one metre, with equal weights at their ends
    for k in range(round(seconds / step)):
        cos, sin = np.cos(a - b), np.sin(a - b)
        below = 2 - cos**2
        turn_a = -(cos * (u**2 * sin - g * np.sin(b)) + v**2 * sin + 2 * g * np.sin(a)) / below
        turn_b = (cos * (v**2 * sin + 2 * g * np.sin(a)) + 2 * (u**2 * sin - g * np.sin(b))) / below
        u, v = u + step * turn_a, v + step * turn_b
        a, b = a + step * u, b + step * v
        new = np.isnan(flipped) & ((abs(a) > np.pi) | (abs(b) > np.pi))
        flipped[new] = k * step
    return flipped
