"""With backend="serial" or "threads", this process must have imported the files as they are now."""

import importlib
import sys

import pytest

from nbshare import parallel_map
from nbshare._core.entries.mapping import map_async
from nbshare.errors import CheckpointError

CODE = """
import functools
from dataclasses import dataclass
from typing import overload

SCALE = 2.0
try:
    import numpy_of_next_year
    has_numpy = True
except ImportError:
    has_numpy = False
n = 1
n += 1
POINTS = [1.0]
calls = 0

def unrelated(x):
    return x

def helper(x, shift=1.0):
    return SCALE * x + shift

class Model:
    kind = "first"
    kind = "second"
    rate = 3.0
    @overload
    def apply(self, x, y=1.0): ...
    def apply(self, x):
        return self.rate * x
    @property
    def offset(self):
        return 4.0

@dataclass
class Point:
    x: float = 5.0

@functools.lru_cache
def cached(x):
    return 6.0 * x

def wrapped(x):
    return 7.0 * x
wrapped = functools.lru_cache(wrapped)

def f(x):
    global calls
    calls += 1
    POINTS.append(x)
    model = Model()
    made = model.apply(x) + model.offset + Point().x + n + has_numpy
    return helper(x) + made + cached(x) + wrapped(x)
"""
EDITS = {
    "function": ("SCALE * x + shift", "SCALE * x - shift"),
    "default": ("shift=1.0", "shift=1.5"),
    "constant": ("SCALE = 2.0", "SCALE = 2.5"),
    "class attribute": ("rate = 3.0", "rate = 3.5"),
    "method": ("self.rate * x", "self.rate + x"),
    "property": ("return 4.0", "return 4.5"),
    "field": ("x: float = 5.0", "x: float = 5.5"),
    "decorated": ("6.0 * x", "6.5 * x"),
    "wrapped by a later statement": ("7.0 * x", "7.5 * x"),
    "type of a number": ("6.0 * x", "6 * x"),
    "the function itself": ("helper(x) + made", "helper(x) - made"),
    "a value that is computed": ("n += 1", "n += 2"),
}


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """Import a module. Return it and a function that edits its file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "loaded_here.py"
    file.write_text(CODE)
    module = importlib.import_module("loaded_here")

    def edit(old, new):
        assert old in CODE
        file.write_text(CODE.replace(old, new, 1))
        importlib.invalidate_caches()

    yield module, edit
    del sys.modules["loaded_here"]


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_after_the_import_is_refused_where_items_run_here(edited, tmp_path, kind):
    """Nothing is stored. After another import of the module the new code runs."""
    module, edit = edited
    path = tmp_path / "run"
    edit(*EDITS[kind])
    with pytest.raises(CheckpointError, match=r"loaded_here\.py was edited"):
        parallel_map(module.f, [1.0], checkpoint=path, backend="serial", progress=False)
    assert not path.exists()
    importlib.reload(module)
    results = parallel_map(module.f, [1.0], checkpoint=path, backend="serial", progress=False)
    by_workers = parallel_map(module.f, [1.0], progress=False)
    assert results == by_workers


@pytest.mark.parametrize("what", ["function", "method", "shared object"])
def test_an_older_version_is_refused_where_items_run_here(edited, tmp_path, what):
    """It would run as it was, and its results count as those of the new one."""
    module, edit = edited
    old = {"function": module.helper, "method": module.Model().apply}.get(what, module.unrelated)
    options = {"shared": {"shift": module.Point()}} if what == "shared object" else {}
    edit("return x\n", "return x + 0.0\n")
    importlib.reload(module)
    func = (lambda x, shift: x) if options else old
    with pytest.raises(CheckpointError, match="older version"):
        parallel_map(func, [1.0], checkpoint=tmp_path / "run", backend="serial", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "edit_of",
    [("return x\n", "return 2 * x\n"), ("calls = 0", "calls = 0  # so far"), ("", "\n\n")],
)
def test_an_edit_that_changes_no_result_is_refused_until_it_is_imported(edited, tmp_path, edit_of):
    """Of an unrelated function, a comment, empty lines. Then the stored results hold."""
    module, edit = edited
    run = {"checkpoint": tmp_path / "run", "backend": "threads", "progress": False}
    before = map_async(module.f, [1.0], **run).result()
    edit(*edit_of)
    with pytest.raises(CheckpointError, match=r"importlib\.reload\(loaded_here\)"):
        map_async(module.f, [1.0], **run)
    importlib.reload(module)
    assert map_async(module.f, [1.0], **run).result() == before
    assert module.calls == 0


def test_what_was_changed_here_is_refused_where_items_run_here(edited, tmp_path):
    """The file has another value. One that the function does not use is no matter."""
    module, _ = edited
    run = {"checkpoint": tmp_path / "run", "backend": "serial", "progress": False}
    module.unrelated = abs
    parallel_map(module.f, [1.0], **run)
    module.SCALE = 2.5
    with pytest.raises(CheckpointError, match=r"SCALE is 2\.5 here, and 2\.0 in loaded_here\.py"):
        parallel_map(module.f, [1.0, 2.0], **run)


def test_an_object_that_raises_when_it_is_looked_at_is_no_change(edited, tmp_path):
    """As proxies do whose object is not there yet."""

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("working outside of a context")

    module, _ = edited
    module.unrelated = Proxy()
    run = {"checkpoint": tmp_path / "run", "backend": "serial", "progress": False}
    assert len(parallel_map(module.f, [1.0], **run)) == 1


def test_code_may_change_its_own_values(edited, tmp_path):
    """Such as a counter and a list. The second call is like the first."""
    module, _ = edited
    for n in (1, 2):
        items = range(n)
        parallel_map(module.f, items, checkpoint=tmp_path / "run", backend="serial", progress=False)
    assert module.calls == 2
