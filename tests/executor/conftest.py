"""The fixtures of the tests in executor/."""

from __future__ import annotations

import pytest

from nbshare import Executor


@pytest.fixture(scope="module")
def shared_executor():
    with Executor(2) as executor:
        yield executor


@pytest.fixture
def executor(shared_executor):
    """Give an executor of two workers, which no test shuts down."""
    return shared_executor


@pytest.fixture
def gate(tmp_path):
    """Give a path for tasks to wait for, that is there at the end of the test."""
    path = tmp_path / "gate"
    yield path
    path.touch()
