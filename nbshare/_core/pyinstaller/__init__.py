"""The hook of nbshare for PyInstaller, which finds it through an entry point."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the folder of the hook, as a list."""
    return [os.path.dirname(__file__)]
