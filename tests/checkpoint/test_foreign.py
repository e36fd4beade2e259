"""Objects of other packages have the same key in each process, and another one when they differ."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

VALUES = {
    "sklearn": """
from sklearn.feature_extraction.text import TfidfVectorizer
texts = ["a bc cd", "the bc dd"]
def make(x): return TfidfVectorizer(stop_words=["the", x]).fit(texts)
""",
    "torch": """
import torch
def make(x):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    model.register_forward_hook(torch.nn.Identity.forward)
    tensor = torch.arange(6.0).reshape(2, 3)
    tensor[1, 1] = ord(x)
    tensors = [tensor, tensor.T, tensor[:, 1], tensor.bool(), tensor.to(torch.bfloat16)]
    tensors += [tensor.to_sparse(), torch.tensor(1j * ord(x)).conj(), torch.empty(0)]
    return [model, *tensors, torch.utils.data.TensorDataset(tensor), tensor.untyped_storage()]
""",
    "pydantic": """
import pydantic
def make(x):
    class Model(pydantic.BaseModel):
        a: int
        b: list[str] = [x]
        c: str = pydantic.Field(default=x, max_length=3)
        @pydantic.field_validator("a")
        @classmethod
        def check(cls, value): return value
        @pydantic.computed_field
        @property
        def d(self) -> str: return self.c
    return [Model, Model(a=3)]
""",
    "attrs": """
import attrs
def make(x):
    @attrs.frozen
    class Frozen:
        a: int
        b: str = x
    return [Frozen(1), {Frozen(k) for k in range(5)}]
""",
    "uncertainties": """
from uncertainties import ufloat
def make(x): return [ufloat(2, 0.1, x), 2 * ufloat(1, 0.1) + ufloat(ord(x), 0.2)]
""",
    "pyomo": """
import pyomo.environ as pyo
def make(x):
    m = pyo.ConcreteModel()
    m.x, m.p = pyo.Var([x, "c"], bounds=(0, 1)), pyo.Param(initialize=1.0, mutable=True)
    m.o = pyo.Objective(expr=m.p * m.x[x])
    m.dual = pyo.Suffix()
    m.dual[m.o] = 2.0
    return m
""",
    "loguru": """
from loguru import logger
def make(x):
    def f(y): return logger.info(x)
    return f
""",
    "sqlalchemy": """
import sqlalchemy as sa
def make(x):
    t = sa.Table("t", sa.MetaData(), sa.Column("x", sa.Integer), sa.Column(x, sa.String))
    return [t, sa.select(t.c.x).where(t.c.x > 3)]
""",
    "networkx": """
import networkx
def make(x): return networkx.Graph([(x, "y"), ("y", "z")])
""",
    "polars": """
import polars
def make(x): return [polars.DataFrame({"a": [x, "c"]}), polars.col(x).sum() * 2]
""",
    "xarray": """
import xarray
def make(x): return xarray.Dataset({"t": ("x", [1.5, 2.5])}, attrs={"a": x})
""",
    "astropy": """
import astropy.units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table
def make(x): return [SkyCoord(ord(x) * u.deg, 3 * u.deg), Table({"a": [x]}), 3 * u.m / u.s]
""",
}
PROGRAM = """
import json, sys
from nbshare._core.checkpoint.code import CodeDigests
found = {}
for package, source in json.load(sys.stdin).items():
    names, found[package] = {"__name__": "__main__"}, {}
    exec(source, names)
    for x in "ab":
        code = CodeDigests(None)
        for _ in range(2):  # the second time with what the first has left
            digest = code.digests.of(names["make"](x), "value").hex()
            found[package][x] = digest, sorted(code.parts.items())
            code = CodeDigests(None)
print(json.dumps(found))
"""


def keys(values, seed):
    """Return the keys of values in a new process, by package."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONHASHSEED": str(seed)},
        input=json.dumps(values),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_objects_have_the_same_key_in_each_process():
    """Whatever its hashes, addresses and earlier imports are. Another value has another key."""
    installed = [(name, VALUES[name]) for name in VALUES if importlib.util.find_spec(name)]
    found = keys(dict(installed), seed=1)
    assert keys(dict(reversed(installed)), seed=2) == found
    assert not [name for name, of in found.items() if of["a"] == of["b"]]
