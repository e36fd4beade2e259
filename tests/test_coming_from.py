"""Both sides of each row and pair of programs in ``notebooks/coming_from.md`` give the same."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.repo

PAGE = (Path(__file__).resolve().parent.parent / "notebooks" / "coming_from.md").read_text("utf-8")
MODULE = re.search(r"```python\n# workers\.py\n(.+?)```", PAGE, re.DOTALL)[1]
PAIRS = {
    title: re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    for title, section in re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    if "```python" in section
}
ROWS = re.findall(r"^\| `(.+?)`[^|]* \| (.*`.+`.*) \|$", PAGE, re.MULTILINE)

FUNCTIONS = """
import numpy as np

def f(x, data):
    return x * data.sum()

def g(x):
    return x + SHIFT

def h(a, b):
    return 10 * a + b

SHIFT = 0

def load(path):
    global SHIFT
    SHIFT = len(path)
"""
GIVEN = """
import sys
import numpy as np
import pandas as pd
from functools import partial
from concurrent.futures import Executor as _, ProcessPoolExecutor
from multiprocessing import pool
from joblib import Parallel, delayed
from tqdm.contrib.concurrent import process_map
from nbshare import Executor, grid, map_async, parallel_map, shutdown
from functions_of_rows import f, g, h, load

xs, data, path = [3, 1, 2], np.arange(5.0), "abc"
pairs, as_, bs = [(1, 2), (3, 4)], [1, 2], [3, 4, 5]
x, df = xs[0], pd.DataFrame({"k": [1, 2, 2, 1], "y": [3, 4, 5, 6]})
pools = []

def Pool(**options):
    pools.append(pool.Pool(**options))
    return pools[-1]

def values(code):
    names = dict(globals())
    if code.startswith("for "):
        head, _, body = code.partition(":")
        exec(head + ": found.append(r)", names := {**names, "found": []})
        return sorted(names["found"])
    *before, last = code.split(";")
    exec(";".join(before), names)
    value = eval(last, names)
    value = value.result() if hasattr(value, "result") else value
    return np.asarray(value if isinstance(value, int) else list(value)).tolist()

if __name__ == "__main__":
    for theirs, ours in eval(sys.argv[1]):
        print([values(theirs), values(ours)])
        shutdown()  # else workers of the next row have run the initializer of this one
        while pools:  # else the next row would fork amid their threads, and might hang
            pools[-1].terminate()
            pools.pop().join()
"""


def run(folder, name, code, *arguments):
    (folder / name).write_text(code)
    command = [sys.executable, name, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("title", PAIRS)
def test_both_programs_give_the_same(title, tmp_path):
    """That of multiprocessing below the line that it needs, from Python 3.14 on also on Linux."""
    (tmp_path / "workers.py").write_text(MODULE)
    theirs, ours = (f"{code}\nprint(repr(found))\n" for code in PAIRS[title])
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(theirs, "    ")
    printed = [run(tmp_path, "program.py", code) for code in (guarded, ours)]
    theirs, ours = (eval(text, {"np": np}) for text in printed)
    assert theirs == ours != []


def test_there_are_pairs_to_try():
    assert len(PAIRS) >= 7


def runnable(theirs, ours):
    """Return both sides of a row as code."""
    if "(pandarallel)" in PAGE[PAGE.index(theirs) :].splitlines()[0]:
        theirs = 'list(map(g, dict(iter(df.groupby("k"))).values()))'  # it is not installed
    return theirs, ";".join(part.replace(" = ", "=", 1) for part in re.findall(r"`(.+?)`", ours))


def test_what_one_writes_elsewhere_is_written_so_here(tmp_path):
    """Both sides of each row of the first table give the same values."""
    (tmp_path / "functions_of_rows.py").write_text(FUNCTIONS)
    rows = [runnable(*row) for row in ROWS]
    printed = run(tmp_path, "rows.py", GIVEN, repr(rows)).splitlines()
    for row, line in zip(ROWS, printed, strict=True):
        theirs, ours = eval(line)
        assert theirs == ours != [], row


def test_an_initializer_may_be_defined_next_to_the_function(tmp_path):
    """In the script, or notebook, itself. Both sides see what it sets."""
    rows = [runnable(*row) for row in ROWS if "initializer" in row[0]]
    given = GIVEN.replace("from functions_of_rows import f, g, h, load", FUNCTIONS)
    assert rows
    for line in run(tmp_path, "rows.py", given, repr(rows)).splitlines():
        assert eval(line) == [[6, 4, 5]] * 2


def test_there_are_rows_to_try():
    """Without this the tests above would pass with a table that it does not understand."""
    assert len(ROWS) >= 10
