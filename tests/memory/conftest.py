"""The fixtures of the tests in memory/."""

from __future__ import annotations

import pytest

from nbshare._core.system import SYSTEM, sections
from tests.support.programs import SETTING, Program

KINDS = ["memfd", "named", "file"] if SYSTEM == "linux" else [*sections.kinds("")]


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch):
    """Let memory be made of one kind. Files are in a directory of the test's own."""
    folder = tmp_path / "memory"
    folder.mkdir()
    setting = f"file:{folder}" if request.param == "file" else request.param
    monkeypatch.setenv(SETTING, setting)
    return setting


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)
