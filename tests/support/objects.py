"""Objects with buffers, and the places of these, for this process and for workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np

import nbshare

ROWS = 20_000


class Labelled(np.ndarray):
    """An array class of a user, with an attribute."""

    def __array_finalize__(self, other: Any) -> None:
        self.label = getattr(other, "label", "")


def labelled() -> Labelled:
    array = _values().view(Labelled)
    array.label = "ozone"
    return array


def small_labelled(i: int | str) -> dict[str, Labelled]:
    array = np.ones(1).view(Labelled)
    array.label = str(i)
    return {"array": array}


def told(item: dict[str, Labelled], other: Labelled, view: memoryview) -> list[Any]:
    """Return the labels of arrays, and the contents of a memoryview."""
    return [item["array"].label, other.label, view.tolist()]


@dataclasses.dataclass
class Station:
    """A record of arrays and other things."""

    name: str
    ozone: np.ndarray
    times: np.ndarray

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Station)
            and self.name == other.name
            and np.array_equal(self.ozone, other.ozone)
            and np.array_equal(self.times, other.times)
        )


def _values() -> np.ndarray:
    return np.random.default_rng(7).random((ROWS, 3))


def frame() -> Any:
    import pandas as pd

    _imported("pyarrow")  # which has the texts
    values = _values()
    return pd.DataFrame(
        {
            "number": values[:, 0],
            "count": np.arange(ROWS),
            "kind": pd.Categorical(np.where(values[:, 1] > 0.5, "above", "below")),
            "time": pd.date_range("2026-01-01", periods=ROWS, freq="s"),
            "text": [f"row {i}" for i in range(ROWS)],
        }
    )


def table() -> Any:
    pa = _imported("pyarrow")
    return pa.table({"number": _values()[:, 0], "text": [f"row {i}" for i in range(ROWS)]})


def sparse() -> Any:
    from scipy.sparse import random_array

    return random_array((500, 400), density=0.1, format="csr", rng=np.random.default_rng(3))


def forest() -> Any:
    values = _values()[:200]
    return (
        _imported("sklearn.ensemble")
        .RandomForestRegressor(5, random_state=0)
        .fit(values, values.sum(axis=1))
    )


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        import pytest  # which workers do not need

        return pytest.skip(f"{name} is not installed")


def polars_frame() -> Any:
    return _imported("polars").DataFrame(
        {"number": _values()[:, 0], "text": [f"row {i:09}" for i in range(ROWS)]}
    )


def tensor() -> Any:
    """Return a transposed tensor of a type that NumPy lacks."""
    return _imported("torch").from_numpy(_values()).bfloat16().T


def network() -> Any:
    torch = _imported("torch")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.nn.Linear(100, 100)


def quantity() -> Any:
    return _imported("astropy.units").Quantity(_values(), "km")


def column() -> Any:
    astropy = _imported("astropy.table")
    return astropy.Column(_values()[:, 0], name="height", unit="km", meta={"band": "V"})


def astropy_table() -> Any:
    """Return a table with a column of numbers and one of quantities."""
    astropy = _imported("astropy.table")
    return astropy.QTable({"a": _values()[:, 0], "q": quantity()}, meta={"band": "V"})


# Objects of packages whose memory the tests below do not look up. A test of the table has it.
OTHERS: dict[str, Callable[[], Any]] = {
    "polars DataFrame": polars_frame,
    "polars Series": lambda: polars_frame()["text"],
    "memoryview": lambda: memoryview(_values()),
    "torch tensor": tensor,
    "torch module": network,
    "astropy Quantity": quantity,
    "astropy Column": column,
    "astropy QTable": astropy_table,
}

OBJECTS: dict[str, Callable[[], Any]] = {
    "pandas DataFrame": frame,
    "Arrow table": table,
    "SciPy sparse array": sparse,
    "dict of arrays": lambda: {"a": _values(), "b": {"c": np.arange(ROWS, dtype=">i2")}},
    "dataclass": lambda: Station("Bern", _values()[::-2, 1], np.arange(ROWS).astype("M8[s]")),
    "masked array": lambda: np.ma.masked_array(
        _values(), _values() > 0.5, fill_value=-1, hard_mask=True
    ),
    "masked array without a mask": lambda: np.ma.masked_array(_values()),
    "masked records": lambda: np.ma.masked_array(
        np.ones(ROWS, [("a", "i4"), ("b", "f8")]), [(True, False)] * ROWS
    ),
    "record array": lambda: np.rec.fromarrays(_values().T, names="x, y, z"),
    "array class with an attribute": labelled,
    "scikit-learn forest": forest,
}


def equal(a: Any, b: Any) -> bool:
    """Whether two of these objects say the same, in type, values and masks."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, np.ma.MaskedArray):
        same = np.array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b))
        facts = [(x.dtype, str(x.fill_value), x.hardmask, x.mask is np.ma.nomask) for x in (a, b)]
        return same and facts[0] == facts[1] and np.array_equal(a.data, b.data)
    if isinstance(a, np.ndarray):
        same = vars(a) == vars(b) if isinstance(a, Labelled) else True
        facts = [[getattr(x, name, "") for name in ("unit", "name", "meta")] for x in (a, b)]
        same = same and facts[0] == facts[1]
        return same and a.dtype == b.dtype and np.array_equal(a, b)
    if hasattr(a, "state_dict"):
        return equal(a.state_dict(), b.state_dict())
    if hasattr(a, "untyped_storage"):
        return a.dtype == b.dtype and a.stride() == b.stride() and bool((a == b).all())
    if hasattr(a, "colnames"):
        same = a.meta == b.meta and a.colnames == b.colnames
        return same and all(equal(a[name], b[name]) for name in a.colnames)
    if hasattr(a, "equals"):
        return bool(a.equals(b))
    if hasattr(a, "nnz"):
        return (a != b).nnz == 0
    if hasattr(a, "predict"):
        return bool((a.predict(_values()) == b.predict(_values())).all())
    return bool(a == b)


def addresses(obj: Any) -> Iterator[int]:
    """Yield the addresses of an object's large buffers. None of a forest, whose class copies."""
    if isinstance(obj, dict):
        for value in obj.values():
            yield from addresses(value)
    elif isinstance(obj, np.ndarray):
        yield obj.__array_interface__["data"][0]
        if isinstance(obj, np.ma.MaskedArray) and obj.mask is not np.ma.nomask:
            yield obj.mask.__array_interface__["data"][0]
    elif isinstance(obj, Station):
        yield from addresses({"ozone": obj.ozone, "times": obj.times})
    elif hasattr(obj, "indptr"):
        yield from addresses({"data": obj.data, "indices": obj.indices})
    elif hasattr(obj, "itercolumns"):
        for column in obj.itercolumns():
            for chunk in column.chunks:
                yield from (b.address for b in chunk.buffers() if b is not None)
    elif hasattr(obj, "to_numpy"):
        for name in ("number", "count"):
            yield from addresses(obj[name].to_numpy())
        yield from addresses(obj["kind"].array._ndarray)
        yield from addresses(obj["time"].array._ndarray)


def is_shared(obj: Any) -> bool:
    """Whether all of an object's large buffers are in memory that other processes map too."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file if "nbshare-" in line]
    spans = [[int(x, 16) for x in line[0].split("-")] for line in lines]
    return all(any(a <= place < b for a, b in spans) for place in addresses(obj))


def check(wrapped: nbshare.SharedObject, name: str) -> tuple[bool, bool]:
    """Return whether what a wrapped object holds is equal to the original, and shared."""
    return equal(wrapped.get(), OBJECTS[name]()), is_shared(wrapped.get())


def check_item(name: str, obj: Any) -> tuple[bool, bool]:
    """Return the same of an object given in ``shared=``."""
    return equal(obj, OBJECTS[name]()), is_shared(obj)


def is_other(name: str, obj: Any) -> bool:
    """Return whether an object given in ``shared=`` is equal to the original, one of `OTHERS`."""
    return equal(obj, OTHERS[name]())


def is_known(name: str, obj: Any) -> bool:
    """Return whether an object given in ``shared=`` is equal to the original, of either table."""
    return equal(obj, (OBJECTS | OTHERS)[name]())


def odd_arrays(_: int) -> list[np.ndarray]:
    """Return arrays that NumPy does not take out of a pickle."""
    return [_values()[::2], np.arange(ROWS).astype("M8[s]")]


def write(wrapped: nbshare.SharedObject) -> float:
    """Change the first value of a wrapped dict of arrays."""
    values = wrapped.get()["a"]
    values[0] = -5
    return float(values[0])


def give_back(wrapped: nbshare.SharedObject) -> nbshare.SharedObject:
    return wrapped


def is_same_twice(wrapped: nbshare.SharedObject) -> bool:
    return wrapped.get() is wrapped.get()


def make(_: int) -> nbshare.SharedObject:
    """Return a wrapped object of which this process keeps nothing."""
    return nbshare.share({"a": np.arange(1000.0)}, wrap=True)


# ------------------------------------------------------------ objects that cannot be loaded


def _refuse(*_: Any) -> Any:
    raise LookupError("cannot be loaded")


class _Parted:
    """Has parts of other classes in its pickle, before and after it."""

    def __init__(self) -> None:
        self.parts = [Fraction(1, 2), Decimal(3)]


class _BrokenNew(_Parted):
    def __new__(cls, *parts: Any) -> _BrokenNew:
        return _refuse() if parts else super().__new__(cls)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float, self.parts


class _BrokenInit(_Parted):
    def __init__(self, *parts: Any) -> None:
        super().__init__()
        if parts:
            _refuse()

    def __reduce__(self) -> Any:
        return type(self), (complex, self.parts)


class _BrokenState(_Parted):
    __setstate__ = _refuse


class _BrokenCall(_Parted):
    def __reduce__(self) -> Any:
        return _refuse, (type(self), self.parts, float)


class _BrokenMethod(_Parted):
    @classmethod
    def of(cls, *parts: Any) -> _BrokenMethod:
        return _refuse(parts)

    def __reduce__(self) -> Any:
        return self.of, (float, self.parts)


class _BrokenByOthers(_Parted):
    def __reduce__(self) -> Any:
        return _refuse, (float, self.parts)


# Objects that cannot be loaded, and how the notes on their errors begin.
BROKEN = {
    each: f"raised while an instance of {__name__}.{each.__name__} was unpickled"
    for each in (_BrokenNew, _BrokenInit, _BrokenState, _BrokenCall, _BrokenMethod)
} | {_BrokenByOthers: f"raised by {__name__}._refuse, which was called to unpickle an object"}


class ForgetfulError(Exception):
    """Leaves its notes out of its pickle."""

    def __reduce__(self) -> Any:
        return type(self), self.args


def raises_noted(_: Any) -> None:
    error = ForgetfulError("text")
    error.add_note("a note of the function")
    raise error
