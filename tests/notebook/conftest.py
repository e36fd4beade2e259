"""Fixtures for tests of what notebooks show."""

from __future__ import annotations

import pytest


@pytest.fixture
def few_pixels(monkeypatch):
    """Draw frames with few pixels, for tests that look at the axes."""
    from nbshare._core.notebook.figure import LiveFigure  # late, as it imports Matplotlib

    drawn = LiveFigure._pixels
    monkeypatch.setattr(LiveFigure, "_pixels", lambda self, dpi: drawn(self, dpi // 4))
