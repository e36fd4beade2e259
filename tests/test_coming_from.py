"""Each pair of programs in ``notebooks/coming_from.md`` gives the same."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.repo

PAGE = (Path(__file__).resolve().parent.parent / "notebooks" / "coming_from.md").read_text("utf-8")
MODULE = re.search(r"```python\n# workers\.py\n(.+?)```", PAGE, re.DOTALL)[1]
PAIRS = {
    title: re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    for title, section in re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.mark.parametrize("title", PAIRS)
def test_both_programs_give_the_same(title, tmp_path):
    """That of multiprocessing below the line that it needs, from Python 3.14 on also on Linux."""
    (tmp_path / "workers.py").write_text(MODULE)
    printed = []
    theirs, ours = (f"{code}\nprint(repr(found))\n" for code in PAIRS[title])
    for code in ('if __name__ == "__main__":\n' + textwrap.indent(theirs, "    "), ours):
        (tmp_path / "program.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        printed.append(eval(done.stdout, {"np": __import__("numpy")}))
    theirs, ours = printed
    assert theirs == ours != []


def test_there_are_pairs_to_try():
    assert len(PAIRS) >= 7
