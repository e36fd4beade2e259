"""The fixtures of the tests in arrays/."""

from __future__ import annotations

import pytest

from nbshare import RingBuffer


@pytest.fixture
def numbers():
    """Return a ring of slots for one number."""
    return RingBuffer(3, 4, int)
