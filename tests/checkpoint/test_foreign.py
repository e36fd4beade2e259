"""Objects of other packages have the same key in each process, and another one when they differ."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

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
    return [Model, Model(a=3)]
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
names = {"__name__": "__main__"}
exec(sys.argv[1], names)
found = {}
for x in "ab":
    code = CodeDigests(None)
    for _ in range(2):  # the second time with what the first has left
        found[x] = code.digests.of(names["make"](x), "value").hex(), sorted(code.parts.items())
        code = CodeDigests(None)
print(json.dumps(found))
"""


@pytest.mark.parametrize("package", VALUES)
def test_objects_have_the_same_key_in_each_process(package):
    """Whatever its hashes and addresses are. Another value has another key."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, VALUES[package]],
                env={"PYTHONHASHSEED": str(seed)},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for seed in (1, 2)
    ]
    assert found[0] == found[1]
    assert found[0]["a"] != found[0]["b"]
