"""Objects with arrays, and functions that say of them what may be written, and write, by force."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import random
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np


class Model:
    """An object that works with an array of its own, and has one of objects."""

    def __init__(self, n: int) -> None:
        self.buffer = np.zeros(n)
        self.parts = np.array([None, "a"], object)
        self.inner = {"counts": [np.zeros(n, "i4")]}

    def counted(self, k: int) -> float:
        """Add to each value in place, and return their sum before."""
        before = float(self.buffer.sum())
        self.buffer += k
        return before


@dataclasses.dataclass(slots=True)
class Record:
    """Has an array in a slot."""

    values: np.ndarray


class Noted(np.ndarray):
    """Pickles its note itself, as NumPy's documentation shows."""

    note = ""

    def __reduce__(self) -> Any:
        rebuild, args, state = super().__reduce__()
        return rebuild, args, (*state, self.note)

    def __setstate__(self, state: Any) -> None:
        self.note = state[-1]
        super().__setstate__(state[:-1])


class Rebuilt(np.ndarray):
    """Is pickled without a state."""

    def __reduce__(self) -> Any:
        return rebuilt, (self.tolist(),)


def rebuilt(values: list[float]) -> Rebuilt:
    return np.array(values).view(Rebuilt)


def arrays_in(obj: Any) -> list[np.ndarray]:
    """Return the arrays of a nested object, in its order."""
    if isinstance(obj, np.ndarray):
        return [obj, *arrays_in(obj.tolist())] if obj.dtype == object else [obj]
    if isinstance(obj, Model):
        obj = vars(obj)
    if isinstance(obj, Record):
        obj = [obj.values]
    if isinstance(obj, dict):
        obj = list(obj.values())
    return [x for part in obj for x in arrays_in(part)] if isinstance(obj, list | tuple) else []


def may_write(_: int, obj: Any) -> list[bool]:
    """Return which arrays of an object can be written."""
    return [array.flags.writeable for array in arrays_in(obj)]


def count(item: tuple[Model, int]) -> float:
    """Change the model of an item."""
    model, k = item
    return model.counted(k)


def count_shared(k: int, model: Model) -> float:
    """Change a model that all items have."""
    return model.counted(k)


def force(array: np.ndarray, value: int) -> None:
    """Write to the memory of an array as compiled code does that knows no flags."""
    home = getattr(np.lib, "array_utils", np)  # NumPy 1 has it elsewhere
    low, high = home.byte_bounds(array)
    ctypes.memset(low, value, high - low)


def force_strided(array: np.ndarray, value: int) -> None:
    """Write through stride tricks on its address."""

    class Address:
        __array_interface__: ClassVar = {
            **array.__array_interface__,
            "data": (array.ctypes.data, False),
        }

    np.lib.stride_tricks.as_strided(np.asarray(Address()), array.shape, array.strides)[...] = value


def force_blas(array: np.ndarray, value: int) -> None:
    """Scale it in place, as BLAS does without a look at flags."""
    from scipy.linalg import blas

    blas.dscal(float(value), array)


def force_lapack(array: np.ndarray, _: int) -> None:
    """Solve equations in its place."""
    from scipy.linalg import lapack

    lapack.dgetrf(array.reshape(1, -1).T, overwrite_a=True)


def force_fft(array: np.ndarray, _: int) -> None:
    """Transform it in its place."""
    from scipy.fft import rfft

    rfft(array, overwrite_x=True)


FORCES = [force, force_strided]


def force_somehow(key: int, item: Any) -> list[float]:
    """Return the sums of the arrays of an item, then overwrite them in a random way."""
    chance = random.Random(key)
    arrays = [array for array in arrays_in(item) if array.dtype != object and array.size]
    sums = [float(array.sum()) for array in arrays]
    ways = [
        *FORCES,
        *([force_blas, force_lapack, force_fft] if importlib.util.find_spec("scipy") else []),
    ]
    for array in arrays:
        way = chance.choice(ways if array.dtype == float and array.ndim == 1 else FORCES)
        way(array, chance.randrange(1, 100))
    return sums


def sum_and_force(item: Any) -> list[float]:
    """Return the sums of the arrays of an item, then overwrite them all."""
    arrays = [array for array in arrays_in(item) if array.dtype != object and array.size]
    sums = [float(array.astype(float).sum()) for array in arrays]
    for array in arrays:
        force(array, 0x40)
    return sums


def sum_and_force_shared(_: int, obj: Any) -> list[float]:
    """Do it to an object that all items have, in a worker that runs one item."""
    return sum_and_force(obj)


def sum_of(_: int, matrix: Any) -> float:
    """Return the sum of a sparse matrix, which sorts itself on the way."""
    return float((matrix.sqrt() if hasattr(matrix, "sqrt") else matrix).sum())


# Objects of libraries, each with functions that return a value of it, and that change it.


class Kind(NamedTuple):
    """The package that an object is from, and what to do with it."""

    package: str
    make: Callable[[int], Any]
    value: Callable[[Any], Any]
    change: Callable[[Any], Any]


def _module(n: int) -> Any:
    return importlib.import_module("torch").nn.Linear(n, 1)


def _matrix(n: int, form: str = "csr") -> Any:
    sparse = importlib.import_module("scipy.sparse")
    return sparse.coo_array((np.ones(n), (np.arange(n)[::-1], np.arange(n)))).asformat(form)


def _regressor(n: int) -> Any:
    linear = importlib.import_module("sklearn.linear_model")
    return linear.SGDRegressor(random_state=0).partial_fit(np.ones((2, n)), [1, 2])


def _change_objects(array: Any) -> None:
    array[0].append(7)
    array[1].counted(7)
    array[2] = 7


LIBRARIES = {
    "tensor": Kind(
        "torch",
        lambda n: importlib.import_module("torch").ones(n),
        lambda x: float(x.sum()),
        lambda x: x.add_(7),
    ),
    "module": Kind(
        "torch",
        _module,
        lambda x: float(x.weight.data.sum()),
        lambda x: x.weight.data.fill_(7),
    ),
    "csr": Kind("scipy", _matrix, lambda x: x.sum(), lambda x: x.data.fill(7)),
    "lil": Kind(
        "scipy",
        lambda n: _matrix(min(n, 100), "lil"),
        lambda x: x.sum(),
        lambda x: x.__setitem__((0, 0), 7),
    ),
    "density": Kind(
        "scipy",
        lambda n: importlib.import_module("scipy.stats").gaussian_kde(np.arange(1.0, n + 9)),
        lambda x: x.dataset.sum(),
        lambda x: x.dataset.fill(7),
    ),
    "regressor": Kind(
        "sklearn",
        _regressor,
        lambda x: x.coef_.sum(),
        lambda x: x.partial_fit(np.full((2, x.n_features_in_), 7), [7, 8]),
    ),
    "objects": Kind(
        "numpy",
        lambda n: np.array([[1.0], Model(n), None], object),
        lambda x: (len(x[0]), x[1].buffer.sum(), x[2]),
        _change_objects,
    ),
}


def change(kind: str, obj: Any) -> Any:
    """Return the value of an object, then change it."""
    before = LIBRARIES[kind].value(obj)
    LIBRARIES[kind].change(obj)
    assert LIBRARIES[kind].value(obj) != before
    return before
