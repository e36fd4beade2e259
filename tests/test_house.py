"""The house is in order, by linters, types, layers, light imports, a documented public face."""

from __future__ import annotations

import ast
import inspect
import itertools
import operator
import os
import pickle
import re
import subprocess
import sys
import typing
import zipfile
from pathlib import Path

import pytest

import nbshare
from nbshare._core import HOME_OF
from nbshare._core.arguments.options import MapOptions, Options

ROOT = Path(__file__).resolve().parents[1]

# Mypy's cache is for one process at a time, and for one platform.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
CACHE = ROOT / ".mypy_cache" / WORKER
os.environ["MYPY_CACHE_DIR"] = str(CACHE)


def python(*arguments: str) -> str:
    """Run Python in the project's folder, where it must end well. Return what it printed."""
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


# doctest takes a class for a foreign one if its module is not where its methods are.
DOCTESTS = """
import sys, nbshare, pytest
from nbshare._core import HOME_OF
for name, home in HOME_OF.items():
    if isinstance(found := getattr(nbshare, name), type):
        found.__module__ = home
for home in ("engine.stats", "arrays.ring_slots", "entries.pipelines", "runs.stored"):
    for found in vars(sys.modules[f"nbshare._core.{home}"]).values():
        if getattr(found, "__module__", "") == "nbshare.types":
            found.__module__ = f"nbshare._core.{home}"
nbshare.errors.NbshareError.__module__ = "nbshare._core.base_error"
nbshare.errors.WorkerDiedError.__module__ = "nbshare._core.died"
elsewhere = "--ignore=nbshare/_core/system/windows --ignore=nbshare/_core/system/macos"
words = f"-q --doctest-modules -p no:cacheprovider --ignore-glob=*hook-* {elsewhere}".split()
sys.exit(pytest.main([*words, "nbshare"]))
"""


FOR_WINDOWS = [
    *("--platform", "win32", "--follow-imports", "silent", "--cache-dir", str(CACHE / "win32")),
    *map(str, ROOT.glob("nbshare/_core/system/windows/*.py")),
    "nbshare/_core/worker/spawned.py",
]


@pytest.mark.repo
@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("ruff", ("-m", "ruff", "check")),
        ("ruff", ("-m", "ruff", "format", "--check")),
        ("mypy", ("-m", "mypy")),
        ("mypy", ("-m", "mypy", *FOR_WINDOWS)),
        ("importlinter", ("-c", "from importlinter import cli; cli.lint_imports_command()")),
        ("marimo", ("-c", DOCTESTS)),
    ],
    ids=["ruff check", "ruff format", "mypy", "mypy for Windows", "lint-imports", "doctests"],
)
def test_the_checks_pass(package, arguments):
    """Lint, format, types, layers and the examples in docstrings are as they have to be."""
    pytest.importorskip(package)
    python(*arguments)


@pytest.mark.repo
def test_what_one_system_has_is_asked_in_one_room():
    """Its calls and files are named in `system` alone. Its modules are a layer's matter."""
    calls = {"eventfd", "killpg", "memfd_create", "pidfd_open", "pipe2", "register_at_fork"}
    calls |= {"sched_getaffinity", "sched_setaffinity", "sysconf"}
    found = set()
    for path in (ROOT / "nbshare/_core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = getattr(node, "value", "") if isinstance(node, ast.Constant) else ""
            is_file = isinstance(text, str) and text.startswith(("/dev/shm", "/proc/", "/sys/"))
            if is_file or getattr(node, "attr", None) in calls:
                found.add(str(path.relative_to(ROOT / "nbshare/_core")))
    # These travel without the rest of nbshare.
    assert {name for name in found if not name.startswith("system/")} <= {
        "hosts/messages.py",
        "hosts/starting.py",
    }


@pytest.mark.repo
def test_type_checkers_know_what_comes_back():
    """Mypy infers the types that ``typed.py`` asserts, and finds its wrong calls wrong."""
    pytest.importorskip("mypy")
    python("-m", "mypy", "--strict", "--no-error-summary", "tests/typed.py")


def test_type_checkers_know_all_options():
    """The options for type checkers are those that are checked when a call begins."""
    assert {"out", *Options.__annotations__} == set(MapOptions._fields)
    *_, last = typing.get_overloads(nbshare.parallel_map)
    assert set(inspect.signature(last).parameters) == {
        *("func", "iterables", "misspelt"),
        *MapOptions._fields,
    }


@pytest.mark.repo
def test_type_checkers_tell_of_a_misspelt_option_in_one_line(tmp_path):
    """The line names the option."""
    pytest.importorskip("mypy")
    script = tmp_path / "misspelt.py"
    script.write_text(
        "from nbshare import parallel_map\nparallel_map(abs, [1], max_worker=2, retries=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(script)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    (line,) = ended.stdout.splitlines()
    assert "max_worker" in line
    assert "NoSuchOption" in line


def test_import_loads_numpy_and_the_standard_library_only():
    """``import nbshare`` and all its names load no other package, start no thread, do not warn."""
    code = """
import sys, threading
before = set(sys.modules)
import nbshare
for name in nbshare.__all__:
    getattr(nbshare, name)
new = [name for name in set(sys.modules) - before
       if "site-packages" in (getattr(sys.modules[name], "__file__", None) or "")]
print(sorted({name.split(".")[0] for name in new} - {"numpy", "nbshare"}))
print(threading.active_count())
"""
    assert python("-W", "error", "-c", code).split("\n") == ["[]", "1", ""]


def test_a_quiet_map_loads_nothing_optional():
    """A run that shows nothing needs neither matplotlib nor tqdm nor IPython."""
    code = """
import math, sys
from nbshare import parallel_map
parallel_map(math.sqrt, [1.0, 4.0], progress=False)
optional = {"matplotlib", "tqdm", "ipywidgets", "IPython", "cloudpickle"}
print(sorted(optional & {name.split(".")[0] for name in sys.modules}))
"""
    assert python("-c", code) == "[]\n"


def test_a_map_imports_what_it_uses():
    """Each import makes a first call longer, and each worker's where workers are not forked."""
    code = """
import sys, numpy
names = {"pathlib", "difflib", "html", "nbshare._core.arrays.ring"} - sys.modules.keys()
from nbshare import parallel_map
parallel_map(abs, [1, 2], progress=False)
print(names & sys.modules.keys())
def is_loaded(name):
    return name in sys.modules
print(parallel_map(is_loaded, sorted(names), progress=False).any())
"""
    assert python("-c", code) == "set()\nFalse\n"


# ------------------------------------------------------------------------- public face


PUBLIC_MODULES = [nbshare, nbshare.errors, nbshare.types]


def _rank(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda m: m.__name__)
def test_the_public_names_are_sorted_and_there(module):
    """``__all__`` is sorted (constants, classes, functions), without doubles, and all exist."""
    assert module.__all__ == sorted(set(module.__all__), key=_rank)
    assert all(hasattr(module, name) for name in module.__all__)


def test_nothing_else_looks_public():
    """Besides ``__all__`` the package holds its own modules and IPython's two hooks, once all came.

    In a process of its own, because the late names here depend on the tests before.
    """
    code = """
import inspect, nbshare
for name in dir(nbshare):
    getattr(nbshare, name)
nbshare.load_ipython_extension, nbshare.unload_ipython_extension
others = {name for name in vars(nbshare) if name[0] != "_"} - set(nbshare.__all__)
print(sorted(name for name in others if not inspect.ismodule(getattr(nbshare, name))))
"""
    assert python("-c", code) == "['load_ipython_extension', 'unload_ipython_extension']\n"


def test_no_public_name_is_a_module_s_too():
    """An import of the module would put it in the place of the function."""
    modules = {path.stem for path in Path(nbshare.__file__).parent.iterdir()}
    assert modules & set(nbshare.__all__) == {"errors", "types"}


FUNCTIONS = [name for name in nbshare.__all__ if inspect.isfunction(getattr(nbshare, name))]
CLASSES = [
    getattr(module, name)
    for module in PUBLIC_MODULES
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
]
NAMES = [name for name in nbshare.__all__ if name not in {"errors", "types"}]
NAMES.remove("MapInterrupted")  # the examples of errors are in tutorial 4
NAMES += [f"types.{name}" for name in nbshare.types.__all__]


def sections(text: str) -> dict[str, str]:
    """Return the sections of a numpydoc docstring by their titles."""
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_answer_every_question(name):
    """A public function says what its parameters are, what it returns, and shows an example."""
    function = getattr(nbshare, name)
    found = sections(function.__doc__)
    if "not built yet" in function.__doc__.splitlines()[0]:
        assert "Raises" in found
        return
    signature = inspect.signature(function)
    documented = re.findall(r"^(\*{0,2}\w+(?:, \w+)*)(?: :|$)", found.get("Parameters", ""), re.M)
    named = {part.strip("* ") for line in documented for part in line.split(",")}
    if "options" in named:  # those of another function, which documents them
        named |= set(inspect.signature(nbshare.parallel_map).parameters)
    assert named >= set(signature.parameters)
    assert "Returns" in found or signature.return_annotation in (None, "None")
    assert ">>>" in found["Examples"]


def test_titles_of_sections_have_lines_of_their_own():
    """A rewrap of paragraphs may put them into the text below."""
    sources = {path: path.read_text() for path in (ROOT / "nbshare").rglob("*.py")}
    assert not [path for path, text in sources.items() if re.search(r"(?m)^ *[A-Z].* -{4,} ", text)]


def n_examples(text: str) -> int:
    """Count the doctests of a docstring that follow a sentence about them."""
    shown = sections(text).get("Examples", "")
    is_code = [part.startswith(">>>") for part in shown.strip().split("\n\n")]
    return sum(b and not a for a, b in itertools.pairwise(is_code))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_two_examples(name):
    """Each with a sentence that says what it shows, a simple one and a real one."""
    assert n_examples(inspect.getdoc(operator.attrgetter(name)(nbshare))) >= 2


@pytest.mark.parametrize("name", nbshare.errors.__all__)
def test_an_error_says_in_a_few_lines_what_to_do(name):
    """Its attributes follow."""
    text, _, _ = inspect.getdoc(getattr(nbshare.errors, name)).partition("\n\nAttributes\n")
    assert len(text.splitlines()) <= 6


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public_classes_and_their_methods_are_documented(cls):
    """A public class and each public method and property of its own have a docstring."""
    assert cls.__doc__
    for name, member in vars(cls).items():
        if name[0] != "_" and (callable(member) or isinstance(member, property)):
            inherited = any(name in vars(base) for base in cls.__mro__[1:])
            assert inspect.getdoc(member) or inherited, f"{cls.__name__}.{name}"


@pytest.mark.repo
def test_the_stub_has_the_public_names():
    """And says of each where it comes from, as the package does when it imports them."""
    stub = ast.parse((ROOT / "nbshare" / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes.pop("errors") == homes.pop("types") == "nbshare"
    assert sorted([*homes, "errors", "types"]) == sorted(nbshare.__all__)
    for name, home in homes.items():
        assert HOME_OF[name] == home


def test_it_is_imported_from_a_zip_file_without_stubs(tmp_path):
    """As frozen programs have it. Workers import it from there too."""
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as library:
        for path in (ROOT / "nbshare").rglob("*.py"):
            library.write(path, path.relative_to(ROOT))
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import math, nbshare; "
        "assert 'library.zip' in nbshare.__file__; "
        "print(nbshare.parallel_map(math.sqrt, [4.0, 9.0]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "library.zip")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert ended.stdout.split() == ["[2.", "3.]"], ended.stderr


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_annotations_of_public_classes_can_be_evaluated(cls, monkeypatch):
    """`typing.get_type_hints` works on a class and its members, without other names of nbshare."""
    for name in HOME_OF:
        monkeypatch.delitem(vars(nbshare), name, raising=False)
    typing.get_type_hints(cls)
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)  # of a class method
        # Those that Python makes for a named tuple see no builtins. Its fields are the class's.
        if inspect.isfunction(function) and function.__module__ != f"namedtuple_{cls.__name__}":
            typing.get_type_hints(function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_annotations_of_public_functions_can_be_evaluated(name):
    """`typing.get_type_hints` works on a function, as documentation tools and checkers use it."""
    assert typing.get_type_hints(getattr(nbshare, name))


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda m: m.__name__)
def test_public_classes_say_where_users_find_them(module):
    """Their module is the public one, by which they are pickled."""
    for name in module.__all__:
        cls = getattr(module, name)
        if inspect.isclass(cls):
            home = "nbshare.errors" if issubclass(cls, BaseException) else module.__name__
            assert cls.__module__ == home
            assert pickle.loads(pickle.dumps(cls)) is cls


PUBLIC = {
    "Job": "map_async(abs, [1])",
    "SharedArray": "nbshare.zeros(3)",
    "SharedBuffer": "nbshare.SharedBuffer(64)",
    "SharedLock": "nbshare.SharedLock()",
    "RingBuffer": "nbshare.RingBuffer(2, (3,), float)",
    "Executor": "nbshare.Executor(1)",
    "LivePlot": 'nbshare.LivePlot("line")',
    "nbshare": "nbshare",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_object_is_completed(name, monkeypatch, tmp_path_factory):
    """By jedi, which IPython and JupyterLab ask. An annotation that it cannot read hides all."""
    jedi = pytest.importorskip("jedi")
    cache = tmp_path_factory.getbasetemp() / "jedi"  # another process writes half a file at home
    monkeypatch.setattr(jedi.settings, "cache_directory", str(cache))
    subject = eval(PUBLIC[name], {"nbshare": nbshare, "map_async": nbshare.map_async})
    found = {c.name for c in jedi.Interpreter("subject.", [{"subject": subject}]).complete()}
    assert {each for each in dir(subject) if not each.startswith("_")} <= found


# ------------------------------------------------------------------------- the version


@pytest.mark.repo
@pytest.mark.parametrize(
    ("file", "pattern"),
    [("CITATION.cff", r"^version: (.+)$"), ("CHANGELOG.md", r"^## \[(.+)\] - ")],
)
def test_the_version_is_the_same_everywhere(file, pattern):
    """The cited version, and the newest of the changelog, are the package's."""
    found = re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == nbshare.__version__
