"""Annotations may name what exists for type checkers only, or what only a notebook defines."""

from __future__ import annotations

import sys

import pytest

from tests.checkpoint.test_key import cell, parts_of

SETUP = """
import functools, typing
from dataclasses import dataclass, fields
from typing import *
import nbshare
from nbshare import Executor, grid, map_async, parallel_map, pipeline
import lazily
"""

# Annotations of this file can be evaluated on no Python, and from 3.14 on nobody has to.
LAZILY = """
def f(x: Frame, k: pd.Series = 1) -> pd.DataFrame: return x + k
def draw(x: Frame, rng: np.random.Generator): return x
def wrong(x: "Frame" | None, y: 1 / 0 = 2): return x + 1
def add(a: Frame, b: Frame) -> Frame: return a + b
def load(n: Frame): return None
def blocks() -> Frame: yield np.array([0.5, 1, 1.5])
def double(block: Frame) -> Frame: return 2 * block
class Model:
    scale: Frame = 2
    def predict(self, x: Frame) -> list[Frame]: return self.scale * x
import numpy as np
"""

LAZY_CALLS = {
    "processes": "parallel_map(lazily.f, range(3))",
    "threads": "parallel_map(lazily.f, range(3), backend='threads')",
    "serial": "parallel_map(lazily.f, range(3), backend='serial')",
    "shared=": "parallel_map(lazily.f, range(3), shared={'k': 1})",
    "map_async": "map_async(lazily.f, range(3)).result()",
    "grid": "parallel_map(lazily.f, grid(x=[0, 1, 2]))",
    "seed=": "parallel_map(lazily.draw, [1, 2, 3], seed=1)",
    "initializer=": "parallel_map(lazily.f, range(3), initializer=lazily.load, initargs=(3,))",
    "reduce=": "[parallel_map(lazily.f, range(3), reduce=lazily.add) - 5, 2, 3]",
    "checkpoint=": "parallel_map(lazily.f, range(3), checkpoint='lazy.ckpt')",
    "no evaluation at all": "parallel_map(lazily.wrong, range(3), checkpoint='wrong.ckpt')",
    "a partial": "parallel_map(functools.partial(lazily.f, k=1), range(3))",
    "a method": "parallel_map(lazily.Model().predict, [0.5, 1, 1.5])",
    "an executor": "list(Executor(1).map(lazily.f, range(3)))",
    "a pipeline": "pipeline(lazily.blocks, lazily.double, shape=3).results[0]",
}

# Of a script, on each of which workers get another object of the same meaning.
BY_VALUE = """
UserId, P, Ts = NewType("UserId", int), ParamSpec("P"), TypeVarTuple("Ts")
class A:
    def m(self, x): return x
A.Id = NewType("Id", A)
def decorated(f: Callable[P, int]) -> Callable[P, int]:
    @functools.wraps(f)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> int: return f(*args, **kwargs)
    return wrapper
@decorated
def new(x: UserId) -> UserId: return UserId(x + 1)
def hints(x: UserId): return typing.get_type_hints(hints)["x"].__supertype__.__name__
def several(x: tuple[Unpack[Ts]]) -> None: return x
class Named(NamedTuple):
    a: UserId
    b: int = 2
class Typed(TypedDict):
    a: UserId
@dataclass
class Data:
    a: UserId
    others: List["Data"] = ()
@functools.singledispatch
def chosen(x): return "other"
@chosen.register
def _(x: int): return "int"
@chosen.register
def _(x: list): return [chosen(y) for y in x]
cases = [
    (new, 1, 2), (hints, 1, "int"), (several, 1, 1), (Named, 3, (3, 2)),
    (lambda x: [f.name for f in fields(x)], Data(1), ["a", "others"]),
    (lambda x: x["a"], Typed(a=1), 1), (chosen, [1, "a"], ["int", "other"]),
    (A().m, 1, 1), (lambda x: x.__supertype__.__name__, A.Id, "A"),
]
"""
OF_3_12 = """
type Json = dict[str, Json] | list[Json] | str
type Number = int | float
type Pair[T] = tuple[T, T]
type Unknown = list[Frame]
def typed(x: Json, y: Pair[int] = None, z: Unknown = None) -> Number:
    return isinstance(x, Number.__value__)
def generic[T: (int, str), *R, **Q](x: T, *r: *R) -> Number: return x
class Generic_[T]:
    def m(self, x: T) -> T: return x
cases += [
    (typed, 1, True), (typed, "a", False), (generic, 1, 1), (Generic_().m, 1, 1),
    (lambda x: x.__value__.__args__[0].__args__[1] is x, Json, True),
    (lambda x: x.__type_params__ == x.__value__.__args__[:1], Pair, True),
]
"""
OF_3_14 = """
def lazy(x: Frame, y: list[Frame] = None, z: UserId = 1): return list(lazy.__annotations__)
class Lazy:
    a: Frame
    def m(self, x: Frame): return list(Lazy.__annotations__)
@dataclass
class Node:
    x: int
    child: Node = None
    other: Frame = None
def wrong(x: "Frame" | None, y: 1 / 0 = 2): return x
class Wrong:
    a: {}["missing"]
    def m(self, x: f"{Frame}"): return x
cases += [
    (wrong, 1, 1), (functools.partial(wrong, y=1), 1, 1), (Wrong().m, 1, 1),
    (lazy, 1, ["x", "y", "z"]), (Lazy().m, 1, ["a"]),
    (lambda n: Node(n.x, n).child.x, Node(1), 1),
    (lambda n: Node.__annotations__["child"] is Node, Node(1), True),
]
"""
RUN = """
def call(case): return case[0](case[1])
found = parallel_map(call, cases, max_workers=1, progress=False, out="list")
assert found == [case[2] for case in cases], found
path = 'kept.ckpt'
for _ in range(2):
    job = map_async(call, cases, checkpoint=path, max_workers=1, progress=False, out="list")
    assert job.result() == found
assert job._run.n_restored == len(cases), job._run.n_restored
print("right")
"""

since = sys.version_info
LAZY = pytest.mark.skipif(since < (3, 14), reason="annotations are evaluated before")


@LAZY
def test_annotations_that_nobody_can_evaluate_are_no_matter(run_script, tmp_path):
    """With every way to call a function."""
    (tmp_path / "lazily.py").write_text(LAZILY)
    calls = "\n".join(
        f"print({name!r}, list({call}) == [1, 2, 3])" for name, call in LAZY_CALLS.items()
    )
    shown = run_script(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SETUP}{calls}").stdout
    assert shown.splitlines() == [f"{name} True" for name in LAZY_CALLS]


@LAZY
def test_a_default_that_cannot_be_sent_is_named_next_to_such_annotations(run_script):
    """The search for it evaluates none."""
    code = """import threading
def hold(x: Frame, *, lock=threading.Lock()): return x
try: parallel_map(hold, [1])
except nbshare.errors.UnsendableError as e: print(e)"""
    shown = run_script(SETUP.replace("import lazily", "") + code).stdout
    assert "its variable 'lock' cannot be pickled" in shown


@LAZY
def test_a_message_shows_annotations_as_they_are_written(run_script, tmp_path):
    """Though they cannot be evaluated."""
    (tmp_path / "lazily.py").write_text(LAZILY)
    code = "try: parallel_map(lazily.f, [1], shared={'z': 2})\nexcept TypeError as e: print(e)"
    shown = run_script(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SETUP}{code}").stdout
    assert "f(x: Frame, k: pd.Series = 1) -> pd.DataFrame cannot be called as f(item, z=" in shown


def test_what_annotations_are_made_of_is_sent_by_value(run_script):
    """NewType, type aliases, parameters and references of a script, which its key knows again."""
    code = SETUP.replace("import lazily\n", "") + BY_VALUE
    code += OF_3_12 * (since >= (3, 12)) + OF_3_14 * (since >= (3, 14)) + RUN
    assert run_script(code).stdout == "right\n"


@pytest.mark.skipif(since < (3, 12), reason="there is no such statement")
def test_an_alias_that_cannot_be_sent_is_named(run_script):
    """One with parameters that names itself."""
    code = """
from nbshare import parallel_map
type Tree[T] = list[Tree[T]] | T
def f(x: Tree[int]): return x
try: parallel_map(f, [1])
except Exception as error: print(error)
"""
    assert "the type alias Tree has parameters and names itself" in run_script(code).stdout


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("from typing import NewType\nN = NewType('N', int)\ndef f(x): return N", ("int", "str")),
        pytest.param(
            "type A = int | float\ndef f(x): return isinstance(x, A.__value__)",
            ("float", "str"),
            marks=pytest.mark.skipif(since < (3, 12), reason="there is no such statement"),
        ),
    ],
)
def test_an_edit_of_what_a_name_stands_for_is_seen(source, edit):
    """A function may use an alias, or what it stands for."""
    assert parts_of(cell(source)) != parts_of(cell(source.replace(*edit)))
