"""Words of a command line in the user's shell: sh, or cmd.exe and PowerShell."""

from __future__ import annotations

import os
import re

IS_WINDOWS = os.name == "nt"

_PLAIN = r"[\w\\/:.~+-]+"  # plain words in all shells of Windows


def words_in(line: str, *, is_windows: bool = IS_WINDOWS) -> list[str]:
    r"""Split a line into words. On Windows, ``\`` is an ordinary character of paths.

    Raises
    ------
    ValueError
        If a quotation is not closed.
    """
    import shlex  # late, because workers import this module

    words = shlex.split(line, posix=not is_windows)
    return [_unquoted(word) for word in words] if is_windows else words


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def with_limits(text: str, *letters: str) -> str:
    """Return a text about limits of the system, with the commands that show them, if any."""
    return text if IS_WINDOWS else f"{text} ({', '.join(f'ulimit -{each}' for each in letters)})"


def as_word(path: str, *, is_windows: bool = IS_WINDOWS) -> str:
    """Return a path as one word of a line."""
    if not is_windows:
        import shlex

        return shlex.quote(path)
    return path if re.fullmatch(_PLAIN, path) else f'"{path}"'  # no path contains a quotation mark
