"""A change here in modules whose files workers run gives one warning, and nothing else does."""

import ast
import functools
import gc
import importlib
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbshare
from nbshare import Executor, parallel_map, pipeline
from nbshare._core.entries.mapping import map_async
from nbshare._core.functions.installed import STANDARD_LIBRARY
from nbshare._core.source.changes import warn_of_changes
from nbshare._core.source.definitions import is_same, simple_value

ROOT = Path(nbshare.__file__).parents[1]
CONSTS = """
SCALE = 1
RATE: float = 0.5
HOUR = 60 * 60
LOW, HIGH = -1, 1
NAME = OTHER_NAME = "first"
LIMIT = None
OPTIONS = {"order": 1, "solver": {"steps": [1, 2]}}
EMPTY = {}
TABLE = {"a": 1}
NAMES = ["a", "b"]
SEEN = {1, 2}

class Other:
    size = 5
    def run(self, x):
        return x
    @classmethod
    def made(cls):
        return cls()

class Model:
    pass

def other(x):
    return x

def use(x, shift=1):
    return x - shift

def g(x):
    return x * OPTIONS["solver"]["steps"][0] + len(EMPTY) + len(sorted(NAMES))
"""
LIB = """
import functools
import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import consts_here
from consts_here import SCALE

log = logging.getLogger(__name__)
STARTED = time.time()
N_CALLS = 0
CACHE = {}
REGISTRY = []
HANDLERS = {"none": None}
CURSOR = {}
MODEL = None
LEVEL = 1
LEVEL += 1
FIRST = 1
SECOND = (FIRST := 2)
try:
    import numpy_of_next_year
    has_numpy = True
except ImportError:
    has_numpy = False
for k in range(3):
    LAST = k
SWITCH = False

def plain_decorator(function):
    def call(*args):
        return function(*args)
    return call

def register(function):
    REGISTRY.append(function)
    HANDLERS[function.__name__] = function
    return function

def use(x, shift=1):
    return x + shift

@plain_decorator
def decorated(x):
    return x

@functools.lru_cache
def cached(x):
    return x

@register
def registered(x):
    return x

class Model:
    rate = 2
    n_made = 0
    known = {}
    __secret = 3

    def __init__(self):
        type(self).n_made += 1
        self.SWITCH = True
        self.known[self.n_made] = self

    def apply(self, x):
        return self.rate * x

    def __hidden(self):
        return self.__secret

    @property
    def offset(self):
        return 4

    @classmethod
    def make(cls):
        return cls()

    alias = apply

    @offset.setter
    def offset(self, value): pass

    @staticmethod
    def still(x):
        return x

    @functools.cached_property
    def kept(self):
        return 5

    @plain_decorator
    def wrapped(self, x):
        return x

    @functools.lru_cache(maxsize=5)
    def remembered(self, x):
        return x

class Fast(Model):
    pass

use_again = use
from consts_here import g as imported

class Base(ABC):
    size = 5
    @abstractmethod
    def run(self): ...

class Plugin:
    known = []
    def __init_subclass__(cls):
        cls.known.append(cls)
        cls.label = cls.__name__.lower()

class First(Plugin):
    label = None

class Pair(NamedTuple):
    a: int = 1
    b: int = 2

@dataclass
class Point:
    x: float = 5.0

def count():
    global N_CALLS
    N_CALLS += 1

def remember(x):
    CACHE.setdefault(x, []).append(x)

def go_down(x):
    at = CURSOR
    for key in "ab":
        at = at.setdefault(key, {})

def lazy():
    global MODEL
    MODEL = MODEL or Model()

def set_any(name, value):
    consts_here.TABLE[name] = value

def f(x):
    return consts_here.g(x) + use(x) + SCALE + SWITCH
"""
WARNED = {
    "a number": "consts.SCALE = 10",
    "with its type alone": "consts.SCALE = 1.0",
    "an annotated one": "consts.RATE = 0.25",
    "computed": "consts.HOUR = 60",
    "one of two": "consts.HIGH = 2",
    "a second name": "consts.OTHER_NAME = 'second'",
    "None": "consts.LIMIT = 3",
    "an array instead": "consts.SCALE = np.ones(3)",
    "an array in a dict": "consts.OPTIONS['order'] = np.ones(3)",
    "an item": "consts.OPTIONS['order'] = 10",
    "an item within an item": "consts.OPTIONS['solver']['steps'].append(3)",
    "a new key": "consts.OPTIONS['tol'] = 1",
    "another dict": "consts.OPTIONS = {'order': 10}",
    "a list": "consts.NAMES.append('c')",
    "a set": "consts.SEEN.add(3)",
    "a function": "def use(x): return 10 * x\nlib.use = use",
    "by a lambda": "lib.use = lambda x: 10 * x",
    "by one of the module": "lib.use = lib.count",
    "by one of a library": "lib.use = np.sin",
    "by an object": "from unittest.mock import Mock\nlib.use = Mock()",
    "traced": "lib.use = trace(lib.use)",
    "traced by partial": "import functools\nlib.use = functools.partial(lib.use, shift=10)",
    "decorated": "lib.decorated = trace(lib.decorated)",
    "with a cache": "lib.cached = trace(lib.cached)",
    "code": "lib.use.__code__ = (lambda x, shift=1: 10 * x).__code__",
    "an imported name": "lib.SCALE = lambda: 10",
    "an imported module": "class Fake: pass\nlib.time = Fake()",
    "a function of another module": "def g(x): return x\nconsts.g = g",
    "a class attribute": "lib.Model.rate = 3",
    "of an abstract class": "lib.Base.size = 6",
    "of a dataclass": "lib.Point.x = 6.0",
    "a method": "def apply(self, x): return 0\nlib.Model.apply = apply",
    "traced method": "lib.Model.apply = trace(lib.Model.apply)",
    "a property": "lib.Model.offset = property(lambda self: 5)",
    "a class method": "lib.Model.make = classmethod(lambda cls: None)",
    "a method by another module's function": "lib.Model.apply = consts.other",
    "a method by a traced one": "lib.Model.apply = lib.plain_decorator(lib.Model.apply)",
    "a method by another one": "lib.Model.apply = consts.Other.run",
    "a method by one of the class": "lib.Model.apply = lib.Model.still",
    "a method by one of a library": "lib.Model.apply = np.sum",
    "a special method": "lib.Model.__init__ = consts.other",
    "a static method": "lib.Model.still = staticmethod(consts.other)",
    "a class method by another's": "lib.Model.make = consts.Other.__dict__['made']",
    "a property by another module's function": "lib.Model.offset = property(consts.other)",
    "the setter of a property": "lib.Model.offset = lib.Model.offset.setter(consts.other)",
    "a cached property": "lib.Model.kept = functools.cached_property(consts.other)",
    "a method with a cache": "lib.Model.remembered = functools.lru_cache(consts.other)",
    "a function with a cache": "lib.cached = functools.lru_cache(consts.other)",
    "a function by its namesake": "lib.use = consts.use",
    "a class": "class Model: pass\nlib.Model = Model",
    "an object of a new class": "class Fake: pass\nlib.STARTED = Fake()",
    "the name is that of an attribute": "lib.SWITCH = True",
}  # fmt: skip
NOT_WARNED = {
    "nothing": "",
    "a counter": "lib.count()",
    "of a list or dict that the file leaves empty": "consts.EMPTY['order'] = 10",
    "a cache": "lib.remember(1)",
    "a cache through another name": "lib.go_down(1)",
    "a registry": "lib.register(lambda x: x)",
    "a lazy value": "lib.lazy()",
    "of a class": "lib.Model.make()",
    "a base that changes classes": "class Second(lib.Plugin): pass",
    "a log handler": "lib.log.addHandler(logging.NullHandler()); lib.log.setLevel('ERROR')",
    "by the module's own function": "lib.set_any('order', 10)",
    "the same value": "consts.SCALE = 1; consts.NAMES[:] = ['a', 'b']",
    "there and back": "old = lib.use; lib.use = trace(old); lib.use = old",
    "loaded again": "consts.SCALE = 10; importlib.reload(consts)",
    "a class that calls itself otherwise": "lib.Fast.__module__ = 'lib_here.x'",
    "another module": "other.VALUE = 2",
    "edited": "edit(consts, 'SCALE = 1', 'SCALE = 2')",
    "a function edited": "edit(lib, 'return x + shift', 'return x - shift')",
    # Of another size, as Python loads what it has compiled in the same second.
    "edited and loaded": "edit(consts, 'SCALE = 1', 'SCALE = 20'); importlib.reload(consts)",
    "edited, then changed": "edit(consts, 'SCALE = 1', 'SCALE = 2'); consts.SCALE = 2",
    "the file is gone": "os.remove(consts.__file__)",
    "the file is half saved": "edit(consts, 'SCALE = 1', 'SCALE = ')",
}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Return the names that a notebook has, which has imported three modules."""
    monkeypatch.setattr("nbshare._core.source.changes._told", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "consts_here.py").write_text(CONSTS)
    (tmp_path / "lib_here.py").write_text(LIB)
    (tmp_path / "other_here.py").write_text("VALUE = 1\n")
    importlib.invalidate_caches()

    def edit(module, old, new):
        file = Path(module.__file__)
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))

    found = {name: importlib.import_module(f"{name}_here") for name in ("consts", "lib", "other")}
    found |= {"edit": edit, "__name__": "__main__"}
    exec("import functools, importlib, logging, os, numpy as np", found)
    exec("def trace(f): return functools.wraps(f)(lambda *args: f(*args))", found)
    yield found
    for name in ("consts", "lib", "other"):
        sys.modules.pop(f"{name}_here", None)


def found_by(*objects):
    """Return the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_changes(*objects)
    return [str(each.message) for each in caught]


# After an earlier call, one change of each kind of thing that a call has noted.
CALLED_BEFORE = ["a number", "an item within an item", "a function", "a class attribute", "a class"]
STILL_NOT = ["a counter", "a registry", "a lazy value", "there and back", "loaded again", "edited"]


@pytest.mark.parametrize(
    ("change", "before"), [*((x, False) for x in WARNED), *((x, True) for x in CALLED_BEFORE)]
)
def test_a_change_is_told_once(names, change, before):
    """Whether or not there was a call before. It is told again if it was undone in between."""
    lib = names["lib"]
    if before:
        assert found_by(lib.f) == []
    exec(WARNED[change], names)
    (text,) = found_by(lib.f)
    assert "_here." in text
    assert "Workers import modules from their files" in text
    assert found_by(lib.f) == []
    importlib.reload(names["consts"])
    importlib.reload(lib)
    assert found_by(lib.f) == []
    exec(WARNED[change], names)
    assert len(found_by(lib.f)) == 1


@pytest.mark.parametrize(
    ("change", "before"), [*((x, False) for x in NOT_WARNED), *((x, True) for x in STILL_NOT)]
)
def test_what_is_no_change_is_not_told(names, change, before):
    """Changes by the code of the modules, edits of files, and modules out of reach."""
    lib = names["lib"]
    if before:
        assert found_by(lib.f) == []
    exec(NOT_WARNED[change], names)
    assert found_by(lib.f) == []
    gc.collect()
    assert found_by(lib.f) == []


def test_each_new_value_is_told(names):
    """A loop over values. Each of its calls computes with another one than here."""
    texts = []
    for value in (2, 3, 3):
        exec(f"consts.SCALE = {value}", names)
        texts += found_by(names["lib"].f)
    assert [text.partition(" here")[0] for text in texts] == [
        "consts_here.SCALE is 2",
        "consts_here.SCALE is 3",
    ]


def test_each_new_content_is_told(names):
    """Of a dict that was told, and deep in it."""
    texts = []
    for change in ("['order'] = 10", "['order'] = 11", "['solver']['steps'].append(5)", ""):
        exec(f"consts.OPTIONS{change}", names)
        texts += found_by(names["lib"].f)
    assert len(texts) == 3
    assert "'order': 11" in texts[1]
    assert "[1, 2, 5]" in texts[2]


def test_many_changes_are_one_warning(names):
    """It names the first ones."""
    for name in ("SCALE", "RATE", "HOUR", "LOW", "HIGH", "NAME", "LIMIT"):
        exec(f"consts.{name} = 'x' * 1000", names)
    (text,) = found_by(names["lib"].f)
    assert "3 more" in text
    assert len(text) < 1000


def test_a_notebook_function_in_an_edited_module_is_told(names):
    """It is surely not of the file, in whatever version."""
    names["edit"](names["lib"], "return x + shift", "return x - shift")
    exec("lib.use = lambda x: x", names)
    assert len(found_by(names["lib"].f)) == 1


def test_a_module_that_the_call_runs_may_change_another(names, tmp_path):
    """Its import does so in workers too. One that workers do not import changes it here only."""
    (tmp_path / "setter_here.py").write_text(
        "import consts_here\nconsts_here.SCALE = 7\ndef f(x): pass"
    )
    setter = importlib.import_module("setter_here")
    assert found_by(setter.f) == []
    assert len(found_by(names["lib"].f)) == 1
    del sys.modules["setter_here"]


def test_a_package_reaches_its_modules(tmp_path, monkeypatch):
    """Through relative imports, also those within functions."""
    package = tmp_path / "package_here"
    package.mkdir()
    (package / "__init__.py").write_text("from .work import f\nTOP = 1\n")
    (package / "work.py").write_text(
        "def f(x):\n    from . import settings\n    return settings.N\n"
    )
    (package / "settings.py").write_text("N = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    top, settings = map(importlib.import_module, ("package_here", "package_here.settings"))
    assert found_by(top.f) == []
    top.TOP, settings.N = 2, 3
    (text,) = found_by(top.f)
    assert "package_here.TOP is 2" in text
    assert "package_here.settings.N is 3" in text
    for name in [name for name in sys.modules if name.startswith("package_here")]:
        del sys.modules[name]


def test_a_module_imported_before_nbshare_is_compared(tmp_path):
    """If its file is older than the process, it is the version that was imported."""
    (tmp_path / "early.py").write_text("SCALE = 1\ndef f(x): return SCALE * x\n")
    program = """
import time, warnings
import early
until_s = time.time() + 0.05  # times of files, and of the start of a process, are in steps of 10 ms
while time.time() < until_s:
    pass
with open("late.py", "w") as file:
    file.write("SCALE = 1\\ndef f(x): return SCALE * x\\n")
import late
with open("late.py", "w") as file:
    file.write("SCALE = 2\\ndef f(x): return SCALE * x\\n")
early.SCALE = 10
from nbshare._core.source.changes import warn_of_changes
warnings.simplefilter("always")
warn_of_changes(early.f, late.f)
"""
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert "early.SCALE is 10 here, and 1 in early.py" in ended.stderr, ended.stderr
    assert "late.SCALE" not in ended.stderr


def test_a_script_has_no_changes(tmp_path):
    """Its definitions are sent by value, as they are."""
    (tmp_path / "script.py").write_text("""
import sys
from nbshare._core.source.changes import warn_of_changes
SCALE = 1
def f(x): return SCALE * x
class Model: pass
sys.modules[__name__].SCALE = 10
warn_of_changes(f, Model(), sys.modules[__name__])
""")
    command = [sys.executable, "-W", "error", str(tmp_path / "script.py")]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})


DECORATED = """
import joblib
import functools
memory = joblib.Memory({folder!r}, verbose=0)
cache = memory.cache
class Registry:
    def property(self, function): return Wrapped(function)
    cached_property = staticmethod(memory.cache)
class Wrapped:
    def __init__(self, function): self.function = function
    def __call__(self, x): return self.function(x)
registry = Registry()
@memory.cache
def f(x): return x
@memory.cache(ignore=["y"])
def g(x, y=1): return x
@joblib.Memory({folder!r}, verbose=0).cache
def h(x): return x
@cache
def i(x): return x
@registry.property
def j(x): return x
@registry.cached_property
def k(x): return x
@functools.cache
def m(x): return x
class A:
    @memory.cache
    def n(x): return x
    @property
    def o(self): return 1
    @o.setter
    def o(self, value): pass
"""


def test_decorators_of_others_may_have_the_names_of_pythons(tmp_path, monkeypatch):
    """As `joblib.Memory.cache` has. They make something else of a function."""
    (tmp_path / "decorated_here.py").write_text(DECORATED.format(folder=str(tmp_path / "cache")))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("decorated_here")
    functions = [getattr(module, name) for name in "fghijkm"]
    assert found_by(*functions, module.A) == []
    module.m = functools.cache(lambda x: -x)
    (text,) = found_by(module.A)
    assert "decorated_here.m" in text
    del sys.modules["decorated_here"]


def test_a_call_compares_the_nearest_files_only(tmp_path, monkeypatch):
    """However many a large package of the user has, which reaches all of its files."""
    package = tmp_path / "large_here"
    package.mkdir()
    parts = [f"part_{k}" for k in range(50)]
    (package / "__init__.py").write_text(f"from large_here import {', '.join(parts)}\n")
    for part in parts:
        (package / f"{part}.py").write_text("N = 1\ndef f(x): return x\n" + "X = 1\n" * 3000)
    monkeypatch.syspath_prepend(tmp_path)
    first = importlib.import_module("large_here.part_0")
    parsed = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda data: parsed.append(len(data)) or parse(data))
    first.N, sys.modules["large_here.part_49"].N = 2, 2
    (text,) = found_by(first.f)
    assert "part_0.N" in text
    assert "part_49" not in text
    assert 10 < len(parsed) < 40
    assert found_by(first.f) == []
    for name in [name for name in sys.modules if name.startswith("large_here")]:
        del sys.modules[name]


def test_a_file_counts_once_however_many_names_are_imported_from_it(tmp_path, monkeypatch):
    """As the bytes that a call compares are limited, and others come after it."""
    names = [f"name_{k}" for k in range(100)]
    lines = [f"from wide_here import {', '.join(names)}", "import late_here", "def f(x): return x"]
    (tmp_path / "first_here.py").write_text("\n".join(lines))
    (tmp_path / "wide_here.py").write_text("".join(f"{x} = {x!r}\n" for x in names) + "#" * 20_000)
    (tmp_path / "late_here.py").write_text("N = 1\n" + "#" * 30_000)
    monkeypatch.syspath_prepend(tmp_path)
    first = importlib.import_module("first_here")
    first.late_here.N = 2
    (text,) = found_by(first.f)
    assert "late_here.N is 2" in text
    for name in ("first_here", "wide_here", "late_here"):
        del sys.modules[name]


BY_VALUE = {
    "module": "func = lambda x: consts.SCALE",
    "of a package": "import os\nfunc = lambda x: (os.path, consts.g(x))",
    "function": "g = consts.g\nfunc = lambda x: g(x)",
    "another function": "def inner(x): return consts.SCALE\ndef func(x): return inner(x)",
    "import": "def func(x):\n    import consts_here\n    return consts_here.SCALE",
    "closure": "def make(g): return lambda x: g(x)\nfunc = make(consts.g)",
    "default": "func = lambda x, g=consts.g: g(x)",
    "partial": "func = functools.partial(lambda x, y: x, y=consts.g)",
    "method": "class A:\n    def f(self, x): return consts.SCALE\nfunc = A().f",
    "base": "class A(lib.Model): pass\nfunc = A().apply",
    "object": "class A:\n    def __call__(self, x): return consts.SCALE\nfunc = A()",
    "traced": "func = trace(consts.g)",
    "cached": "func = functools.lru_cache(lambda x: consts.SCALE)",
}


@pytest.mark.parametrize("kind", BY_VALUE)
def test_notebook_functions_reach_the_modules_that_they_use(names, kind):
    """However they do it."""
    exec(BY_VALUE[kind], names)
    for part in ("func", "make", "inner", "A", "trace"):
        if hasattr(names.get(part), "__module__"):
            assert names[part].__module__ == "__main__" or part == "func"
    exec("consts.SCALE = 10", names)
    (text,) = found_by(names["func"])
    assert "consts_here.SCALE is 10 here, and 1 in consts_here.py" in text


def work(x):
    """Return it, as a stage of a pipeline, and an initializer."""
    return x


def by_pipeline(lib):
    """Run the function as a stage."""
    return pipeline(load, lib.f, shape=2, progress=False)


def load():
    """Yield a block."""
    yield [1.0, 2.0]


def by_executor(lib):
    """Run it twice as a task."""
    with Executor(max_workers=1) as executor:
        executor.submit(lib.f, 1).result()
        executor.submit(lib.f, 2).result()


CALLS = {
    "map": lambda lib: parallel_map(lib.f, [1, 2], progress=False),
    "generator": lambda lib: parallel_map(lib.f, iter([1, 2]), progress=False),
    "async": lambda lib: map_async(lib.f, [1, 2]).result(),
    "initializer": lambda lib: parallel_map(
        work, [1], initializer=lib.count, progress=False, max_workers=1
    ),
    "shared": lambda lib: parallel_map(apply, [1], shared={"f": lib.f}, progress=False),
    "pipeline": by_pipeline,
    "executor": by_executor,
}


def apply(x, f):
    """Call a function."""
    return f(x)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_worker_processes_tells(names, call):
    """Once, of the line of the call, and its results are those of the file."""
    exec("consts.SCALE = 10", names)
    with pytest.warns(UserWarning, match=r"consts_here\.SCALE is 10") as caught:
        CALLS[call](names["lib"])
    (told,) = [each for each in caught if "Workers import" in str(each.message)]
    assert told.filename == __file__


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_calls_in_this_process_tell_nothing(names, backend):
    """They run the modules as they are here."""
    exec("consts.SCALE = 10", names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_map(names["lib"].f, [1], backend=backend, progress=False)


def test_a_warning_that_is_an_error_is_raised_before_anything_starts(names):
    """Of a map, and of a task."""
    exec("consts.SCALE = 10", names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="SCALE is 10"):
            parallel_map(names["lib"].f, [1], progress=False)
        exec("consts.SCALE = 11", names)
        executor = Executor()
        with pytest.raises(UserWarning, match="SCALE is 11"):
            executor.submit(names["lib"].f, 1)
        assert "0 tasks" in repr(executor)
        executor.shutdown()


def test_objects_that_raise_end_no_call(names):
    """They may raise anything when they are looked at."""

    class Trap:
        __call__ = work

        @property
        def __wrapped__(self):
            raise RuntimeError("a trap")

        def __eq__(self, other):
            raise RuntimeError("another trap")

        __hash__ = None

    names["consts"].NAMES[0] = Trap()
    exec("consts.SCALE = 10", names)
    (text,) = found_by(Trap(), names["lib"].f)
    assert "SCALE is 10" in text


SIMPLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(SIMPLE, SIMPLE)
def test_simple_values_are_those_of_their_source(one, other):
    """And of no other."""
    node = ast.parse(repr(one), mode="eval").body
    assert is_same(simple_value(node), one)
    if repr(one) != repr(other) and one != other:
        assert not is_same(simple_value(node), other)


# Run in a process of its own, as if the packages that it imports were users' files.
AS_OWN = """
import importlib, sys
import nbshare._core.source.changes as changes
import nbshare._core.source.definitions as definitions
sys.argv[1:], names = [], sys.argv[1:]
for name in names:
    importlib.import_module(name)
packages = {name.partition(".")[0] for name in names}
if packages <= sys.stdlib_module_names:
    packages = sys.stdlib_module_names
from nbshare._core.functions.modules import file_of
own = {name: path for name, each in sys.modules.items() if (path := file_of(each))}
changes.is_installed = definitions.is_installed = lambda path: False
changes.is_as_read = lambda path, stamp: True
seen = {}
for name in [*sys.modules]:
    is_wanted = name.partition(".")[0] in packages
    found = changes._look_at(name, own, 1 << 30) if is_wanted else None
    if found is not None:
        seen[name] = found
for name, each in seen.items():
    files = [seen[x].file for x in [name, *each.imports] if x in seen]
    for change in each.changes(files):
        print(change.text)
print(len(seen))
"""


@pytest.mark.parametrize(
    "modules",
    [
        "numpy numpy.testing numpy.f2py",
        pytest.param(
            "json logging.config asyncio unittest.mock concurrent.futures http.server"
            " sqlite3 xml.dom",
            marks=pytest.mark.skipif(
                STANDARD_LIBRARY[0].endswith(".zip"), reason="this Python's library has no sources"
            ),
        ),
        "pandas",
    ],
)
def test_no_import_of_a_library_is_a_change(modules):
    """Registries, caches, constants that are computed, classes made by classes are not told."""
    command = [sys.executable, "-W", "ignore", "-c", AS_OWN, *modules.split()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    *found, n = ended.stdout.splitlines() or [""]
    assert not found, ended.stdout
    assert int(n) > 20, ended.stderr


@pytest.mark.parametrize("is_changed", [False, True])
def test_later_calls_cost_little(tmp_path, monkeypatch, is_changed):
    """A look at a module takes a small part of what parsing its file takes, told of it or not."""
    body = "".join(
        f"C{i} = {i}\ndef f{i}(x):\n    y = x + C{i}\n    return y\n\n" for i in range(200)
    )
    (tmp_path / "long_here.py").write_text(body + "n = 0\ndef f():\n    global n\n    n += 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("long_here")
    parse_s = min(_time(lambda: ast.parse(body)) for _ in range(5))
    module.f()
    if is_changed:
        module.C1, module.f2 = 10, lambda x: x
    assert len(found_by(module.f)) == is_changed
    later_s = []
    for _ in range(50):
        module.f()
        later_s.append(_time(lambda: warn_of_changes(module.f)))
    assert statistics.median(later_s) < parse_s / 5
    del sys.modules["long_here"]


def _time(action):
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s
