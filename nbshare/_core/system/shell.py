"""Words of a command line, as the user's shell knows them: sh, or cmd.exe and PowerShell."""

from __future__ import annotations

import os
import re
import shlex

IS_WINDOWS = os.name == "nt"

_PLAIN = re.compile(r"[\w\\/:.~+-]+")  # no shell of Windows sees anything else in it


def words_in(line: str, *, is_windows: bool = IS_WINDOWS) -> list[str]:
    r"""Return the words of a line. On Windows, ``\`` is a part of paths.

    Raises
    ------
    ValueError
        A quotation is not closed.
    """
    words = shlex.split(line, posix=not is_windows)
    return [_unquoted(word) for word in words] if is_windows else words


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def as_word(path: str, *, is_windows: bool = IS_WINDOWS) -> str:
    """Return a path as one word of a line."""
    if not is_windows:
        return shlex.quote(path)
    return path if _PLAIN.fullmatch(path) else f'"{path}"'  # no path has that character there
