"""The backends of this machine keep the contract: processes, threads, and one after the other."""

from __future__ import annotations

import pytest
from contract import BackendContract


class TestProcesses(BackendContract):
    """Worker processes, the default."""

    @pytest.fixture
    def backend(self):
        """Name none."""


class TestThreads(BackendContract):
    """Threads of this process."""

    lacks = frozenset({"timeout"})

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "threads"


class TestSerial(BackendContract):
    """One item after the other, in the thread that calls."""

    lacks = frozenset({"timeout", "background"})

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "serial"
