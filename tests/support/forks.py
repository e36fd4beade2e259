"""Processes forked from one that has imported nbshare, in half of what a small run takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import gc, json, os, sys
import nbshare
import nbshare._core.engine.local
gc.freeze()  # so that forks do not copy what is here
for line in sys.stdin:
    out, err, code = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    exec(code)
    break
"""


class Ended(NamedTuple):
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """Runs programs, each in a forked process of its own, as by ``python -c``.

    Parameters
    ----------
    folder : Path
        Where their output goes until it is read.
    """

    def __init__(self, folder: Path) -> None:
        self._files = [str(folder / name) for name in ("out", "err")]
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        self._popen.stdin.close()
        self._popen.wait()
        self._popen.stdout.close()

    def run(self, code: str, folder: Path) -> Ended:
        """Run a program in a folder, to its end."""
        code = f"os.chdir({str(folder)!r})\n{code}"
        self._popen.stdin.write(json.dumps([*self._files, code]) + "\n")
        self._popen.stdin.flush()
        returncode = int(self._popen.stdout.readline())
        return Ended(returncode, *(Path(file).read_text() for file in self._files))
