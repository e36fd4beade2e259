"""Lines that a user types, or is told to type, have the words that the user's shell sees."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbshare._core.system import shell

PATHS = st.text(st.characters(exclude_characters='"\r\n\0', exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("is_windows", [True, False])
@given(path=PATHS)
def test_a_path_that_a_user_is_told_is_read_as_it_is(is_windows, path):
    """Both on Windows and elsewhere."""
    word = shell.as_word(path, is_windows=is_windows)
    assert shell.words_in(word, is_windows=is_windows) == [path]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"sub\steps.py", [r"sub\steps.py"]),
        (r"C:\new\table.py --force", [r"C:\new\table.py", "--force"]),
        (r'"my folder\steps.py"', [r"my folder\steps.py"]),
        (r"'my folder\steps.py' --force", [r"my folder\steps.py", "--force"]),
        (r"\\server\share\x.py", [r"\\server\share\x.py"]),
        (r"C:\Users\O'Brien\x.py", [r"C:\Users\O'Brien\x.py"]),
        ("lib/steps.py", ["lib/steps.py"]),
        ("", []),
    ],
)
def test_the_words_of_a_line_on_windows(line, words):
    """A backslash is a part of a path there."""
    assert shell.words_in(line, is_windows=True) == words


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (r"C:\runs\a.ckpt", r"C:\runs\a.ckpt"),
        (r"C:\my runs\a.ckpt", r'"C:\my runs\a.ckpt"'),
        (r"C:\R&D\Übung(1).ckpt", r'"C:\R&D\Übung(1).ckpt"'),
        (r"C:\O'Brien\a.ckpt", r'''"C:\O'Brien\a.ckpt"'''),
    ],
)
def test_a_path_on_windows_has_double_quotation_marks_if_any(path, word):
    """The only ones that cmd.exe knows, for all characters that mean something else there."""
    assert shell.as_word(path, is_windows=True) == word


@pytest.mark.parametrize("path", ["plain", "a b", "R&D (1)", "O'Brien", "a;b,c=d", "ä$HOME%PATH"])
def test_the_system_s_own_shell_reads_it_so(path):
    """A program gets the path as one argument."""
    line = (
        f"{shell.as_word(sys.executable)} -c {shell.as_word('import sys;print(ascii(sys.argv))')}"
    )
    told = subprocess.run(
        f"{line} {shell.as_word(path)}", shell=True, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == ascii(["-c", path])
