"""Workers import a module from the file that its caller has it from."""

from __future__ import annotations

import functools
import os
import sys

import pytest

FILES = {
    "own.py": "import own_helper\ndef f(x): return x + own_helper.ONE",
    "own_helper.py": "ONE = 1",
    "lib/tools.py": "def f(x): return x + 2",
    "folder/inner.py": "from . import other\ndef f(x): return x + other.THREE",
    "folder/other.py": "THREE = 3",
    "package/__init__.py": "",
    "package/inner.py": "from . import other\ndef f(x): return x + other.FOUR",
    "package/other.py": "FOUR = 4",
    "data/own.py": "def f(x): return 'another module'",
    "data/own_helper.py": "ONE = 100",
}
START = "import os, sys\nfrom nbshare import Executor, parallel_map\n"
THEN = {
    "another directory": "os.chdir('data')",
    "there and back": "os.chdir('data'); parallel_map(f, [0]); os.chdir('..')",
    "a folder that is gone": "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "another path": "sys.path[:] = [p for p in sys.path if os.path.isabs(p)]",
    "nothing": "pass",
}
if sys.platform == "win32":  # the current folder cannot be removed there
    del THEN["a folder that is gone"]
IMPORTS = {
    "the working directory": ("from own import f", 1),
    "a relative folder": ("sys.path.insert(0, 'lib'); from tools import f", 2),
    "a dot": ("sys.path[0] = '.'; from own import f", 1),
    "a folder without __init__": ("from folder.inner import f", 3),
    "a package": ("from package.inner import f", 4),
}


@pytest.fixture
def files(tmp_path):
    """Files in the directory of the script."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)


@pytest.fixture
def script(request, script, tmp_path):
    """Run code as by ``python -W error -c``, which must end well. Return what it printed."""
    if not hasattr(os, "fork"):
        return functools.partial(script, as_command=True)
    forks = request.getfixturevalue("forks")

    def run(code):
        strict = "import warnings\nwarnings.simplefilter('error')\n"
        ended = forks.run(strict + code, tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.parametrize(
    ("how", "then"),
    [(how, "another directory") for how in IMPORTS]
    + [("the working directory", then) for then in THEN if then != "another directory"],
)
@pytest.mark.usefixtures("files")
def test_a_module_is_the_one_that_was_imported(script, how, then):
    """Wherever this process has gone since, files of its name that are there do not count."""
    importing, plus = IMPORTS[how]
    code = f"""{START}{importing}
{THEN[then]}
print(*parallel_map(f, range(2)), *parallel_map(lambda x: f(x), range(2)))
print(*Executor().map(f, range(2)))
"""
    said = script(code)
    assert said.splitlines() == [f"{plus} {plus + 1} {plus} {plus + 1}", f"{plus} {plus + 1}"]


@pytest.mark.usefixtures("files")
def test_items_are_in_the_directory_of_the_call(script):
    """It has nothing to do with where their modules come from."""
    code = f"{START}from own import f\nos.chdir('data')\n"
    code += "print(*parallel_map(lambda x: (f(x), sorted(os.listdir())[0]), [0])[0])"
    assert script(code) == "1 own.py\n"


@pytest.mark.usefixtures("files")
def test_a_module_that_is_imported_anew_is_the_new_one(script):
    """A name means what this process means by it now, though workers know another."""
    code = f"""{START}
for folder in "", "data", "..":
    sys.modules.pop("own", None); sys.modules.pop("own_helper", None)
    os.chdir(folder or ".")
    from own import f
    print(f(0), parallel_map(f, [0])[0])
"""
    said = script(code)
    assert said.splitlines() == ["1 1", "another module another module", "1 1"]


@pytest.mark.usefixtures("files")
def test_a_package_may_have_folders_that_a_program_has_added(script, tmp_path):
    """Modules of a plugin folder are found in workers, and so are those next to the package."""
    for file in ("host/__init__.py", "host/inner.py", "added/plugin.py", "added/more/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("def f(x): return x + 1\n")
    code = f"""{START}
import host.inner
host.__path__.append(os.path.abspath("added"))
import host.plugin, host.more
for f in host.f, host.inner.f, host.plugin.f, host.more.f, lambda x: host.plugin.f(x):
    print(*parallel_map(f, range(2)), *Executor().map(f, range(2)))
"""
    assert script(code) == "1 2 1 2\n" * 5


# ----------------------------------------------------------- loaded by the path of a file

RECIPE = f"""{START}
import importlib.util
def load(name, path, register):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    if register: sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
"""
ELSEWHERE = """
def k(x): return x * 3
class Model:
    n = 1
    def predict(self, x): return x + self.n
    def itself(self, x): return self
"""


@pytest.mark.parametrize("register", [True, False])
@pytest.mark.parametrize("name", ["helpers", "plugins.first", "a.b.c"])
def test_a_module_loaded_by_the_documented_recipe_is_found(script, tmp_path, name, register):
    """Its functions, methods and objects go to workers and back, whatever its name is."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helpers.py").write_text(ELSEWHERE)
    (tmp_path / "helpers.py").write_text(ELSEWHERE.replace("x * 3", "0").replace("x + self.n", "0"))
    code = f"""{RECIPE}
m = load({name!r}, "elsewhere/helpers.py", {register})
model = m.Model()
print(*parallel_map(m.k, range(3)), *parallel_map(lambda x: m.k(x), range(3)))
print(*parallel_map(model.predict, range(3)), *parallel_map(lambda o: o.predict(1), [model]))
print(*Executor().map(m.k, range(3)), type(parallel_map(model.itself, [0])[0]) is m.Model)
print(*parallel_map(lambda x, f, o: f(x) + o.n, range(3), shared=dict(f=m.k, o=model)))
"""
    assert script(code).splitlines() == ["0 3 6 0 3 6", "1 2 3 2", "0 3 6 True", "1 4 7"]


@pytest.mark.parametrize("name", ["helpers", "plugins.first"])
def test_another_file_under_the_same_name_is_the_new_module(script, tmp_path, name):
    """So is the file itself after an edit."""
    code = f"""{RECIPE}
for n in 1, 2, 1, 3:
    path = f"file_{{n % 3}}.py"
    open(path, "w").write(f"def f(x): return {{n}}")
    print(*parallel_map(load({name!r}, path, True).f, [0]))
"""
    assert script(code).split() == ["1", "2", "1", "3"]
