"""``%%workerfile`` in a real IPython shell, and in a real kernel with workers."""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import re
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbshare import import_file, parallel_map
from nbshare.errors import UnsendableError


class Notebook:
    """A shell, its cells and what they show."""

    def __init__(self, capsys):
        config = Config(
            {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
        )
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(config=config)
        self._capsys = capsys
        assert self.run("%load_ext nbshare").success

    def run(self, cell):
        """Run a cell and return IPython's result of it."""
        return self.shell.run_cell(cell, store_history=True)

    def write(self, body, name="by_magic"):
        """Write a worker file. Returns what the cell shows."""
        result = self.run(f"%%workerfile {name}\n{body}")
        result.raise_error()
        return self.shown()

    def fail(self, cell, error):
        """Run a cell that fails by this error. Returns the error."""
        result = self.run(cell)
        failure = result.error_before_exec or result.error_in_exec
        assert isinstance(failure, error)
        return failure

    def refuse(self, cell):
        """Run a cell that is refused with one line. Returns it."""
        message = str(self.fail(cell, UsageError))
        shown = self._capsys.readouterr()
        assert shown.err == f"UsageError: {message}\n"
        assert shown.out == ""
        return message

    def shown(self):
        """Return what has been shown since the last time."""
        shown = self._capsys.readouterr()
        assert shown.err == ""
        return shown.out

    def __getitem__(self, name):
        return self.shell.user_ns[name]

    def __contains__(self, name):
        return name in self.shell.user_ns


@pytest.fixture
def notebook(tmp_path, monkeypatch, capsys):
    """Give a shell in an empty folder, whose modules are forgotten afterwards."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell makes its own
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)  # a shell leaves it there
    known = set(sys.modules)
    yield Notebook(capsys)
    InteractiveShell.clear_instance()
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def body_of(path="by_magic.py"):
    """Return the file without the line of the magic."""
    with open(path, newline="", encoding="utf-8") as file:
        first, body = file.read().split("\n", 1)
    assert first.startswith("# Written by %%workerfile")
    return body


# ------------------------------------------------------------------ a file and its names


def test_a_cell_becomes_a_module_that_workers_import(notebook):
    """The cell is in the file, its functions in the notebook, and a call runs them at once."""
    body = "import math\n\ndef root(x):\n    return math.sqrt(x)\n"
    assert notebook.write(body, "by_cell") == "by_cell.py: root\n"
    assert body_of("by_cell.py") == body
    assert notebook["root"].__module__ == "by_cell"
    assert notebook.run("import by_cell; assert by_cell.root is root").success
    assert parallel_map(notebook["root"], [1, 4, 9]).tolist() == [1, 2, 3]


# Cells with a function `f` that uses the shell.
OF_THE_SHELL = {
    "!": "def f(x):\n    !echo {x}",
    "= !": "def f(x):\n    out = !echo {x}\n    return out",
    "%": "def f(x):\n    %timeit -n1 -r1 x",
    "get_ipython": "def f(x): return get_ipython().getoutput('echo')",
    "called": "def run(x):\n    !echo {x}\ndef f(x): return run(x)",
    "method": "class Runs:\n    def run(self, x):\n        !echo {x}\nf = Runs().run",
    "imported": "from IPython import get_ipython\ndef f(x): return get_ipython().system('echo')",
    "file": "%%writefile by_shell.py\ndef f(x): return get_ipython().getoutput('echo')",
}


@pytest.mark.parametrize("kind", OF_THE_SHELL)
def test_a_function_that_uses_the_shell_is_told_what_to_use(notebook, kind):
    """Workers have no shell, whether the function is of a cell or of a file."""
    assert notebook.run(OF_THE_SHELL[kind]).success
    func = import_file("by_shell.py").f if kind == "file" else notebook["f"]
    with pytest.raises((UnsendableError, NameError, AttributeError)) as caught:
        parallel_map(func, [0], progress=False)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "Lines that begin with ! or %" in said
    assert "use subprocess.run" in said
    if kind not in ("imported", "file"):
        with pytest.raises(UnsendableError, match=r"use subprocess\.run"):
            parallel_map(abs, [0], initializer=func, initargs=[0], progress=False)


def test_workers_run_the_new_code_after_each_rewrite(notebook):
    """Time and again, also where the new file is as long as the old one."""
    for i in range(5):
        notebook.write(f"def plus(x): return x + {i}")
        assert notebook["plus"](10) == 10 + i
        assert parallel_map(notebook["plus"], [10, 20]).tolist() == [10 + i, 20 + i]


def test_blank_lines_above_the_magic_do_not_count(notebook):
    """IPython leaves them out before the magic."""
    error = notebook.fail("\n \n%%workerfile by_magic\nx = 1\n!ls", SyntaxError)
    assert error.lineno == 3
    assert notebook.run("\n \n%%workerfile by_magic\nx = 1\n").success
    assert body_of() == "x = 1\n"


def test_what_was_imported_before_is_run_as_the_new_file(notebook):
    """By any import, with functions of module and notebook. A removed name is refused."""
    notebook.write("def f(x): return 'first'\ndef g(x): return 'first'", "by_import")
    assert notebook.run("import by_import; from by_import import f as kept").success
    notebook.write("def f(x): return 'second'", "by_import")
    for func in (notebook["by_import"].f, notebook["kept"], notebook["f"]):
        assert parallel_map(func, [0]) == ["second"]
    assert not hasattr(notebook["by_import"], "g")
    with pytest.raises(UnsendableError, match=r"by_import\.py' has changed since 'g'"):
        parallel_map(notebook["g"], [0])


def test_the_module_is_executed_each_time(notebook):
    """A cell that has not changed reads its data anew."""
    for value in (1, 2):
        Path("value.txt").write_text(str(value))
        notebook.write(
            "import numpy as np\nvalue = np.loadtxt('value.txt')\ndef get(): return value"
        )
        assert notebook["get"]() == value


def test_functions_and_classes_of_its_own_are_bound(notebook):
    """Neither what it imports, nor values, nor names with an underscore."""
    notebook.shell.user_ns["rate"] = "the notebook's"
    shown = notebook.write("""
import numpy as np
from functools import partial, lru_cache
try:
    from no_such_package import fast
except ImportError:
    def fast(f): return f
rate = 50
for i in range(3):
    pass
@lru_cache
def slope(x): return x
class Grid:
    def area(self): return 1
double = partial(slope, 2)
def _helper(x): return x
""")
    assert shown == "by_magic.py: slope, Grid, double\n"
    assert notebook["rate"] == "the notebook's"
    assert not {"np", "partial", "fast", "i", "area", "_helper"} & notebook.shell.user_ns.keys()


def test_all_says_what_is_bound(notebook):
    """Values and underscores too. A name that is not there is an error that names it."""
    body = "__all__ = ['RATE', '_f']\nRATE = 50\ndef _f(x): return x\ndef g(x): return x\n"
    assert notebook.write(body) == "by_magic.py: RATE, _f\n"
    assert notebook["RATE"] == 50
    assert "g" not in notebook
    error = notebook.fail("%%workerfile by_magic\n__all__ = ['missing']", AttributeError)
    assert "missing" in str(error)


def test_a_file_without_functions_says_so(notebook):
    """A cell of constants is a module as well."""
    assert notebook.write("RATE = 50") == "by_magic.py: nothing public\n"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("by_name", "by_name.py"),
        ("by_name.py", "by_name.py"),
        ("größe", "größe.py"),
        ("lib/by_name.py", "lib/by_name.py"),
        ("../beside/by_name", "../beside/by_name.py"),
        ("'a folder/by_name.py'", "a folder/by_name.py"),
        ("{place}/by_name", "there/by_name.py"),
    ],
)
def test_names_of_files(notebook, name, path):
    """With and without .py, in folders, with blanks in them, from a variable as in other magics."""
    notebook.shell.user_ns["place"] = "there"
    assert notebook.write("def answer(x): return 42", name) == f"{path}: answer\n"
    assert body_of(path) == "def answer(x): return 42\n"
    assert parallel_map(notebook["answer"], [0]).tolist() == [42]


def test_files_of_one_name_in_two_folders_are_two_modules(notebook):
    """Neither is refused for the other, nor taken for it."""
    kept = {}
    for folder in ("a", "b", "a"):
        notebook.write(f"def home(x): return {folder!r}", f"{folder}/by_twin")
        kept[folder] = notebook["home"]
    for folder, home in kept.items():
        assert parallel_map(home, [0]) == [folder]


KEPT = {
    "crlf": "def f(x):\r\n\treturn 'é'\r\n",
    "a text": "TEXT = '''\n  \n>>> \n'''\nassert len(TEXT) == 9\ndef f(x): return 'é'\n",
    "blanks": "def f(x):   \n    \n    return 'é'\t \n\n\n",
    "form feed": "\f\ndef f(x):\n    return 'é'\n",
    "unicode line ends": "NOTE = 'a\u2028b\x85c'\ndef f(x): return 'é'\n",
    "another encoding": "# -*- coding: latin-1 -*-\ndef f(x): return 'é'\n",
    "future import": "'A module.'\nfrom __future__ import annotations\ndef f(x): return 'é'\n",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_the_cell_is_kept_to_the_byte(notebook, body):
    """Line ends, tabs, blanks and letters are in the file as in the cell, and mean the same."""
    notebook.write(body)
    assert body_of() == body
    assert parallel_map(notebook["f"], [0]) == ["é"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"))),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_any_text_is_kept(notebook, texts, line_end):
    """All comments of a cell are in the file, and the line below has its number."""
    body = "".join(f"# {text}{line_end}" for text in texts) + "def f(x): return x\n"
    notebook.write(body)
    assert body_of() == body
    assert notebook["f"].__code__.co_firstlineno == len(texts) + 2


# ----------------------------------------------------------------------- the file itself


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes on Windows")
def test_the_file_keeps_its_mode_and_its_link(notebook):
    """A new file has the mode that the umask gives. A changed one, and a link, stay."""
    before = os.umask(0o027)
    try:
        notebook.write("def f(x): return 1", "target")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat("target.py").st_mode) == 0o640
    os.chmod("target.py", 0o604)
    os.symlink("target.py", "by_link.py")
    notebook.write("def f(x): return 2", "by_link")
    assert os.path.islink("by_link.py")
    assert body_of("target.py") == "def f(x): return 2\n"
    assert stat.S_IMODE(os.stat("target.py").st_mode) == 0o604


def test_a_reader_never_sees_half_a_file(notebook):
    """A reader of the file, while the cell is run again and again, sees the old or the new one."""
    bodies = {f"VALUE = {i}\n" + "# a long line\n" * 20_000 for i in range(20)}
    notebook.write("VALUE = -1\n")
    seen, ended = {body_of()}, threading.Event()

    def read():
        while not ended.wait(0.003):  # Windows replaces no file while it is open
            with contextlib.suppress(PermissionError):  # for a moment, on Windows
                seen.add(body_of())

    reader = threading.Thread(target=read)
    reader.start()
    for body in bodies:
        notebook.write(body)
    ended.set()
    reader.join()
    assert seen <= {"VALUE = -1\n", *bodies}
    assert os.listdir() == ["by_magic.py"]


def test_a_file_that_cannot_be_written_is_refused(notebook):
    """Nothing is left next to it."""
    os.mkdir("by_folder.py")
    assert "by_folder.py cannot be written" in notebook.refuse("%%workerfile by_folder\nx = 1")
    assert os.listdir() == ["by_folder.py"]


def test_a_file_of_the_users_is_not_overwritten(notebook):
    """Without --force. With it the file is the magic's own from then on."""
    with open("by_hand.py", "w") as file:
        file.write("def f(x): return 'by hand'")
    message = notebook.refuse("%%workerfile by_hand.py\ndef f(x): return 'by cell'")
    assert "by_hand.py" in message
    assert "--force" in message
    assert import_file("by_hand.py").f(0) == "by hand"
    notebook.write("def f(x): return 'by cell'", "--force by_hand.py")
    notebook.write("def f(x): return 'again'", "by_hand.py")
    assert parallel_map(notebook["f"], [0]) == ["again"]


def test_another_kernel_may_overwrite_the_file(notebook, capsys):
    """The mark is in the file, not in the kernel's memory."""
    notebook.write("def f(x): return 1")
    other = Notebook(capsys)
    assert other.write("def f(x): return 2") == "by_magic.py: f\n"
    assert other["f"](0) == 2


def test_the_name_of_another_module_is_refused(notebook):
    """Installed, built in or the user's own, imported already or not."""
    for name in ("numpy", "random", "sys", "__main__", "tests", "wave", "lib/json"):
        stem = name.removeprefix("lib/")
        message = notebook.refuse(f"%%workerfile {name}.py\nx = 1")
        assert f"shadow the module {stem}" in message
        assert f"{stem}_workers.py" in message
        assert "--force" in message
    assert os.listdir() == []


def test_a_folder_of_the_same_name_beside_the_file_is_no_module(notebook):
    """Such as one with data or pictures."""
    os.mkdir("by_beside")
    notebook.write("def f(x): return 1", "by_beside")
    assert notebook["f"].__module__ == "by_beside"
    assert parallel_map(notebook["f"], [0]).tolist() == [1]


def test_by_force_the_name_of_another_module_is_taken(notebook):
    """Both modules stay what they are, here and in the workers."""
    for i in range(2):
        notebook.write(f"def four(x): return {4 + i}", "random.py --force")
        assert parallel_map(notebook["four"], [0]).tolist() == [4 + i]
    assert sys.modules["random"] is random
    assert 0 <= random.random() < 1


def test_a_name_that_cannot_be_imported_is_refused(notebook):
    """With a name that can."""
    better = {"my-workers": "my_workers", "2nd": "_2nd", "class": "class_"}
    better["notes.txt"] = "notes_txt"
    for name in better:
        assert f"Call it {better[name]}.py" in notebook.refuse(f"%%workerfile {name}\nx = 1")
    assert os.listdir() == []
    for name in better.values():
        notebook.write("x = 1", name)


@pytest.mark.parametrize("line", [f"a{os.sep}by_magic.py", '"a b/by_magic"', "'a b/by_magic.py'"])
def test_the_file_may_be_in_another_folder(notebook, line):
    """Spelled with the system's own separator, or quoted, with spaces."""
    notebook.write("def f(x): return 1", line)
    (file,) = Path().rglob("*.py")
    assert file.parent.name in ("a", "a b")
    assert file.name == "by_magic.py"
    assert Path(notebook["f"].__code__.co_filename) == file.absolute()


def test_bad_options_give_a_usage_line(notebook):
    """No name, two names, unknown options, a quotation without an end."""
    for line in ("", "a.py b.py", "a.py --frce", "-f a.py", "--force", "'a.py"):
        message = notebook.refuse(f"%%workerfile {line}\nx = 1")
        assert "usage: %%workerfile NAME [--force]" in message
    assert os.listdir() == []


def test_an_empty_cell_is_refused(notebook):
    """And an old file is not emptied."""
    notebook.write("def f(x): return 1")
    for body in ("", "\n", "  \n\t\n"):
        assert "empty" in notebook.refuse(f"%%workerfile by_magic\n{body}")
    assert body_of() == "def f(x): return 1\n"


# ------------------------------------------------------------------------------- errors

NOT_PYTHON = {
    "no colon": ("def g(x) return x", ""),
    "no end": ("y = (1,", ""),
    "indentation": ("   y = 1", ""),
    "return": ("return 3", "outside function"),
    "shell": ("!ls", "'!ls' is IPython, not Python"),
    "shell in a function": ("if x:\n    files = !ls *.py", "'files = !ls *.py' is IPython"),
    "line magic": ("%time f(1)", "'%time f(1)' is IPython"),
    "cell magic": ("%%time", "'%%time' is IPython"),
    "help": ("f?", "'f?' is IPython"),
    "await": ("await f(1)", "only inside an async function"),
    "async with": ("async with f(1): pass", "only inside an async function"),
}


@pytest.mark.parametrize(
    ("kind", "n_before"), [*((kind, 1) for kind in NOT_PYTHON), ("return", 0), ("shell", 40)]
)
def test_what_is_not_python_is_refused_at_its_line(notebook, kind, n_before):
    """As IPython shows it, with the cell's line and text. File and functions stay as they were."""
    bad, words = NOT_PYTHON[kind]
    notebook.write("def f(x): return 1")
    body = "x = 'ä'\n" * n_before + bad
    error = notebook.fail(f"%%workerfile by_magic\n{body}", SyntaxError)
    lines = body.split("\n")
    assert (error.lineno, error.text) == (1 + len(lines), f"{lines[-1]}\n")
    assert words in error.msg
    shown = notebook.shown()
    number = notebook.shell.execution_count - 1
    assert f"In[{number}], line {1 + len(lines)}\n    {lines[-1].strip()}\n" in shown
    assert len(shown.splitlines()) <= 5
    assert body_of() == "def f(x): return 1\n"
    assert parallel_map(notebook["f"], [0]).tolist() == [1]


def test_a_cell_that_breaks_off_is_refused(notebook):
    """A missing line cannot be shown. A file that was not there is not written."""
    error = notebook.fail("%%workerfile by_magic\nx = 1\ndef f(x):", SyntaxError)
    assert error.lineno in (3, 4)
    assert "line 3" in error.msg
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("import no_such_package", ModuleNotFoundError),
        ("raise SystemError('on purpose')", SystemError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_a_failing_import_shows_the_line_of_the_file(notebook, bad, error):
    """The file is the new one, the functions here are those of before, the next cell works."""
    notebook.write("def f(x): return 1")
    old = notebook["f"]
    notebook.fail(f"%%workerfile by_magic\ndef f(x): return 2\n\n\n{bad}", error)
    shown = notebook.shown()
    assert "by_magic.py:5" in shown
    assert f"----> 5 {bad}" in shown
    assert "magics.py" not in shown
    assert "run_cell_magic" not in shown
    assert body_of().endswith(f"{bad}\n")
    assert notebook["f"] is old
    assert old(0) == 1
    notebook.write("def f(x): return 3")
    assert parallel_map(notebook["f"], [0]).tolist() == [3]


def test_a_warning_of_the_compiler_comes_once(notebook):
    """The check says nothing that the import says."""
    with pytest.warns(SyntaxWarning) as warned:
        notebook.write("def f(x): return x is 5")
    assert [(w.lineno, os.path.basename(w.filename)) for w in warned] == [(2, "by_magic.py")]


# ------------------------------------------------------------------------ the extension


def test_the_extension_is_loaded_and_unloaded(notebook):
    """Unloaded it leaves nothing of itself. Loaded again it works."""
    transforms = list(notebook.shell.input_transformers_cleanup)
    assert notebook.run("%unload_ext nbshare").success
    assert len(notebook.shell.input_transformers_cleanup) == len(transforms) - 1
    assert "not found" in notebook.refuse("%%workerfile by_magic\nx = 1")
    assert notebook.run("%load_ext nbshare").success
    assert notebook.run("%reload_ext nbshare").success
    assert len(notebook.shell.input_transformers_cleanup) == len(transforms)
    assert notebook.write("def f(x): return x") == "by_magic.py: f\n"


def test_help_is_there(notebook):
    """``%%workerfile?`` explains arguments and errors."""
    assert notebook.run("%%workerfile?").success
    shown = notebook.shown()
    for words in ("%%workerfile NAME [--force]", "--force", "SyntaxError", "parallel_map"):
        assert words in shown


def test_a_cell_may_be_typed_line_by_line(notebook):
    """At a terminal's prompt a cell that is not complete yet is not refused."""
    status, _ = notebook.shell.check_complete("%%workerfile by_magic\ndef f(x):\n    return (1,\n")
    assert status == "incomplete"


# ----------------------------------------------------------------------- in a real kernel


@pytest.fixture
def kernel(common):
    """Give a kernel that has the magics."""
    _, kernel = common
    kernel.run_well("%load_ext nbshare")
    yield kernel
    kernel.run_well("%unload_ext nbshare")


def test_in_a_kernel_cells_are_written_run_and_changed(kernel):
    """As a user does it: write, map, change, map, also while other cells queue."""
    for i in range(3):
        written = kernel.start(f"%%workerfile steps.py\ndef step(x):\n    return x + {i}\n")
        mapped = kernel.start("print(quiet(step, range(3)))")
        assert kernel.finish(written).stdout == "steps.py: step\n"
        assert kernel.finish(mapped).stdout == f"{np.arange(3) + i}\n"


@pytest.mark.parametrize(
    ("body", "error", "place"),
    [
        ("\n\n\ndef step(x) return x", "SyntaxError", "line 5"),
        ("\n\n\nimport no_such_package", "ModuleNotFoundError", "steps.py:5"),
    ],
)
def test_in_a_kernel_an_error_ends_run_all(kernel, tmp_path, body, error, place):
    """It is shown with its line and in few lines. The next cells do not run."""
    kernel.run("%%workerfile steps.py\ndef step(x):\n    return 7\n")
    gate = tmp_path / "gate"  # a cell that comes after the error is one that the user has run anew
    waiting = (
        f"import time, pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.1)"
    )
    kernel.start(waiting)
    failing = kernel.start(f"%%workerfile steps.py\n{body}\n")
    queued = kernel.start("raise SystemError('a queued cell ran')")
    gate.touch()
    cell = kernel.finish(failing)
    assert cell.error == error
    assert place in re.sub(r"\x1b\[[\d;]*m", "", cell.traceback)
    assert len(cell.traceback.splitlines()) <= 12
    assert kernel.finish(queued).status == "aborted"
    assert kernel.run("print(step(0))").stdout == "7\n"


def test_in_a_kernel_workers_say_that_the_file_is_broken(kernel):
    """A file that cannot be imported fails in them at its line, so they do not run the old one."""
    kernel.run("%%workerfile steps.py\ndef step(x):\n    return 7\n")
    kernel.run("%%workerfile steps.py\n1 / 0\ndef step(x):\n    return 8\n")
    cell = kernel.run("quiet(step, range(2))")
    assert cell.error == "ZeroDivisionError"
    assert "steps.py" in cell.traceback


def test_in_a_kernel_a_workers_error_names_the_line_of_the_cell(kernel):
    """Line 3 of the cell is line 3 of the file in the worker's traceback."""
    kernel.run("%%workerfile steps.py\ndef step(x):\n    return 1 / x\n")
    cell = kernel.run("quiet(step, [1, 0])")
    assert cell.error == "ZeroDivisionError"
    assert re.search(r"steps\.py\W+(line )?3\b", re.sub(r"\x1b\[[\d;]*m", "", cell.traceback))
