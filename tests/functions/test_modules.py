"""A call does not depend on what else is loaded, and nothing is loaded for it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare._core.functions import modules
from nbshare._core.functions.modules import file_of, find_named, loaded, own_files, variables_of
from nbshare._core.source.changes import warn_of_changes
from nbshare._core.wire.context import current_context
from tests.support import oddities

CALLS = """
import sys
import scipy.special
import nbshare
from nbshare import Executor, parallel_map
from tests.support import oddities
folder = sys.argv[1]
oddities.fill(folder)
if "late" in sys.argv:
    parallel_map(abs, [1], progress=False)
options = dict(max_workers=2, progress=False, initializer=oddities.fill, initargs=(folder,))
def f(x): return oddities.filled(x)
for func in (oddities.filled, f, scipy.special.expit):
    for backend in (None, "serial", "threads"):
        here = options if backend is None else {"progress": False, "backend": backend}
        assert list(parallel_map(func, [4.0, 9.0], **here)) == [func(4.0), func(9.0)], backend
for _ in range(2):
    for func in (oddities.filled, f):
        got = parallel_map(func, [4.0, 9.0], checkpoint=f"{folder}/run {func.__name__}", **options)
        assert list(got) == [2, 3]
with Executor(2, initializer=oddities.fill, initargs=(folder,)) as executor:
    assert list(executor.map(f, [4.0, 9.0])) == [2, 3]
import joblib
nbshare.register_joblib()
with joblib.parallel_config("nbshare", n_jobs=2):
    assert joblib.Parallel()(joblib.delayed(f)(x) for x in [4.0, 9.0]) == [2, 3]
for name in (7, None, ("a", 1)):  # cloudpickle takes all of them for texts, if modules are used
    sys.modules[name] = oddities
assert list(parallel_map(lambda x: x + 1, [1], **options)) == [2]
print(oddities.ASKED, parallel_map(oddities.asked, [0], **options))
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_odd_modules_break_no_call_and_are_not_asked(tmp_path, when):
    """On no backend, in the caller or in workers, with a checkpoint or without."""
    command = [sys.executable, "-c", CALLS, str(tmp_path), when]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "[] [[]]\n", ended.stderr[-3000:]


VALUES = {
    "none": None, "a number": 1, "bytes": b"/odd.py", "relative": "x.py", "absolute": "/odd/x.py",
    "of this package": nbshare.__file__, "no suffix": "/odd/x", "a notebook": "/odd/x.ipynb",
    "a proxy": oddities.Answering(), "a trap": oddities.raising(oddities.Stop)(), "": "",
    "spec": ModuleSpec("odd", None), "dict": {}, "zero": "/\0.py", "surrogate": "/\ud800.py",
}  # fmt: skip
VARIABLES = [
    "__file__",
    "__spec__",
    "__loader__",
    "__name__",
    "__path__",
    "__dict__",
    "__builtins__",
]
CLASSES = {
    "plain": types.ModuleType,
    "properties": oddities.Properties,
    "traps": oddities.raising(oddities.Stop, types.ModuleType),
}
NAMES = st.text(max_size=5) | st.integers() | st.none() | st.sampled_from(["numpy.odd", "a.b"])


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        NAMES,
        st.tuples(
            st.sampled_from(sorted(CLASSES)),
            st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(sorted(VALUES))),
        ),
        max_size=5,
    )
)
def test_any_module_is_known_without_asking_it(found):
    """Whatever its name, its class and its variables are."""
    kept = sys.modules.copy()
    oddities.ASKED.clear()
    try:
        for name, (kind, variables) in found.items():
            module = types.ModuleType.__new__(CLASSES[kind])
            types.ModuleType.__init__(module, "odd")
            variables_of(module).update({key: VALUES[value] for key, value in variables.items()})
            sys.modules[name] = module
            assert type(file_of(module)) in (str, type(None))
        own, by_value = own_files(), modules.by_value()
        current_context()
        warn_of_changes(math.sqrt, test_any_module_is_known_without_asking_it)
    finally:
        sys.modules.clear()
        sys.modules.update(kept)
    assert all(type(name) is str for name in [*own, *by_value])
    assert oddities.ASKED == []


def test_a_variable_may_be_called_dict():
    """Also when Python has cached how the attribute is found."""
    module = types.ModuleType("odd")
    module.__file__ = "/odd.py"
    vars(module)["__dict__"] = "shadow"
    assert {file_of(module) for _ in range(1000)} == {"/odd.py"}


def test_a_new_module_costs_a_look_at_that_module(monkeypatch):
    """Not at the thousands that are there, nor at it again."""
    loaded()
    looked = []
    monkeypatch.setattr(modules, "file_of", lambda module: looked.append(module) or file_of(module))
    new = types.ModuleType("fresh_module")
    monkeypatch.setitem(sys.modules, "fresh_module", new)
    loaded()
    assert set(map(id, looked)) == {id(new)}
    looked.clear()
    loaded()
    assert looked == []


def test_a_module_that_is_replaced_or_gone_is_noticed(tmp_path, monkeypatch):
    """Though as many are there as before."""

    def module(name, file):
        made = types.ModuleType(name)
        made.__file__ = str(tmp_path / file)
        return made

    monkeypatch.setitem(sys.modules, "fresh_one", module("fresh_one", "a.py"))
    assert own_files()["fresh_one"] == str(tmp_path / "a.py")
    sys.modules["fresh_one"] = module("fresh_one", "b.py")
    assert own_files()["fresh_one"] == str(tmp_path / "b.py")
    before = own_files()
    assert own_files() is before
    del sys.modules["fresh_one"]
    monkeypatch.setitem(sys.modules, "fresh_two", module("fresh_two", "c.py"))
    assert "fresh_one" not in own_files()
    assert own_files()["fresh_two"] == str(tmp_path / "c.py")


def test_a_name_is_looked_up_in_variables_only():
    """Of modules, and as usual in classes."""
    assert find_named("json", "JSONEncoder.default") is json.JSONEncoder.default
    assert find_named("json", "nothing.more") is None
    assert find_named("not_loaded", "name") is None


# ---------------------------------------------------------- packages with modules of no file

TORCHLIKE = """
import sys, types
ones = lambda n: [1] * n
for name in ("ops", "classes"):
    module = types.ModuleType("fancy." + name)
    module.__file__ = FILE
    sys.modules[module.__name__] = module
"""


@pytest.mark.parametrize("file", ["_ops.py", "{here}/fancy/__init__.py", "{here}/nothing/_ops.py"])
def test_a_package_is_the_one_of_the_path(script, tmp_path, file):
    """Not what its modules with made-up files would make of it, in workers nor in the caller."""
    (tmp_path / "lib/site-packages/fancy").mkdir(parents=True)
    file = file.format(here=tmp_path / "lib/site-packages")
    code = TORCHLIKE.replace("FILE", repr(file))
    (tmp_path / "lib/site-packages/fancy/__init__.py").write_text(code)
    (tmp_path / "job.py").write_text("def f(i):\n    import fancy\n    return len(fancy.ones(i))\n")
    code = """
import sys; sys.path[:0] = [".", "lib/site-packages"]
import fancy, job
from nbshare import parallel_map
for f in (job.f, lambda i: len(fancy.ones(i))):
    print(*parallel_map(f, range(3), progress=False))
del sys.modules["fancy"]
import fancy
print(fancy.ones(1))
"""
    assert script(code) == "0 1 2\n0 1 2\n[1]\n"


# --------------------------------------------------------- modules that only this process has

MADE = "OFF = 2\nclass Model:\n    n = 3\ndef h(x): return x + OFF\ndef f(x): return h(x)\n"
WAYS = {
    "made": "helpers = types.ModuleType('helpers')\nsys.modules['helpers'] = helpers\n"
    "exec(MADE, vars(helpers))\n",
    "by a loader": """
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): exec(MADE, vars(module))
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_loader(name, Loader()) if name == "helpers" else None
sys.meta_path.append(Finder)
import helpers
""",
    "a notebook": """
class NotebookLoader:
    def __init__(self): self.lock = threading.Lock()
    def create_module(self, spec): return None
    def exec_module(self, module):
        module.__file__ = "helpers.ipynb"
        exec(MADE, vars(module))
helpers = module_from_spec(spec_from_loader("helpers", NotebookLoader()))
sys.modules["helpers"] = helpers
helpers.__loader__.exec_module(helpers)
""",
}
START = f"""
import sys, threading, types
from importlib.util import module_from_spec, spec_from_loader
from nbshare import Executor, parallel_map
MADE = {MADE!r}
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_workers_cannot_import_goes_by_value(script, way):
    """Its functions, classes, objects and itself, with results of its classes that are its own."""
    code = f"""{START}{WAYS[way]}
def uses(x): return helpers.f(x)
def returns(x): return helpers.Model()
print(*parallel_map(helpers.f, range(3), progress=False), *Executor().map(helpers.f, [4]))
print(*parallel_map(uses, range(3), progress=False))
print(*parallel_map(lambda m: m.n, [helpers.Model()], progress=False))
print(type(parallel_map(returns, [0], progress=False)[0]) is helpers.Model)
helpers.OFF = 10
print(*parallel_map(uses, [0], progress=False), *parallel_map(helpers.f, [0], progress=False))
"""
    assert script(code).splitlines() == ["2 3 4 6", "2 3 4", "3", "True", "10 10"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("func", ["helpers.f", "lambda x: helpers.f(x)"])
def test_a_checkpoint_depends_on_a_module_that_goes_by_value(script, way, func):
    """On the values and functions that are reached in it."""
    code = f"""{START}{WAYS[way]}
from nbshare.errors import CheckpointError
def run():
    try:
        return [*map(int, parallel_map({func}, range(2), checkpoint="run", progress=False))]
    except CheckpointError as error:
        return "OFF" in str(error) or "h changed" in str(error)
print(run(), run())
helpers.OFF = 3
print(run())
helpers.OFF = 2
exec("def h(x): return x - OFF", vars(helpers))
print(run())
"""
    assert script(code).splitlines() == ["[2, 3] [2, 3]", "True", "True"]


def test_files_of_another_language_go_by_value(script, tmp_path):
    """Also if the import hook of that language was there before nbshare."""
    (tmp_path / "helpers.lang").write_text(MADE.replace("def", "function"))
    code = f"""
import importlib.machinery, sys
compiled = importlib.machinery.SourceFileLoader.source_to_code
def translated(self, data, path, **options):
    if path.endswith(".lang"):
        data = data.replace(b"function", b"def")
    return compiled(self, data, path, **options)
importlib.machinery.SOURCE_SUFFIXES.append(".lang")
importlib.machinery.SourceFileLoader.source_to_code = translated
sys.path_importer_cache.clear()
{START}
import helpers
for f in helpers.f, lambda x: helpers.f(x):
    print(*parallel_map(f, range(3)), *Executor().map(f, range(3)))
"""
    assert script(code) == "2 3 4 2 3 4\n" * 2


def test_an_import_of_a_module_that_workers_do_not_have_names_its_loader(script):
    """And says what to do."""
    code = f"""{START}{WAYS["by a loader"]}
def f(x):
    import helpers
try:
    parallel_map(f, [0], progress=False)
except ModuleNotFoundError as error:
    print(error.__notes__[1])
"""
    assert script(code) == (
        "In the calling process, 'helpers' was loaded by Loader, which workers do not have. "
        "Move its code to a .py file.\n"
    )


def test_a_compiled_module_is_loaded_from_its_file(script):
    """As `%%cython` and pyximport load it, from a folder that is not on the path."""
    code = """
import importlib.util, os, shutil, sys, _ctypes_test
from importlib.machinery import ExtensionFileLoader
os.mkdir("cache")
shutil.copy(_ctypes_test.__file__, "cache/built.so")
name = "moved._ctypes_test"
loader = ExtensionFileLoader(name, "cache/built.so")
spec = importlib.util.spec_from_file_location(name, "cache/built.so", loader=loader)
sys.modules[name] = module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
from nbshare import parallel_map
def f(x):
    return module.__file__.endswith("built.so")
print(*parallel_map(f, [0], progress=False))
"""
    pytest.importorskip("_ctypes_test")
    assert script(code) == "True\n"


def test_a_finder_of_the_old_kind_breaks_no_import(script, tmp_path):
    """As of notebooks, in Jupyter's documentation. Python skips it, or asks it otherwise."""
    (tmp_path / "helper.py").write_text("def f(x): return x + 1\n")
    code = """
import sys, warnings
warnings.simplefilter("ignore")
class Finder:
    def find_module(self, name, path=None): return None
sys.meta_path.insert(0, Finder())
from nbshare import parallel_map
parallel_map(abs, [1], progress=False)
try:
    import not_there
except ModuleNotFoundError:
    from helper import f
    print(*parallel_map(f, [1], checkpoint="run", progress=False))
"""
    assert script(code) == "2\n"


HOOKED = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader

class Loader(SourceFileLoader):
    def get_code(self, name):
        return compile("def f(x): return x + 5", self.path, "exec")

class Hook:
    original = next(finder for finder in sys.meta_path if finder is PathFinder)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = cls.original.find_spec(name, path, target) if name == "checked" else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
        return spec

sys.meta_path.insert(0, Hook)
import checked

def f(x):
    return checked.f(x)
"""


def test_a_worker_file_may_install_an_import_hook(script, tmp_path):
    """As libraries that check types do, which look for the finder of Python."""
    (tmp_path / "hooked.py").write_text(HOOKED)
    (tmp_path / "checked.py").write_text("def f(x): return x\n")
    code = "from nbshare import parallel_map\nimport hooked\n"
    assert script(f"{code}print(*parallel_map(hooked.f, range(2), progress=False))") == "5 6\n"
