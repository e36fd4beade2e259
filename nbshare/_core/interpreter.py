"""The command that runs code in a new Python like this one."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from nbshare import errors

CHECK_S = 10.0  # time limit for a program that may be Python, under another name


def command(code: str) -> list[str]:
    """Return a command that runs code in a new Python with this one's options.

    Raises
    ------
    WorkerDiedError
        If `sys.executable` is not a Python interpreter, as in a program that embeds Python.
    """
    executable = sys.executable
    if not executable or not _is_python(os.fspath(executable)):
        raise errors.WorkerDiedError(
            f"no worker process can be started: sys.executable is {executable!r}, which is not a "
            "Python interpreter. Set it to the interpreter of this process, for example "
            "sys.executable = '/usr/bin/python3'."
        )
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [executable, *options, "-P", "-c", code]


@cache
def _is_python(path: str) -> bool:
    """Return whether a program is Python. It is run only if its name does not contain "py"."""
    folder, name = os.path.split(path)
    if folder and not os.path.exists(path):
        return False
    if "py" in name.lower():
        return True
    code = "print('this is', 'Python')"
    try:
        ended = subprocess.run(
            [path, "-Ic", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=CHECK_S,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return ended.stdout.strip() == b"this is Python"
