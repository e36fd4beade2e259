"""The variables that functions of a notebook or script share, in a worker as at home."""

from __future__ import annotations

import pytest

from nbshare import parallel_map
from nbshare.errors import UnsendableError

SETUP = """
from functools import partial
from nbshare import Executor, map_async, parallel_map
xs = range(6)
model, settings, n = None, {}, 5
class Config:
    scale = 1
    def value(self, x): return self.scale * x
class Model:
    def predict(self, x): return model * x
    def load(self, v): global model; model = v
    __call__ = load
def load(v):
    global model
    model = v
def load_all(v):
    settings["v"] = v
    Config.scale = v
    scaled.by = v
    load(v)
def load_here(v): globals()["model"] = v
def load_new(v):
    global new
    new = v
def predict(x): return model * x
def scaled(x): return scaled.by * x
def count(x):
    global n
    n += 1
    return n
given = dict(initializer=load, initargs=(10,), max_workers=2)
"""
TENS = [0, 10, 20, 30, 40, 50]


@pytest.fixture
def script(run_script):
    """Run a script that must end well, and has no warning. Return what it printed."""
    strict = "import warnings\nwarnings.simplefilter('error')\n"
    return lambda code: run_script(strict + code).stdout


CALLS = {
    "a function": "parallel_map(predict, xs, **given)",
    "a lambda": "parallel_map(lambda x: model * x, xs, **given)",
    "map_async": "map_async(predict, xs, **given).result()",
    "the serial backend": "parallel_map(predict, xs, **{**given, 'backend': 'serial'})",
    "threads": "parallel_map(predict, xs, **{**given, 'backend': 'threads'})",
    "tiny items": "parallel_map(predict, range(5000), **given)[:6]",
    "a generator": "parallel_map(predict, (x for x in xs), **given)",
    "tasks": "Executor(2, None, load, (10,)).map(predict, xs)",
    "chunks of tasks": "Executor(2, None, load, (10,)).map(predict, xs, chunksize=2)",
    "one task": "[Executor(1, None, load, (10,)).submit(predict, x).result() for x in xs]",
    "a method": "parallel_map(Model().predict, xs, **given)",
    "a partial initializer": "parallel_map(predict, xs, initializer=partial(load, 10))",
    "a method as initializer": (
        "parallel_map(predict, xs, initializer=Model().load, initargs=(10,))"
    ),
    "an object as initializer": "parallel_map(predict, xs, initializer=Model(), initargs=(10,))",
    "names set by globals()": "parallel_map(predict, xs, initializer=load_here, initargs=(10,))",
    "a name that only workers have": (
        "parallel_map(lambda x: new * x, xs, initializer=load_new, initargs=(10,))"
    ),
    "an initializer that calls another": (
        "parallel_map(predict, xs, initializer=load_all, initargs=(10,))"
    ),
    "a dict that is filled": (
        "parallel_map(lambda x: settings['v'] * x, xs, initializer=load_all, initargs=(10,))"
    ),
    "an attribute of a class": (
        "parallel_map(lambda c, x: c.value(x), [Config()] * 6, xs, initializer=load_all,"
        " initargs=(10,))"
    ),
    "an attribute of a function": (
        "parallel_map(scaled, xs, initializer=load_all, initargs=(10,))"
    ),
    "a shared function": "parallel_map(lambda x, f: f(x), xs, shared={'f': predict}, **given)",
    "a shared object": (
        "parallel_map(lambda x, m: m.predict(x), xs, shared={'m': Model()}, **given)"
    ),
    "functions as items": "parallel_map(lambda f, x: f(x), [predict] * 6, xs, **given)",
    "objects as items": (
        "parallel_map(lambda m, x: m.predict(x), [Model() for _ in xs], xs, **given)"
    ),
    "functions of a generator": (
        "parallel_map(lambda f, x: f(x), (predict for _ in xs), xs, **given)"
    ),
    "another value here": "(load(3), parallel_map(predict, xs, **given))[1]",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_functions_see_what_the_initializer_has_set(script, call):
    """In the script that defines both, in the first run, and in those that keep the workers."""
    said = script(f"{SETUP}\nfor _ in range(3): print([int(y) for y in {call}])")
    assert said.splitlines() == [str(TENS)] * 3


def test_an_initializer_that_is_kept_keeps_its_variables_and_no_others(script):
    """A later run sees what it has set, its own values of other names, and not those of a run."""
    calls = """
k = 1
def first(x): return (model, k, n)
print(parallel_map(first, [0], **given))
k = 2
print(parallel_map(first, [0], **given))
print(parallel_map(count, xs, **{**given, "max_workers": 1}).tolist())
print(parallel_map(first, [0], **given))
print(parallel_map(first, [0]))
del k
try: parallel_map(first, [0], **given)
except NameError as error: print(error)
"""
    assert script(SETUP + calls).splitlines() == [
        "[(10, 1, 5)]",
        "[(10, 2, 5)]",
        "[6, 7, 8, 9, 10, 11]",
        "[(10, 2, 5)]",
        "[(None, 2, 5)]",
        "name 'k' is not defined",
    ]


def test_a_changed_value_that_the_initializer_uses_runs_it_again(script):
    """Its objects from the former one are not kept."""
    calls = """
base = 1
def prepare():
    global model
    model = base * 10
print(parallel_map(predict, [1], initializer=prepare))
base = 2
print(parallel_map(predict, [1], initializer=prepare))
"""
    assert script(SETUP + calls).splitlines() == ["[10]", "[20]"]


def test_functions_that_go_by_value_share_what_they_set(script):
    """Without an initializer too, function, shared objects and items of a run, in one worker."""
    calls = """
def run(x, shared, item):
    global model
    model = (model or 0) + 1
    return shared(1), item.predict(1)
items = [Model() for _ in xs]
given = {"shared": predict}
print(parallel_map(lambda x, m, shared: run(x, shared, m), xs, items, shared=given, max_workers=1))
"""
    assert script(SETUP + calls) == f"{[(i, i) for i in range(1, 7)]}\n"


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_a_class_of_the_script_stays_as_it_is(script, backend):
    """Its objects come back as of that class, and its methods have the script's variables."""
    calls = f"""
before = Model.predict
(back,) = parallel_map(lambda m: m, [Model()], backend={backend!r})
assert type(back) is Model and Model.predict is before
Model.predict = lambda self, x: model + x
model = 5
print(back.predict(1), Model().predict(1))
(back,) = parallel_map(lambda m: m, [Model()], backend={backend!r})
model = 6
print(back.predict(1), *parallel_map(lambda m: m.predict(2), [Model()], backend={backend!r}))
"""
    assert script(SETUP + calls).splitlines() == ["6 6", "7 8"]


def test_functions_that_run_in_this_process_have_its_variables(script):
    """Also those among the items. Their variables are set here, and builtins stay as they are."""
    calls = """
def counted(x): count(x); return n
before = __builtins__
print(parallel_map(lambda f, x: f(x), [counted, lambda x: n] * 2, range(4), backend="serial"), n)
assert __builtins__ is before
"""
    assert script(SETUP + calls) == "[6 6 7 7] 7\n"


def test_later_tasks_see_later_values(script):
    """An executor sends the variables of a task as they are when the task begins."""
    calls = """
with Executor(1) as executor:
    for k in range(4):
        print(executor.submit(lambda: k).result(), end=" ")
"""
    assert script(SETUP + calls) == "0 1 2 3 "


BESIDE = """
big = None
def load(v):
    global big
    big = v
class Loader:
    def load(self, v): load(v)
def run(initializer):
    from nbshare import parallel_map
    return parallel_map(lambda x: big * x, range(3), initializer=initializer, initargs=(10,))
"""


@pytest.mark.parametrize("initializer", ["load", "Loader().load"])
def test_a_local_function_of_a_file_sees_what_its_initializer_has_set(
    script, tmp_path, initializer
):
    """Though one goes by value and the other by name."""
    (tmp_path / "beside.py").write_text(BESIDE)
    code = f"import beside\nfor _ in range(2): print(*beside.run(beside.{initializer}))"
    assert script(code).splitlines() == ["0 10 20"] * 2


def test_an_initializer_that_assigns_a_variable_of_the_function_around_it_is_refused():
    """Workers have a copy of that variable for each function, and nothing would see the value."""
    model = None

    def load():
        nonlocal model
        model = 10

    with pytest.raises(UnsendableError, match=r"initializer load assigns 'model'.*global"):
        parallel_map(lambda x: model * x, range(3), initializer=load)
