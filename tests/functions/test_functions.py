"""The functions of a run, from files, from packages, and by value from scripts and commands."""

from __future__ import annotations

import _ctypes
import functools
import importlib
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import import_file, parallel_map
from nbshare._core.functions.installed import STANDARD_LIBRARY
from nbshare.errors import MixedResultsWarning, UnsendableError
from tests.support import tasks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder that is not on the import path. Forget its modules afterwards."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        path = getattr(sys.modules[name], "__file__", None) or ""
        if path.startswith(str(tmp_path)):
            del sys.modules[name]


def write(path, code):
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


# -------------------------------------------------------------------------- import_file


def test_a_module_is_imported_by_its_path(folder):
    """A file that is not on the import path becomes a module. Workers run its functions."""
    write(folder / "by_path.py", "def triple(x): return 3 * x")
    module = import_file("by_path.py")
    assert module.__name__ == "by_path"
    assert module.__file__ == str(folder / "by_path.py")
    assert sys.modules["by_path"] is module
    assert parallel_map(module.triple, [1, 2]).tolist() == [3, 6]


def test_a_file_that_has_not_changed_is_imported_once(folder):
    """The second import of an unchanged file gives the same module, by whatever path."""
    path = write(folder / "by_once.py", "state = []")
    module = import_file(path)
    module.state.append(1)
    assert import_file("by_once.py") is module
    assert import_file(folder / "." / "by_once.py") is module
    assert import_file(os.path.relpath(path, folder)).state == [1]


def test_a_file_that_ends_the_program_is_refused(folder):
    """A script without a main guard is an error that names it and the remedy, not the end."""
    write(folder / "by_exit.py", "import sys; sys.exit(4)")
    with pytest.raises(ImportError, match=r"by_exit\.py.*SystemExit\(4\).*__main__"):
        parallel_map("by_exit.py:f", [1])


def test_a_changed_file_is_imported_again(folder):
    """After an edit the caller gets the new functions, and so do the workers, time and again."""
    for i in range(5):
        path = write(folder / "by_edit.py", f"def plus(x): return x + {i}")
        os.utime(path, ns=(10**18, 10**18 + i))  # the same second, and the size is the same too
        module = import_file("by_edit.py")
        assert module.plus(0) == i
        assert parallel_map(module.plus, [10]).tolist() == [10 + i]


def test_workers_run_the_file_for_an_old_function_too(folder):
    """A function kept from before an edit is the old one for its caller, and new in workers."""
    write(folder / "by_old.py", "def version(x): return 'old'")
    old = import_file("by_old.py").version
    write(folder / "by_old.py", "def version(x): return 'newer'")
    new = import_file("by_old.py").version
    assert (old(0), new(0)) == ("old", "newer")
    assert parallel_map(old, [0]) == ["newer"]
    assert parallel_map(new, [0]) == ["newer"]


def test_a_changed_file_is_imported_into_the_same_module(folder):
    """Code that has imported the module sees its new names, and none that the file has lost."""
    write(folder / "by_same.py", "kept = 1\ndef lost(x): return x")
    module = import_file("by_same.py")
    write(folder / "by_same.py", "kept = 22\ndef added(x): return x")
    assert import_file("by_same.py") is module is sys.modules["by_same"]
    assert (module.kept, module.added(3), hasattr(module, "lost")) == (22, 3, False)


def test_a_broken_edit_leaves_the_module_of_before(folder):
    """A file that fails at import raises its own error, and the old module stays in place."""
    write(folder / "by_broken.py", "def good(x): return x")
    module = import_file("by_broken.py")
    for code, error in [("def good(x) return x", SyntaxError), ("1 / 0", ZeroDivisionError)]:
        write(folder / "by_broken.py", code)
        with pytest.raises(error):
            import_file("by_broken.py")
        assert sys.modules["by_broken"] is module
        assert module.good(1) == 1
    write(folder / "by_broken.py", "def good(x): return x + 0.5")
    assert parallel_map(import_file("by_broken.py").good, [1]).tolist() == [1.5]


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize("way", ["import_file", "a text"])
def test_a_file_that_was_imported_by_name_is_used_as_it_is(folder, monkeypatch, way, is_edited):
    """Results have the caller's class, unless the file has changed, which then is imported."""
    monkeypatch.syspath_prepend(folder)
    code = "class Result: value = 1\ndef f(x): return Result()"
    path = write(folder / f"by_name_{way[0]}{is_edited}.py", code)
    module = importlib.import_module(path.stem)
    kind = module.Result
    if is_edited:
        write(path, code.replace("1", "22"))
    func = import_file(path).f if way == "import_file" else f"{path}:f"
    (result,) = parallel_map(func, [0], progress=False)
    assert isinstance(result, kind) is not is_edited
    assert (result.value, module.f(0).value) == ((22, 22) if is_edited else (1, 1))


def test_a_broken_edit_of_a_file_imported_by_name_is_an_error_each_time(folder, monkeypatch):
    """The error is not lost when the module of before is in its place."""
    monkeypatch.syspath_prepend(folder)
    path = write(folder / "by_name_broken.py", "def f(x): return x")
    importlib.import_module(path.stem)
    write(path, "def f(x) return x")
    for _ in range(2):
        with pytest.raises(SyntaxError):
            import_file(path)


def test_a_script_keeps_its_classes_when_it_calls_by_path(folder):
    """Also if it has imported the module before nbshare."""
    write(folder / "by_script.py", "class Result: pass\ndef f(x): return Result()")
    code = """
        from by_script import Result
        from nbshare import parallel_map
        print(isinstance(parallel_map("by_script.py:f", [0])[0], Result))
    """
    command = [sys.executable, write(folder / "script.py", code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert ended.stdout == "True\n", ended.stderr


def test_what_is_no_module_file_is_refused(folder):
    """Missing files, folders and other files are refused with their names."""
    (folder / "notes.txt").touch()
    (folder / "folder.py").mkdir()
    for path, error in [
        ("missing.py", FileNotFoundError),
        ("notes.txt", ValueError),
        ("folder.py", FileNotFoundError),
    ]:
        with pytest.raises(error, match=path):
            import_file(path)


def test_the_standard_library_is_where_its_modules_are():
    """The paths found without them, links apart, also if this Python was moved after its build."""
    library, compiled = map(os.path.realpath, STANDARD_LIBRARY)
    assert library == os.path.realpath(os.path.dirname(textwrap.__file__))
    assert compiled == os.path.realpath(os.path.dirname(_ctypes.__file__))


def test_files_of_one_name_in_two_folders_are_two_modules(folder):
    """Two files of the same name are not taken for each other, also when called in turn."""
    paths = [
        write(folder / name / "by_twin.py", f"def home(x): return '{name}'") for name in ("a", "b")
    ]
    modules = [import_file(path) for path in paths]
    for _ in range(2):
        for module, name in zip(modules, "ab", strict=True):
            assert module.home(0) == name
            assert parallel_map(module.home, [0]) == [name]


@pytest.mark.parametrize("name", ["my-workers", "2nd", "class", "größe", "with space"])
def test_a_file_may_have_any_name(folder, name):
    """Names that are not identifiers work as well."""
    write(folder / f"{name}.py", "def answer(x): return 42")
    assert parallel_map(f"{name}.py:answer", [0]).tolist() == [42]


@pytest.mark.parametrize("name", ["json", "random", "numpy", "tests", "nbshare", "types"])
def test_a_file_named_like_another_module_does_not_replace_it(folder, name):
    """A user's file may be called random.py. It is imported, and the other module stays itself."""
    other = importlib.import_module(name)
    write(folder / f"{name}.py", "def answer(x): return 42")
    module = import_file(f"{name}.py")
    assert module.answer(0) == 42
    assert importlib.import_module(name) is other
    assert parallel_map(module.answer, [0]).tolist() == [42]
    assert parallel_map(tasks.file_of, [name]) == [other.__file__]
    assert json.loads("[1]") == [1]
    assert 0 <= random.random() < 1


# ------------------------------------------------------------------- "file.py:name"


def test_a_string_names_file_and_function(folder):
    """A relative or absolute path, a colon and a name are a function."""
    code = """
        def double(x): return 2 * x
        class Tool:
            @staticmethod
            def triple(x): return 3 * x
        """
    path = write(folder / "by_string.py", code)
    assert parallel_map("by_string.py:double", [1, 2]).tolist() == [2, 4]
    assert parallel_map(f"{path}:double", [1, 2]).tolist() == [2, 4]
    assert parallel_map("by_string.py:Tool.triple", [1, 2]).tolist() == [3, 6]
    write(folder / "by_string.py", "def double(x): return 2.0 * x + 0.5")
    assert parallel_map("by_string.py:double", [1, 2]).tolist() == [2.5, 4.5]


def test_a_string_that_names_no_function_says_what_there_is(folder):
    """A wrong name is answered with the names of the file. A name of no function is refused."""
    write(folder / "by_wrong.py", "VALUE = 3\ndef first(x): pass\ndef second(x): pass")
    with pytest.raises(AttributeError, match=r"'third'.*first, second"):
        parallel_map("by_wrong.py:third", [0])
    with pytest.raises(TypeError, match=r"VALUE.*int"):
        parallel_map("by_wrong.py:VALUE", [0])
    with pytest.raises(FileNotFoundError, match=r"by_missing.py"):
        parallel_map("by_missing.py:first", [0])


# -------------------------------------------------- the file as it is now, or a refusal

STALE = """
import functools, importlib, json, runpy, sys
from nbshare import import_file, parallel_map

FILE = '''
import functools
N = {n!r}
def add(f):
    @functools.wraps(f)
    def wrapper(x): return ["added " + N, *f(x)]
    return wrapper
def f(x): return [N, {v!r}]
@add
def decorated(x): return [{v!r}]
@functools.lru_cache
def cached(x): return [N, {v!r}]
class C:
    def method(self, x): return [N, {v!r}]
    @classmethod
    def of(cls, x): return [N, {v!r}, cls.__name__]
    @staticmethod
    def static(x): return [N, {v!r}]
    __call__ = method
'''
DECORATED = FILE.replace("def f", "@add\\ndef f")
EDITS = {
    "nothing": FILE.format(n="one", v="first"),
    "a function": FILE.format(n="one", v="second!"),
    "a value": FILE.format(n="three", v="first"),
    "a line above": "'A text.'" + FILE.format(n="one", v="fourth!!"),
    "a decorator": DECORATED.format(n="five", v="first"),
    "all is gone": "N = 6",
    "no function": "N = f = decorated = cached = C = 7",
}
REFRESHES = {
    "saved only": lambda module: None,
    "reload": importlib.reload,
    "import_file": lambda module: import_file(module.__file__),
    "a text": lambda module: parallel_map(f"{module.__file__}:str", [0]),
    "import": lambda module: sys.modules.pop(module.__name__) and __import__(module.__name__),
}
USES = {
    "from": lambda names: names["f"],
    "partial": lambda names: functools.partial(names["f"]),
    "decorated": lambda names: names["decorated"],
    "original": lambda names: names["decorated"].__wrapped__,
    "cached": lambda names: names["cached"],
    "method": lambda names: names["C"]().method,
    "class method": lambda names: names["C"].of,
    "static method": lambda names: names["C"].static,
    "object": lambda names: names["C"](),
}

def put(name, code):
    with open(f"{name}.py", "w") as file:
        file.write(code + "\\nstr = str\\n")
    importlib.invalidate_caches()

def outcome(func, name, use):
    try:
        run = parallel_map(func, [0], max_workers=1, progress=False)[0]
    except Exception as error:
        return "refused" if name in str(error) else "error"
    try:
        now = USES[use](runpy.run_path(f"{name}.py"))(0)
    except Exception as error:
        now = error
    return "right" if run == now else f"{run}, not {now}"

told = {}
for refresh, refreshed in REFRESHES.items():
    found = told[refresh] = {}
    for i, (edit, code) in enumerate(EDITS.items()):
        name = f"stale_{refresh.replace(' ', '_')}_{i}"
        put(name, EDITS["nothing"])
        module = importlib.import_module(name)
        kept = {use: get(vars(module)) for use, get in USES.items()}
        put(name, code)
        refreshed(module)
        # Twice: after one that was loaded again the file may be edited once more, and only saved.
        found[edit] = {use: outcome(func, name, use) for use, func in kept.items()}
        put(name, EDITS["a function"])
        found[edit + ", then saved"] = {use: outcome(func, name, use) for use, func in kept.items()}
print(json.dumps(told))
"""


def test_what_was_imported_before_an_edit_runs_as_the_file_is_now(script):
    """Functions, methods and objects kept from before have the present version, or a refusal."""
    for refresh, found in json.loads(script(STALE)).items():
        outcomes = {(edit, use): said for edit, uses in found.items() for use, said in uses.items()}
        wrong = {key: said for key, said in outcomes.items() if said not in ("right", "refused")}
        if refresh == "saved only":  # that something is a number now is found out by the workers
            wrong = {k: v for k, v in wrong.items() if (k[0], v) != ("no function", "error")}
        assert wrong == {}, refresh
        # No name leads to an original. A new decorator makes another function of the old name.
        for (edit, use), said in outcomes.items():
            if edit in ("all is gone", "no function"):
                assert said == "refused" or refresh == "saved only", (refresh, edit, use)
            elif use != "original" and not edit.startswith(("a decorator", "all", "no function")):
                assert said == "right", (refresh, edit, use)


SIBLINGS = """
import functools
registered, loop = [], []
@functools.singledispatch
def dispatch(x): return "any"
@dispatch.register
def _(x: int): return "int"
for_int = _
@dispatch.register
def _(x: str): return "str"
def twice(x): return "first"
first = twice
def twice(x): return "second"
@registered.append
def entry(x): return "entry"
for k in range(2):
    def again(x, k=k): return f'loop {k}'
    loop.append(again)
exec("def made(x): return 'made'")
made, kept = None, made
def wrapped(f):
    return functools.wraps(f)(lambda x: f"wrapped {f(x)}")
def replaced(x): return "mine"
"""


def test_functions_that_their_name_does_not_lead_to_run_as_what_they_are(script):
    """One name of several definitions, a registered one, an original, a replaced attribute."""
    code = f"""
from pathlib import Path
from nbshare import parallel_map
Path("siblings.py").write_text({SIBLINGS!r})
import siblings as s
replaced, s.replaced = s.replaced, lambda x: "another"
functions = [s.for_int, s._, s.first, s.twice, s.registered[0], *s.loop, s.kept, replaced]
functions += [s.wrapped(s.twice), s.dispatch]
print([parallel_map(f, [1], progress=False)[0] for f in functions])
"""
    expected = ["int", "str", "first", "second", "entry", "loop 0", "loop 1", "made", "mine"]
    assert script(code) == f"{[*expected, 'wrapped second', 'int']}\n"


POSING = """
class FunctionWrapper:  # as wrapt's, a proxy that isinstance takes for a function
    __module__ = "_posing"  # which cannot be imported
    __class__ = property(lambda self: self.__wrapped__.__class__)
    def __init__(self, wrapped, wrapper, enabled=None):
        self.__wrapped__, self._self_wrapper, self._self_enabled = wrapped, wrapper, enabled
        self.__module__ = wrapped.__module__
    def __getattr__(self, name): return getattr(self.__wrapped__, name)
    def __call__(self, *args): return self._self_wrapper(self.__wrapped__, *args)
    def __reduce_ex__(self, protocol): raise NotImplementedError("define __reduce__()")
def add(wrapped, x): return wrapped(x) + 1
def adding(func): return FunctionWrapper(func, add)
@adding
def named(x): return x
"""


def test_a_decorator_whose_objects_pose_as_functions_is_not_lost(script):
    """A function of a script, one that it calls, one of a file, and one within a function."""
    code = f"""
from pathlib import Path
from nbshare import parallel_map
Path("posing.py").write_text({POSING!r})
import posing
def scale(wrapped, x): return wrapped(x) * 10
@posing.adding
def added(x): return x
scaled = posing.FunctionWrapper(added, scale)
def calls(x): return scaled(x)
def made(): return posing.adding(lambda x: x + 5)
functions = [added, scaled, calls, posing.named, made()]
print([parallel_map(f, [1], progress=False)[0].item() for f in functions])
"""
    assert script(code) == "[2, 20, 20, 2, 7]\n"


@pytest.mark.parametrize("way", ["import", "import_file"])
@pytest.mark.parametrize("edit", ["deleted", "renamed"])
def test_a_module_whose_file_is_gone_is_an_error_that_says_so(folder, monkeypatch, way, edit):
    """With its path and what to do, for functions, methods, and items, until it is back."""
    monkeypatch.syspath_prepend(folder)
    code = "def f(x): return 1\nclass C:\n    def m(self, x): return 1"
    path = write(folder / f"gone_{way}_{edit}.py", code)
    module = import_file(path) if way == "import_file" else importlib.import_module(path.stem)
    path.unlink() if edit == "deleted" else path.rename(folder / "elsewhere.py")
    functions = module.f, functools.partial(module.f), module.C().m, lambda x: module.f(x)
    for func, item in [*((func, 1) for func in functions), (len, module.C())]:
        with pytest.raises(ModuleNotFoundError, match=path.stem) as caught:
            parallel_map(func, [item])
        assert f"Its file {str(path)!r} does not exist. Restore it" in caught.value.__notes__[1]
    write(path, code)
    assert parallel_map(module.f, [1]).tolist() == [1]


# ---------------------------------------------------------------- packages and by value


def test_functions_of_a_package_with_relative_imports(folder, monkeypatch):
    """A module in a package imports its neighbours in the worker as it does in the caller."""
    package = folder / "by_package"
    write(package / "__init__.py", "")
    write(package / "helper.py", "STEP = 5")
    write(package / "work.py", "from .helper import STEP\ndef up(x): return x + STEP")
    monkeypatch.syspath_prepend(folder)
    up = importlib.import_module("by_package.work").up
    assert parallel_map(up, [1]).tolist() == [6]
    write(package / "helper.py", "STEP = 50")
    assert parallel_map(up, [1]).tolist() == [51]


def test_lambdas_and_closures_of_a_module():
    """Functions that no name leads to are sent by value, with what they close over."""
    offset = 10
    table = np.arange(1000.0)

    def shifted(x):
        return table[x] + offset

    assert parallel_map(shifted, [1, 2]).tolist() == [11.0, 12.0]
    assert parallel_map(lambda x: x * offset, [1, 2]).tolist() == [10, 20]
    assert parallel_map(functools.partial(lambda a, b: a - b, 5), [1, 2]).tolist() == [4, 3]


def test_a_closure_sees_a_shared_array_by_reference():
    """A function sent by value writes into the SharedArray that it closes over."""
    target = nbshare.zeros(5)

    def put(i):
        target[i] = i

    parallel_map(put, range(5))
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_a_large_array_of_a_closure_is_read_only():
    """A plain array of a closure is not the caller's, and writing to it is an error."""
    table = np.zeros(1000)

    def put(i):
        table[i] = i

    with pytest.raises(ValueError, match="read-only"):
        parallel_map(put, range(5))
    assert not table.any()


def test_a_closure_over_what_cannot_travel_is_refused(cold):
    """A function that holds a lock is refused before anything starts, and told why."""
    lock = threading.Lock()
    with pytest.raises(UnsendableError, match=r"the function.*lock"):
        parallel_map(lambda x: lock.locked(), ["a"])
    assert set(psutil.Process().children()) <= cold


MAIN = """
    import dataclasses, functools, pathlib
    import numpy as np
    from nbshare import parallel_map

    with pathlib.Path("runs").open("a") as runs:
        runs.write("x")

    TABLE = np.arange(2000.0)

    @dataclasses.dataclass
    class Point:
        x: int
        y: int = 0
        def moved(self, by):
            return Point(self.x + by, self.y - by)

    class Refusal(ValueError):
        def __init__(self, x):
            super().__init__(x)

    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    class Model:
        @functools.lru_cache(maxsize=1)
        def double(self, x):
            return 2 * x

    def inner():
        return functools.cache(lambda x: -x)

    def look_up(i):
        return TABLE[i] + helper(i)

    def helper(i):
        return 0.5

    def refuse(x):
        raise Refusal(x)

    assert parallel_map(lambda x: x + 1, range(3)).tolist() == [1, 2, 3]
    assert parallel_map(factorial, [3, 5]).tolist() == [6, 120]
    assert parallel_map(fibonacci, [70, 71]).tolist() == [190392490709135, 308061521170129]
    assert parallel_map(Model().double, [1, 2]).tolist() == [2, 4]
    assert parallel_map(inner(), [1, 2]).tolist() == [-1, -2]
    assert parallel_map(look_up, [1, 1000]).tolist() == [1.5, 1000.5]
    assert parallel_map(Point(1, 2).moved, [10]) == [Point(11, -8)]
    assert parallel_map(Point, [1, 2], [3, 4]) == [Point(1, 3), Point(2, 4)]
    assert parallel_map(lambda p: p.x, [Point(7), Point(8)]).tolist() == [7, 8]

    HELPERS = 1
    def helper(i):
        return 0.25

    assert parallel_map(look_up, [1]).tolist() == [1.25]
    print("all is well")
"""


@pytest.mark.first
@pytest.mark.parametrize("as_command", [False, True])
def test_a_script_without_a_main_guard(script, tmp_path, as_command):
    """Functions and classes of a script or a command work by value. Its body runs once."""
    assert script(textwrap.dedent(MAIN), as_command=as_command) == "all is well\n"
    assert (tmp_path / "runs").read_text() == "x"


def test_an_exception_class_of_the_script_comes_as_itself(script):
    """An exception that the script defines can be caught as what it is."""
    code = """
        try:
            parallel_map(refuse, [5])
        except Refusal as refusal:
            print(type(refusal) is Refusal, refusal.args)
            note = refusal.__notes__[0]
            line = refuse.__code__.co_firstlineno + 1
            print("item 0 (5)" in note, f'File "{__file__}", line {line}, in refuse' in note)
        """
    printed = script(textwrap.dedent(MAIN) + textwrap.dedent(code))
    assert printed == "all is well\nTrue (5,)\nTrue True\n"


HOSTILE = """
    import os, pathlib, sys, warnings
    import json, random
    import numpy as np
    import nbshare
    from nbshare import parallel_map

    pathlib.Path("plain.py").write_text(
        "import numpy as np\\n"
        "def draw(i): return np.random.rand()\\n"
        "def fail(i): raise ValueError(i)\\n"
    )
    pathlib.Path("needy.py").write_text(
        "import json, random\\n"
        "def dump(i): return json.dumps([i]) * (0 <= random.random() < 1)\\n"
    )
    import plain, needy

    pathlib.Path("work").mkdir()
    os.chdir("work")
    sys.path.insert(0, "")
    np.random.rand()
    warnings.simplefilter("ignore", nbshare.errors.UnseededWarning)
    for name in sys.stdlib_module_names & sys.modules.keys():  # what the caller itself can use
        pathlib.Path(name + ".py").write_text(f"raise SystemExit('the wrong {name}')")
"""

CALLS = {
    "numpy.random": "print(len(set(parallel_map(plain.draw, range(8)).tolist())))",
    "by value": "print(len(parallel_map(lambda x: {x: plain}, range(8))))",
    "an error": """
        try:
            parallel_map(plain.fail, range(3), max_workers=1)
        except ValueError as error:
            print(8 + error.args[0])
        """,
    "its own imports": "print(len(parallel_map(needy.dump, range(8))))",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_files_named_like_the_standard_library_do_not_break_workers(script, call):
    """A random.py or json.py next to the notebook is not taken for the library's by the workers."""
    code = textwrap.dedent(HOSTILE) + textwrap.dedent(call)
    assert script(code) == "8\n"


def test_workers_have_the_nbshare_of_their_owner(script, tmp_path):
    """Not another one that a new interpreter would find first."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "nbshare.py").write_text("raise SystemExit('another nbshare')")
    code = f"""
import math, os, sys
sys.path.insert(0, {os.path.dirname(os.path.dirname(nbshare.__file__))!r})
from nbshare import parallel_map
print(parallel_map(math.sqrt, [4.0, 9.0]).tolist())
"""
    assert script(code, PYTHONPATH=str(tmp_path / "other")) == "[2.0, 3.0]\n"


SPAWNED = """
import multiprocessing
from nbshare import parallel_map

def task(i):
    return i * 2

def in_child(n):
    return parallel_map(task, range(n), progress=False).tolist()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(in_child, [3]))
"""


@pytest.mark.first
def test_functions_of_a_script_in_processes_that_it_spawns(folder, script):
    """There they belong to a module of another name, which workers cannot import either."""
    assert script(SPAWNED) == "[[0, 2, 4]]\n"


def test_results_that_no_dtype_holds_are_a_list_without_numpys_warnings():
    """Only nbshare's own says that they differ."""
    big = [np.uint64(2**64 - 1), np.int64(-1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", MixedResultsWarning)
        assert parallel_map(tasks.identity, big) == big


def test_a_function_that_was_changed_is_checked_again():
    """A new parameter, or a default that is gone, is an error before anything starts."""

    def scaled(x, factor=2):
        return x * factor

    assert parallel_map(scaled, [1, 2], backend="serial").tolist() == [2, 4]
    scaled.__defaults__ = ()
    with pytest.raises(TypeError, match="scaled"):
        parallel_map(scaled, [1, 2], backend="serial")
    scaled.__defaults__ = (3,)
    assert parallel_map(scaled, [1, 2], backend="serial").tolist() == [3, 6]
    scaled.__code__ = (lambda x, y, z=None: x).__code__
    with pytest.raises(TypeError, match="scaled"):
        parallel_map(scaled, [1, 2], backend="serial")


def test_a_function_fits_some_arguments_and_not_others():
    """The answer for one call does not hold for another with other arguments."""

    def scaled(x, *, factor):
        return x * factor

    for _ in range(2):
        assert parallel_map(scaled, [1], shared={"factor": 3}, backend="serial").tolist() == [3]
        with pytest.raises(TypeError, match="factor"):
            parallel_map(scaled, [1], backend="serial")
        with pytest.raises(TypeError, match="scaled"):
            parallel_map(scaled, [1], [2], shared={"factor": 3}, backend="serial")
        with pytest.raises(TypeError, match="rng"):
            parallel_map(scaled, [1], shared={"factor": 3}, seed=1, backend="serial")
