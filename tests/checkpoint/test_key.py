"""The key of a checkpoint knows every edit that may change a result, and no other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbshare import import_file, share
from nbshare._core.arguments.options import MapOptions, checked_request
from nbshare._core.checkpoint import digests
from nbshare._core.checkpoint.code import CodeDigests
from nbshare._core.checkpoint.key import key_of
from nbshare._core.source import file
from nbshare.errors import CheckpointError
from tests.support import objects

FILES = {
    "work.py": '''
        """A module."""
        import math
        from functools import cache, partial
        import helpers
        from pack.inner import scaled
        from pack import tools

        LIMIT = 3
        OTHER = 4
        TABLE = helpers.table(5)

        def twice(function):
            def wrapper(*args, **kwargs):
                return 2 * function(*args, **kwargs)
            return wrapper

        class Base:
            offset = 1

        class Unused:
            scale = 3

        class Model(Base):
            scale = 2
            def predict(self, x):
                """Say it."""
                return self.scale * x + self.offset

        @cache
        def cached(x):
            return x

        @twice
        def simulate(x, k=2):
            """Do it."""
            # why
            late = tools.late(x)
            return helpers.slope(x) + scaled(x) + LIMIT + Model().predict(x) + cached(k) + late

        def unrelated(x):
            return OTHER * x

        if __name__ == "__main__":
            print(simulate(3))
        ''',
    "helpers.py": """
        import os
        import deeper
        def table(n):
            return list(range(n))
        def slope(x):
            return deeper.depth(x) + 1
        def not_used(x):
            return x + 2
        """,
    "deeper.py": "def depth(x):\n    return x - 1\n",
    "pack/__init__.py": "SIZE = 1\nVERSION = 5\nimport warnings\nwarnings.simplefilter('ignore')\n",
    "pack/inner.py": "from . import SIZE\nfrom .more import factor\n"
    "def scaled(x):\n    return factor(x) * SIZE\n",
    "pack/more.py": "def factor(x):\n    return x * 2\n",
    "pack/tools.py": "def late(x):\n    from pack import hidden\n    return hidden.seen(x)\n",
    "pack/hidden.py": "def seen(x):\n    return x\ndef unseen(x):\n    return x\n",
}

SEEN = {
    "the body": ("work.py", "LIMIT + Model", "LIMIT - Model"),
    "a helper in another file": ("helpers.py", "depth(x) + 1", "depth(x) + 2"),
    "a helper of a helper": ("deeper.py", "x - 1", "x - 2"),
    "a default": ("work.py", "k=2", "k=3"),
    "a constant": ("work.py", "LIMIT = 3", "LIMIT = 4"),
    "a constant that is computed": ("work.py", "helpers.table(5)", "helpers.table(6)"),
    "a decorator's body": ("work.py", "return 2 * function", "return 3 * function"),
    "a decorator taken away": ("work.py", "@twice\n", ""),
    "a method": ("work.py", "self.scale * x", "self.scale * x * x"),
    "a class attribute": ("work.py", "scale = 2", "scale = 7"),
    "a base class": ("work.py", "offset = 1", "offset = 2"),
    "the bases of a class": ("work.py", "Model(Base)", "Model(Unused)"),
    "a function behind a cache": ("work.py", "return x\n", "return x + 1\n"),
    "a constant of a package": ("pack/__init__.py", "SIZE = 1", "SIZE = 2"),
    "what a package does when it is imported": ("pack/__init__.py", "'ignore'", "'error'"),
    "a module in a package": ("pack/inner.py", "* SIZE", "+ SIZE"),
    "a relative import's module": ("pack/more.py", "x * 2", "x * 3"),
    "a module imported in a function": ("pack/hidden.py", "return x\ndef", "return 2\ndef"),
    "another name imported": ("pack/inner.py", ".more import factor", "math import cos as factor"),
    "another module imported": ("pack/inner.py", "import SIZE", "import VERSION as SIZE"),
    "a statement at the top": ("deeper.py", "def", "import os\nos.environ['A'] = str(1)\ndef"),
    "a definition overridden": ("helpers.py", "def not_used", "def slope"),
    "an attribute set from outside": ("work.py", "OTHER = 4", "OTHER = 4\nhelpers.slope = abs"),
    "a conditional definition": ("deeper.py", "def", "if 1 > 2:\n  depth = 1\nelse:\n def"),
    "async": ("pack/more.py", "def factor", "async def factor"),
}  # fmt: skip

UNSEEN = {
    "a comment": ("work.py", "# why", "# because"),
    "a docstring": ("work.py", "Do it.", "Does that."),
    "the docstring of a method": ("work.py", "Say it.", "Says it."),
    "the docstring of the module": ("work.py", "A module.", "The module."),
    "formatting": ("work.py", "helpers.slope(x) + scaled(x)", "(helpers.slope( x )+scaled(x))"),
    "quotes": ("pack/__init__.py", "'ignore'", '"ignore"'),
    "moved lines": ("helpers.py", "def slope", "\n\n\n\ndef slope"),
    "an unrelated function": ("work.py", "OTHER * x", "OTHER + x"),
    "an unrelated class": ("work.py", "scale = 3", "scale = 4"),
    "an unrelated constant": ("work.py", "OTHER = 4", "OTHER = 5"),
    "an unrelated function of a helper": ("helpers.py", "x + 2", "x + 3"),
    "an unrelated constant of a package": ("pack/__init__.py", "VERSION = 5", "VERSION = 6"),
    "an unrelated function of a late import": ("pack/hidden.py", "unseen(x):", "unseen(x, y=1):"),
    "what only a script does": ("work.py", "print(simulate(3))", "print(simulate(4))"),
    "another function": ("deeper.py", "def depth", "def height(x):\n    pass\n\ndef depth"),
    "an import that is not used": ("pack/more.py", "def factor", "import json\ndef factor"),
}  # fmt: skip

REGISTRY = """
    known = {}
    def register(function):
        known[function.__name__] = function
        return function
    """

# Dependencies of a result to which no name in the code that uses them leads, and an edit.
HIDDEN = {
    "all names of an installed module": (
        {"work.py": "from math import *\ndef simulate(x):\n    return floor(x)\n"},
        ("work.py", "math", "numpy"),
    ),
    "which of two imports is the last": (
        {
            "work.py": "from a import g\nfrom b import g\ndef simulate(x):\n    return g(x)\n",
            "a.py": "def g(x):\n    return 1\n",
            "b.py": "def g(x):\n    return 2\n",
        },
        ("work.py", "from a import g\nfrom b import g", "from b import g\nfrom a import g"),
    ),
    "a package without a file": (
        {
            "work.py": "import box.inner\ndef simulate(x):\n    return box.inner.g(x)\n",
            "box/inner.py": "def g(x):\n    return 1\n",
        },
        ("box/inner.py", "return 1", "return 2"),
    ),
    "a class that is found among the subclasses": (
        {
            "work.py": "class Base:\n    pass\nclass Part(Base):\n    k = 1\n"
            "def simulate(x):\n    return Base.__subclasses__()[0].k\n"
        },
        ("work.py", "k = 1", "k = 2"),
    ),
    "a function that a decorator registers in a late import": (
        {
            "work.py": "def simulate(x):\n    import box.part\n    from box.reg import known\n"
            "    return known['part'](x)\n",
            "box/__init__.py": "",
            "box/reg.py": REGISTRY,
            "box/part.py": "from .reg import register\n@register\ndef part(x):\n    return 1\n",
        },
        ("box/part.py", "return 1", "return 2"),
    ),
    "two constants of one name that closures use": (
        {
            "work.py": "import a\nimport b\nf, g = a.make(), b.make()\n"
            "simulate = lambda x: f(x) + g(x)\n",
            "a.py": "N = 1\ndef make():\n    def inner(x):\n        return N\n    return inner\n",
            "b.py": "N = 2\ndef make():\n    def inner(x):\n        return N\n    return inner\n",
        },
        ("a.py", "N = 1", "N = 7"),
    ),
}

# The same for what it does not depend on.
APART = {
    "another subclass": (
        {
            "work.py": "from abc import ABCMeta\nclass Base(metaclass=ABCMeta):\n    pass\n"
            "class A(Base):\n    k = 1\nclass B(Base):\n    k = 2\n"
            "def simulate(x):\n    return A.k\n"
        },
        ("work.py", "k = 2", "k = 3"),
    ),
}

PROGRAM = """
import gc, os, sys
from nbshare._core.checkpoint.key import key_of
from nbshare._core.arguments.options import MapOptions, checked_request
gc.freeze()  # so that forks do not copy what is here
for line in sys.stdin:
    if os.fork():
        if os.wait()[1]:
            print("it failed", flush=True)
        continue
    sys.path.insert(0, line.removesuffix("\\n"))
    from work import simulate
    request, _ = checked_request(simulate, [[1, 2]], MapOptions())
    print(sorted(key_of(request, None).parts.items()), flush=True)
    os._exit(0)  # as all that Python does in the end takes most of the time
"""


def write(folder: Path, *edits: tuple[str, str, str], files: dict[str, str] = FILES) -> None:
    """Write the files, edited."""
    for name, text in files.items():
        text = textwrap.dedent(text)
        for _, old, new in (edit for edit in edits if edit[0] == name):
            assert old in text
            text = text.replace(old, new, 1)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def parts_in():
    """Give the key of a call with the function in a folder, as a process of its own finds it.

    Each is forked from one that has imported the package, which takes most of the time.
    """
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:

        def parts_in(folder: Path) -> str:
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            found = process.stdout.readline()
            assert found.startswith("[("), found
            return found

        yield parts_in


@pytest.fixture(scope="module")
def original(tmp_path_factory, parts_in):
    folder = tmp_path_factory.mktemp("original")
    write(folder)
    return parts_in(folder)


@pytest.mark.parametrize("edit", SEEN)
def test_an_edit_is_seen(edit, tmp_path, original, parts_in):
    """An edit that may change a result changes the key."""
    write(tmp_path, SEEN[edit])
    assert parts_in(tmp_path) != original


def test_other_edits_are_not_seen(tmp_path, original, parts_in):
    """All those that change no result do not change the key. Nor does another folder."""
    write(tmp_path, *UNSEEN.values())
    assert parts_in(tmp_path) == original


@pytest.mark.parametrize("case", HIDDEN)
def test_an_edit_that_no_name_leads_to_is_seen(case, tmp_path, parts_in):
    """Registries, names that are made or imported with all others, constants of one name."""
    files, edit = HIDDEN[case]
    write(tmp_path / "before", files=files)
    write(tmp_path / "after", edit, files=files)
    assert parts_in(tmp_path / "before") != parts_in(tmp_path / "after")


@pytest.mark.parametrize("case", APART)
def test_an_edit_next_to_what_is_reached_is_not_seen(case, tmp_path, parts_in):
    """The ways above lead to no more than is used."""
    files, edit = APART[case]
    write(tmp_path / "before", files=files)
    write(tmp_path / "after", edit, files=files)
    assert parts_in(tmp_path / "before") == parts_in(tmp_path / "after")


@pytest.mark.parametrize("edited", ["a", "b"])
def test_two_files_of_one_name_are_told_apart(edited, tmp_path):
    """Two versions of a model, each in a folder of its own, in one function."""

    def parts():
        a, b = (import_file(tmp_path / folder / "two_of_a_name.py") for folder in "ab")
        f = cell("def f(x):\n    return a.k - b.k\n")
        f.__globals__.update(a=a, b=b)
        return parts_of(f)

    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "two_of_a_name.py").write_text("k = 1\n")
    before = parts()
    (tmp_path / edited / "two_of_a_name.py").write_text("k = 20\n")
    assert parts() != before


def test_a_touched_file_in_a_moved_folder_has_the_same_key(tmp_path, original, parts_in):
    """Times and paths are not in the key, nor is a helper that is there but not imported."""
    folder = tmp_path / "a b" / "c"
    write(folder)
    (folder / "stranger.py").write_text("x = 1")
    assert parts_in(folder) == original


def test_a_module_that_no_text_names_is_seen_by_what_is_dynamic(tmp_path, parts_in):
    """A function that looks names up as it runs depends on all of its module."""
    write(tmp_path, ("deeper.py", "return x - 1", "return globals()['below'](x)\ndef below(x): 1"))
    before = parts_in(tmp_path)
    write(tmp_path, ("deeper.py", "return x - 1", "return globals()['below'](x)\ndef below(x): 2"))
    assert parts_in(tmp_path) != before


def test_a_file_is_parsed_again_only_after_an_edit(tmp_path, monkeypatch):
    """Later calls of a notebook ask for the same files, and a large one takes 0.1 s to parse."""
    (tmp_path / "parsed_once.py").write_text("def f(x): return x\n")
    f = import_file(tmp_path / "parsed_once.py").f
    parse, seen = file.parsed, []

    def note(source):
        seen.append(source)
        return parse(source)

    monkeypatch.setattr(file, "parsed", note)
    before, n_before = parts_of(f), len(seen)
    assert parts_of(f) == before
    assert len(seen) == n_before > 0
    (tmp_path / "parsed_once.py").write_text("def f(x): return 10 * x\n")
    assert parts_of(f) != before
    assert len(seen) == n_before + 1


# ------------------------------------------------------------- functions sent by value


def cell(source: str, name: str = "f"):
    """Return a function as a cell of a notebook defines it."""
    import linecache

    cell.n += 1
    file = f"<cell {cell.n}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"__name__": "__main__", "np": np}
    exec(compile(source, file, "exec"), names)
    return names[name]


cell.n = 0


def parts_of(func, items=(1, 2), version=None, **options):
    """Return the key of a call."""
    request, _ = checked_request(func, [items], MapOptions(**options))
    return key_of(request, version).parts


BY_VALUE = """
a = np.arange(5)
def g(x):
    return x + 1
def make(k):
    def inner(x, d=1):
        '''Docs.'''
        return g(x) + k + d + a.sum()
    return inner
class C:
    c = 1
    def m(self, x):
        return x * self.c
f = make(2)
h = lambda x: C().m(x) + (lambda y: y)(x)
"""


@pytest.mark.parametrize(
    "edit",
    [
        ("np.arange(5)", "np.arange(6)"),
        ("x + 1", "x + 2"),
        ("make(2)", "make(3)"),
        ("d=1", "d=2"),
        ("+ d +", "- d +"),
        ("arange(5)", "arange(5.)"),
        ("+ k", "* k"),
    ],
)
def test_an_edit_of_a_closure_is_seen(edit):
    """Body, helper, default, closure and global array of a function that a cell defines."""
    assert parts_of(cell(BY_VALUE)) != parts_of(cell(BY_VALUE.replace(*edit)))


@pytest.mark.parametrize(
    "edit",
    [("c = 1", "c = 2"), ("x * self.c", "x + self.c"), ("y: y", "y: -y"), ("*", "+")],
)
def test_an_edit_of_a_class_in_a_cell_is_seen(edit):
    """Method and attribute of a class that a cell defines, and a lambda within a lambda."""
    assert parts_of(cell(BY_VALUE, "h")) != parts_of(cell(BY_VALUE.replace(*edit), "h"))


OF_MANY_KINDS = """
from enum import Enum
from functools import wraps
class Checked:
    def __init__(self, k):
        self.k = k
    def __get__(self, instance, owner):
        return self.k
    def __set__(self, instance, value):
        self.k = value + 5
class Meta(type):
    def __call__(cls, x):
        return x + 6
class A(metaclass=Meta):
    pass
class B:
    checked = Checked(7)
class E(Enum):
    ONE = 8
def g(x):
    return g.table
g.table = [9]
names = {}
exec("def made(x):\\n    return 10", names)
made = names["made"]
def f(x):
    class C:
        "Docs."
        c = 11
    return A(x), B().checked, E.ONE, g(x), made(x), C.c
"""


@pytest.mark.parametrize(
    ("edit", "is_seen"),
    [
        (("self.k\n", "-self.k\n"), True),
        (("+ 5", "+ 4"), True),
        (("+ 6", "+ 4"), True),
        (("(7)", "(4)"), True),
        (("= 8", "= 4"), True),
        (("[9]", "[4]"), True),
        (("return 10", "return 4"), True),
        (("c = 11", "c = 4"), True),
        (('"Docs."', '"Doc."'), False),
        (("def f", "\n\n\ndef f"), False),
    ],
    ids=str,
)
def test_an_edit_of_what_a_cell_defines_is_seen(edit, is_seen):
    """Descriptors, metaclasses, members, attributes of functions, functions made by exec."""
    assert edit[0] in OF_MANY_KINDS
    before, after = parts_of(cell(OF_MANY_KINDS)), parts_of(cell(OF_MANY_KINDS.replace(*edit)))
    assert (before != after) == is_seen


def test_what_python_notes_on_a_class_or_where_a_script_is_does_not_count():
    """As pickling an instance does, and the path of the file."""
    source = "class P:\n    def __init__(self): self.k = 1\ndef f(x):\n    return P().k, __file__\n"
    f = cell(source)
    f.__globals__["__file__"] = "/here/script.py"
    before = parts_of(f)
    f.__globals__["P"]().__reduce_ex__(4)
    f.__globals__["__file__"] = "/there/script.py"
    assert parts_of(f) == before


def test_a_file_that_a_cell_imports_in_a_function_counts_by_what_is_used(tmp_path, monkeypatch):
    """As one that it imports at the top, wherever the process is."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_late.py").write_text("def g(x):\n    return 1\ndef h(x):\n    return 2\n")
    f = cell("def f(x):\n    import imported_late as late\n    return late.g(x)\n")
    parts = parts_of(f)
    assert "imported_late.g" in parts
    assert "imported_late.h" not in parts


def test_a_module_that_only_its_path_leads_to_counts_as_a_whole(tmp_path):
    """Also two of them with one name, which `sys.modules` does not know."""

    def parts():
        names = {"__name__": "__main__"}
        for folder in "ab":
            spec = spec_from_file_location("by_path", tmp_path / f"{folder}.py")
            names[folder] = module_from_spec(spec)
            spec.loader.exec_module(names[folder])
        exec("g = a.g\ndef f(x): return g(x) + b.g(x)", names)
        return parts_of(names["f"])

    for folder in "ab":
        (tmp_path / f"{folder}.py").write_text("def g(x): return h(x)\ndef h(x): return x\n")
    found = [parts()]
    for folder in "ab":
        (tmp_path / f"{folder}.py").write_text("def g(x): return h(x)\ndef h(x): return -2 * x\n")
        found.append(parts())
    assert found[0] != found[1] != found[2]


OF_A_DATACLASS = """
from dataclasses import dataclass, field
@dataclass
class P:
    a: int = 1
    b: list = field(default_factory=list)
    def area(self):
        return self.a * 2
p = P(3)
def f(x):
    return p.area() * x
"""


@pytest.mark.parametrize(
    "edit",
    [
        ("a * 2", "a * 3"),
        ("int = 1", "int = 2"),
        ("=list", "=set"),
        ("P(3)", "P(4)"),
        ("    ", "  "),
    ],
)
def test_an_instance_of_a_dataclass_in_a_cell_counts_by_what_it_is(edit):
    """Method, defaults and values, but not how it is written."""
    before, after = (
        parts_of(cell(text)) for text in (OF_A_DATACLASS, OF_A_DATACLASS.replace(*edit))
    )
    assert (before == after) == (edit == ("    ", "  "))


def test_other_edits_of_a_cell_are_not_seen():
    """Docstring, position, formatting, and what the function does not use."""
    edited = BY_VALUE
    for old, new in (
        ("Docs.", "Doc."),
        ("\na =", "\n\n\n# comment\na ="),
        ("g(x) + k", "(g( x )+k)"),
        ("c = 1", "c = 2"),
        ("return inner", "unused = 1\n    return inner"),
        ("f = make", "sum = 3  # not a.sum\nf = make"),
    ):
        assert old in edited
        edited = edited.replace(old, new)
    assert parts_of(cell(BY_VALUE)) == parts_of(cell(edited))


def test_a_function_without_source_counts_by_its_code():
    """As of ``python -c``, where comments do not matter there, either."""

    def found(source):
        names = {"__name__": "__main__"}
        exec(source, names)
        return parts_of(names["f"])

    assert found("def f(x): return x + 1") == found("\n\ndef f(x):\n  'doc'\n  return (x+1)")
    assert found("def f(x): return x + 1") != found("def f(x): return x + 2")
    assert found("k = 1\ndef f(x): return x + k") != found("k = 2\ndef f(x): return x + k")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("['a' for _ in range(x)]", "['b' for _ in range(x)]"),
        ("(lambda: 'a')()", "(lambda: 'b')()"),
        ("x in {'a', 'b'}", "x in {'a', 'c'}"),
    ],
)
def test_texts_within_an_expression_are_seen(before, after):
    """They are no docstrings, though they come first."""
    source = "def f(x):\n    return {}\n"
    assert parts_of(cell(source.format(before))) != parts_of(cell(source.format(after)))


def test_a_global_of_a_class_in_a_function_is_seen():
    """Its body uses other instructions for the name."""
    source = "k = {}\ndef f(x):\n    class C:\n        c = k\n    return C.c\n"
    assert parts_of(cell(source.format(1))) != parts_of(cell(source.format(2)))


def test_what_a_handler_covers_is_seen():
    """Moving a line out of a try changes no instruction, only the table of exceptions."""
    before = "def f(x):\n try:\n  int(x)\n  abs(x)\n finally:\n  print()\n"
    after = "def f(x):\n int(x)\n try:\n  abs(x)\n finally:\n  print()\n"
    assert parts_of(cell(before)) != parts_of(cell(after))


def test_how_arguments_are_taken_is_seen():
    """Two functions with the same instructions, one of which takes a tuple."""
    found = []
    for source in ("def f(x, y):\n return y", "def f(x, *y):\n return y"):
        code = CodeDigests(None)
        code.definition(cell(source))
        found.append(code.parts)
    assert found[0] != found[1]


def test_functions_that_call_each_other_have_a_key():
    """Recursion, direct and by another."""
    source = "def f(x):\n    return g(x) if x else f(1)\ndef g(x):\n    return f(x - 1)\n"
    assert parts_of(cell(source)) == parts_of(cell(source))
    assert parts_of(cell(source)) != parts_of(cell(source.replace("x - 1", "x - 2")))


# ------------------------------------------------------------------------ values


def identity(x, **shared):
    return x


@pytest.mark.parametrize(
    "name", ["seed", "shared", "element", "version", "dtype", "shape", "model"]
)
def test_an_input_is_seen(name):
    """Seed, version, one element of an array, its dtype, its shape, an attribute of an object."""
    big = np.zeros((300, 300))
    other = big.copy()
    other[7, 7] = 1e-300
    model = Holder(big)
    changed = {
        "seed": {"seed": 3},
        "shared": {"shared": {"a": big, "b": 1}},
        "element": {"shared": {"a": other}},
        "version": {"version": "2"},
        "dtype": {"shared": {"a": big.astype("f4")}},
        "shape": {"shared": {"a": big.reshape(100, 900)}},
        "model": {"shared": {"a": model}},
    }
    assert parts_of(identity, shared={"a": big}) != parts_of(
        identity, **{"shared": {"a": big}} | changed[name]
    )
    model.y = 2
    assert parts_of(identity, shared={"a": model}) != parts_of(identity, shared={"a": Holder(big)})


class Slotted(np.ndarray):
    """An array class with an attribute in a slot."""

    __slots__ = ("label",)


@pytest.mark.parametrize("kind", [objects.Labelled, Slotted])
def test_an_attribute_of_an_array_is_seen(kind):
    """NumPy's pickle of an array class omits it, and the function may use it."""
    found = []
    for label in ("ozone", "argon", "ozone"):
        array = np.zeros(3).view(kind)
        array.label = label
        found.append(parts_of(identity, shared={"a": array}))
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_format_and_shape_of_a_memoryview_are_seen():
    """The same bytes say something else then."""
    data = bytes(24)
    views = [memoryview(data).cast("B", shape) for shape in ([24], [4, 6], [6, 4])]
    views += [memoryview(data).cast(form) for form in "if"]
    assert len({str(parts_of(identity, shared={"a": view})) for view in views}) == len(views)


class Holder:
    """An object with an attribute."""

    def __init__(self, x):
        self.x = x


class Kept:
    """An object that keeps an answer."""

    def __init__(self, x):
        self.x = x

    @cached_property
    def double(self):
        """Twice x."""
        return 2 * self.x


class Posing:
    """A decorated function that poses as the original, as wrapt makes it."""

    __slots__ = "__wrapped__", "_self_wrapper"  # so that vars() gives those of the original
    __class__ = property(lambda self: self.__wrapped__.__class__)

    def __init__(self, wrapped, wrapper):
        self.__wrapped__, self._self_wrapper = wrapped, wrapper

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)


class OwnSet(set):
    """A set with attributes."""


class SlotSet(set):
    """A set with an attribute of its class."""

    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


def records(**options) -> np.ndarray:
    """Return zeros with two fields."""
    return np.zeros(2, np.dtype({"names": ["a", "b"], "formats": ["i1", "i4"]} | options))


def of_unit(unit: str) -> np.ndarray:
    return np.zeros(2, np.dtype("f8", metadata={"unit": unit}))


def long_double(rest: int) -> np.ndarray:
    """Return one, with any bytes behind those that it needs."""
    numbers = np.array([1, 2], np.longdouble)
    if np.finfo(numbers.dtype).nmant == 63:
        numbers.view(np.uint8).reshape(-1, 16)[:, 10:] = rest
    return numbers


def mesh(n: int, value: int = 0) -> list[Holder]:
    """Return objects that lead to each other in very many ways."""
    nodes = [Holder([k]) for k in range(n)]
    for node in nodes:
        node.others = nodes[::-1]
    nodes[-1].x.append(value)
    return nodes


def attributed(**attributes) -> Holder:
    """Return an object with attributes in this order."""
    holder = Holder(0)
    vars(holder).update(attributes)
    return holder


def by_address(value: int) -> dict[int, object]:
    """Return a dict of objects by their addresses, as packages keep them."""
    first, second = Holder(value), Holder(2)
    return {id(first): first, id(second): (second, 3)}


class Labelled:
    """An object that its address names, as those of packages do."""

    def __init__(self, parts, x=0):
        self.parts, self.x = parts, x
        self.key, self.label = id(parts), f"{id(self)} of {id(type(self))}"
        self.hashes = (object.__hash__(parts), 3)


def in_cycle(kind, value=0, n=3):
    """Return an object of several that lead to each other through containers of a kind."""
    nodes = [Holder(value + k) for k in range(n)]
    for node in nodes:
        node.others = kind(nodes)
    return nodes[0]


def net(n: int, edges: list[tuple[int, int]]) -> Holder:
    """Return one of some equal objects, each of which has the set of its neighbours."""
    nodes = [Holder(set()) for _ in range(n)]
    for i, j in edges:
        nodes[i].x.add(nodes[j])
        nodes[j].x.add(nodes[i])
    return nodes[0]


RING = [(k, (k + 1) % 6) for k in range(6)]
TRIANGLES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3)]
PRISM = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (0, 4), (1, 5)]

SAME = {
    "a cycle through sets": (in_cycle(set), in_cycle(set)),
    "a cycle through frozen sets": (in_cycle(frozenset), in_cycle(frozenset)),
    "a cycle through keys": (in_cycle(dict.fromkeys), in_cycle(dict.fromkeys)),
    "equal objects in a ring of sets": (net(6, RING), net(6, RING)),
    "labels by addresses": (Labelled([1]), Labelled([1])),
    "parts of a memoryview": (memoryview(b"abcdef")[::2], memoryview(b"axcxex")[::2]),
    "an array in shared memory": (np.arange(6.0), share(np.arange(6.0))),
    "the order in memory": (np.eye(3)[:2], np.asfortranarray(np.eye(3)[:2])),
    "strides": (np.arange(0.0, 12, 2), np.arange(12.0)[::2]),
    "a set": ({"a", "b", 3, (1, 2)}, {(1, 2), 3, "b", "a"}),
    "an object": (Holder([1, 2]), Holder([1, 2])),
    "the order of attributes": (attributed(a=1, b=[2]), attributed(b=[2], a=1)),
    "keys that are addresses": (by_address(1), by_address(1)),
    "a property": (Holder(property(len)), Holder(property(len))),
    "what is masked": (np.ma.array([1, 5], mask=[0, 1]), np.ma.array([1, 6], mask=[0, 1])),
    "identities in a list": ([x := [1], x], [[1], [1]]),
    "what is masked in records": (
        np.ma.array([(1, 5)], "i4,i4", mask=[(0, 1)]), np.ma.array([(1, 6)], "i4,i4", mask=[(0, 1)])
    ),
    "the rest of a long double": (long_double(0), long_double(255)),
}  # fmt: skip
OTHER = {
    "cycles through sets": (in_cycle(set), in_cycle(set, 1)),
    "cycles through keys": (in_cycle(dict.fromkeys), in_cycle(dict.fromkeys, 1)),
    "how sets lead to each other": (net(6, TRIANGLES), net(6, PRISM)),
    "what an address leads to": (Labelled([1]), Labelled([2])),
    "next to an address": (Labelled([1], 1), Labelled([1], 2)),
    "int and float": (1, 1.0),
    "bool and int": (True, 1),
    "scalars": (np.float64(1), 1.0),
    "a list and a tuple": ([1], (1,)),
    "nesting": ([[1], 2], [[1, 2]]),
    "texts": (["ab", "c"], ["a", "bc"]),
    "bytes": (b"a", "a"),
    "the order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "signs of zero": (0.0, -0.0),
    "byte order": (np.arange(3, dtype="<i4"), np.arange(3, dtype=">i4")),
    "records": (np.zeros(2, "i4,f4"), np.ones(2, "i4,f4")),
    "objects in arrays": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "decimals": (Decimal("1.0"), Decimal("1.00")),
    "fractions": (Fraction(1, 3), Fraction(2, 3)),
    "functions": (np.sin, np.cos),
    "types without a name of their own": (type(None), type(NotImplemented)),
    "methods": ("a".upper, "b".upper),
    "what addresses lead to": (by_address(1), by_address(2)),
    "properties": (property(len), property(abs)),
    "decorators": (Posing(identity, np.sin), Posing(identity, np.cos)),
    "what stands for a masked value": (
        np.ma.array([1, 5], mask=[0, 1], fill_value=7), np.ma.array([1, 5], mask=[0, 1])
    ),
    "a mask that cannot be taken away": (
        np.ma.array([1, 5], mask=[0, 1], hard_mask=True), np.ma.array([1, 5], mask=[0, 1])
    ),
    "nothing masked and no mask": (np.ma.array([1, 5]), np.array([1, 5])),
    "kinds of bytes": (b"a", bytearray(b"a")),
    "bytes and a view": (b"a", memoryview(b"a")),
    "a number and an array of one": (np.float64(1), np.array(1.0)),
    "kinds of dicts": ({"a": 1}, MappingProxyType({"a": 1})),
    "kinds of sets": ({1}, frozenset({1})),
    "generators": (np.random.default_rng(1), np.random.default_rng(2)),
    "paths": (Path("a"), Path("b")),
    "attributes": (Holder(1), Holder(2)),
    "objects that lead to each other": (mesh(30), mesh(30, 1)),
    "sets of a class": (OwnSet("ab"), {"a", "b"}),
    "sets with slots": (SlotSet(1), SlotSet(2)),
    "places of fields": (records(), records(offsets=[4, 0])),
    "sizes of records": (records(), records(itemsize=9)),
    "titles of fields": (records(titles=["x", "y"]), records(titles=["x", "z"])),
    "notes of a dtype": (of_unit("m"), of_unit("s")),
    "a dtype with notes and without": (of_unit("m"), np.zeros(2)),
    "records with a mask": (
        np.ma.array([(1, 5)], "i4,i4", mask=[(0, 1)]), np.ma.array([(1, 5)], "i4,i4", mask=[(1, 0)])
    ),
}  # fmt: skip


def digest_of(value):
    return CodeDigests(None).digests.of(value, "value")


@pytest.mark.parametrize("name", SAME)
def test_equal_values_have_one_digest(name):
    """Whatever their layout in memory, and however they were made."""
    first, second = SAME[name]
    assert digest_of(first) == digest_of(second)


@pytest.mark.parametrize("name", OTHER)
def test_other_values_have_other_digests(name):
    """Values that a function may tell apart."""
    first, second = OTHER[name]
    assert digest_of(first) != digest_of(second)
    assert digest_of(first) == digest_of(first)


def test_objects_that_are_often_reached_are_taken_once():
    """Lists in lists, twice each, and a graph whose nodes know each other."""
    lists = [1]
    for _ in range(60):
        lists = [lists, lists]
    assert digest_of(lists) == digest_of(lists)
    assert digest_of(mesh(30)) == digest_of(mesh(30))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="nested too deeply"):
        digest_of(deep)
    while deep:  # or it would be freed by a recursion
        deep = deep.pop()


def test_digests_are_the_same_in_every_process():
    """For any seed of its hashes, and of NumPy's random numbers."""
    program = (
        "import numpy as np\n"
        "from nbshare._core.checkpoint.code import CodeDigests\n"
        "class Own(set): pass\n"
        "def step(x): return 1\n"
        "def step_2(x): return 2\n"
        "value = [{'a', 'b', 'c'}, {'x': frozenset('defg')}, object, range(3), 1j, None]\n"
        "value += [Own('abc'), np.random.mtrand._rand, {step, step_2}]\n"
        "value.append({lambda x, k=k: x + k for k in range(5)})\n"
        "nodes = [type('Node', (), {'__module__': '__main__', 'k': k})() for k in 'abc']\n"
        "for node in nodes: node.near, node.key = {*nodes}, id(node)\n"
        "value.append({*nodes})\n"
        "code = CodeDigests(None)\n"
        "print(code.digests.of(value, '').hex(), sorted(code.parts.items()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1


@settings(max_examples=12)
@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=6),
    links=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("ldsf")), max_size=14
    ),
    data=st.data(),
)
def test_graphs_through_any_containers_have_digests(labels, links, data):
    """Made again, they have the same one, though sets are in another order. A change is seen."""

    def graph(labels):
        nodes = [Holder((k, label)) for k, label in enumerate(labels)]  # no two are equal
        for node in nodes:
            node.by = {"l": [], "d": {}, "s": set(), "f": []}
        for i, j, kind in links:
            here, there = nodes[i % len(nodes)], nodes[j % len(nodes)]
            if kind == "l":
                here.by["l"].append(there)
            elif kind == "d":
                here.by["d"][there] = j
            elif kind == "s":
                here.by["s"].add(there)
            else:
                here.by["f"].append(frozenset([there, here]))
        return nodes

    found = digest_of(graph(labels))
    padding = [Holder(None) for _ in range(data.draw(st.integers(0, 9)))]  # other addresses
    assert digest_of(graph(labels)) == found
    k = data.draw(st.integers(0, len(labels) - 1))
    assert digest_of(graph([*labels[:k], labels[k] + 1, *labels[k + 1 :]])) != found
    del padding


def test_tables_count_by_their_values():
    """Dataframes, Arrow tables, sparse matrices. Layout in memory and kept answers do not count."""
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    sparse = pytest.importorskip("scipy.sparse")
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
    other = pd.DataFrame({"b": ["x", None]})
    other.insert(0, "a", [1, 2])
    other.describe()
    assert digest_of(frame) == digest_of(other)
    numbers = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    apart = pd.DataFrame({"b": [3.0, 4.0]})
    apart.insert(0, "a", [1.0, 2.0])  # two blocks in the place of one
    assert digest_of(numbers) == digest_of(apart) == digest_of(numbers.copy(deep=True))
    assert digest_of(numbers) != digest_of(numbers.rename(columns={"a": "c"}))
    assert digest_of(numbers) != digest_of(numbers.astype("f4"))
    other.loc[1, "a"] = 3
    assert digest_of(frame) != digest_of(other)
    assert digest_of(frame) != digest_of(frame.set_index("a"))
    flagged = frame.set_flags(allows_duplicate_labels=False)
    assert digest_of(frame) != digest_of(flagged)
    assert digest_of(pa.table({"a": [1, 2]})) == digest_of(pa.table({"a": [1, 2]}).slice(0))
    assert digest_of(pa.table({"a": [1, 2]})) != digest_of(pa.table({"a": [1, 3]}))
    matrix = sparse.csr_matrix(np.eye(3))
    before = digest_of(matrix)
    matrix.has_sorted_indices  # noqa: B018 - it keeps the answer
    matrix.has_canonical_format  # noqa: B018 - this one too
    assert digest_of(matrix) == before != digest_of(2 * matrix)


def test_use_of_an_object_does_not_count():
    """Tables with dates, interpolators and splines, which note or leave what they have computed."""
    pd, interpolate = pytest.importorskip("pandas"), pytest.importorskip("scipy.interpolate")
    x = np.arange(9.0)
    dates = pd.DataFrame({"a": x[:2]}, index=pd.to_datetime(["2020", "2021"]))
    triangles = interpolate.LinearNDInterpolator(np.random.default_rng(0).random((9, 2)), x)
    before = digest_of(dates), digest_of(triangles)
    dates.loc["2020"]
    triangles(0.5, 0.5)
    assert (digest_of(dates), digest_of(triangles)) == before
    splines = [interpolate.UnivariateSpline(x, y, s=0) for y in (x**2, x**2, x**3)]
    splines[0]._data = None  # what fitting leaves there is not the same each time
    assert digest_of(splines[0]) == digest_of(splines[1]) != digest_of(splines[2])


def test_an_answer_that_an_object_keeps_does_not_count():
    """The value of a cached property, which follows from the rest."""
    asked, other = Kept(3), Kept(4)
    before = digest_of(asked)
    assert asked.double == 6
    assert vars(asked)["double"] == 6
    assert digest_of(asked) == before != digest_of(other)


@pytest.mark.parametrize("shape", [(4000,), (1, 4000), (3, 2000), (40, 50, 2), (2000, 3)])
def test_a_large_array_counts_by_its_values(shape, monkeypatch):
    """For any number of threads and order in memory. Each element counts."""
    monkeypatch.setattr(digests, "PIECE_NBYTES", 8000)
    array = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    found = digest_of(array)
    assert found == digest_of(np.asfortranarray(array)) == digest_of(share(array))
    monkeypatch.setattr(digests, "N_THREADS", 1)
    assert found == digest_of(array)
    for i in (0, 1000, array.size - 1):
        other = array.copy()
        other.flat[i] += 1
        assert digest_of(other) != found
    assert digest_of(array.ravel()[::-1].reshape(shape)) != found


def test_what_has_no_digest_is_named_with_the_cure():
    """A lock in an object in a dict is named. The message says where, and to give a version."""
    value = Holder({"k": threading.Lock()})
    with pytest.raises(
        CheckpointError, match=r"shared\['a'\]\.x\['k'\] is a _thread\.lock.*version="
    ):
        parts_of(identity, shared={"a": value})
    first = parts_of(identity, shared={"a": value}, version="1")
    assert first == parts_of(identity, shared={"a": value}, version="1")
    assert first != parts_of(identity, shared={"a": value}, version="2")


def test_a_long_way_to_an_object_is_shortened():
    """The message says what of the call leads there."""
    value = threading.Lock()
    for _ in range(50):
        value = Holder(value)
    with pytest.raises(
        CheckpointError, match=r"shared\['a'\][.x]+ \.\.\. [.x]+ is a _thread.lock"
    ) as e:
        parts_of(identity, shared={"a": value})
    assert len(str(e.value)) < 400
    f = cell("import threading\nclass C:\n    lock = threading.Lock()\ndef f(x): return C\n")
    with pytest.raises(CheckpointError, match=r"C\.lock, to which the function leads, is a"):
        parts_of(f)


def test_what_does_not_matter_is_not_in_the_key():
    """Workers, chunks, policies and the way that results are shown."""
    plain = parts_of(identity)
    assert plain == parts_of(
        identity, max_workers=1, chunksize=3, on_error="return", retries=2, timeout=5.0
    )
