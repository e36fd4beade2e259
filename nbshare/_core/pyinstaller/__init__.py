"""The hook for PyInstaller, which finds it by an entry point."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the folder of the hook."""
    return [os.path.dirname(__file__)]
