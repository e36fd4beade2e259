"""A grid: all combinations of the values of several parameters, as the items of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shaped import Adapted, ShapedItems, is_single, users_function, with_gaps
from nbshare.arrays.shared_array import SharedArray
from nbshare.functions.reference import bind_arguments

MOST_STORED = 10_000  # values of parameters: with a checkpoint they are read again and again


def grid(**axes: Iterable[Any]) -> Grid:
    """Return all combinations of the values of some parameters, as items of a run.

    Parameters
    ----------
    **axes : iterable
        The values of each parameter, by its name; the last one varies fastest.

    Returns
    -------
    Grid
        A sequence of dicts, made when they are needed: a grid of 10⁸ items takes no memory.

    Raises
    ------
    TypeError
        There is no parameter; or one has no values to go through, such as a number or a str.

    See Also
    --------
    parallel_map : calls ``func(**item)`` for each item of a grid.

    Examples
    --------
    A function of two parameters; its results have the shape of the grid:

    >>> import nbshare
    >>> def period(length, gravity):
    ...     return 2 * 3.14159 * (length / gravity) ** 0.5
    >>> lengths, planets = [0.5, 1.0, 2.0], [9.81, 3.72]
    >>> periods = nbshare.parallel_map(period, nbshare.grid(length=lengths, gravity=planets))
    >>> periods.shape
    (3, 2)
    >>> periods.coords
    {'length': array([0.5, 1. , 2. ]), 'gravity': array([9.81, 3.72])}

    The same with a loop:

    >>> [round(period(**item), 2) for item in nbshare.grid(length=[1.0, 2.0], gravity=[9.81])]
    [2.01, 2.84]
    """
    return Grid(axes)


class Grid(ShapedItems):
    """All combinations of the values of some parameters; `nbshare.grid` makes one.

    Parameters
    ----------
    axes : mapping
        The values of each parameter, by its name.

    Attributes
    ----------
    coords : dict
        The values of each parameter, by its name: arrays of one dimension.
    shape : tuple of int
        The number of values of each parameter.

    Examples
    --------
    Items by their indices:

    >>> import nbshare
    >>> items = nbshare.grid(current=[1, 2], radius=range(3))
    >>> len(items), items.shape, items[4]
    (6, (2, 3), {'current': 2, 'radius': 1})

    The values of a parameter:

    >>> items.coords["radius"]
    array([0, 1, 2])

    Notes
    -----
    It does not change, so any thread may use it.
    """

    __module__ = "nbshare.types"

    def __init__(self, axes: Mapping[str, Iterable[Any]]) -> None:
        if not axes:
            raise TypeError("grid() needs a parameter or more: grid(current=[1, 2], radius=[3, 4])")
        self._values = {name: _values_of(name, given) for name, given in axes.items()}
        # Of a Series or an Index: its elements may be objects, such as time stamps.
        self._coords = {
            name: np.array(given)
            for name, given in axes.items()
            if hasattr(given, "__array__") and isinstance(self._values[name], list)
        }
        try:
            self.shape = tuple(map(len, self._values.values()))
            len(self)
        except OverflowError:
            raise ValueError(f"a grid has at most {sys.maxsize} items") from None

    @property
    def coords(self) -> dict[str, npt.NDArray[Any]]:
        """The values of each parameter, by its name."""
        return {
            name: _as_array(self._coords.get(name, values)) for name, values in self._values.items()
        }

    def as_json(self) -> dict[str, Any] | None:
        """Return the parameters for a file; None if they are many, or no numbers and texts."""
        axes = {}
        for name, coords in self.coords.items():
            axes[name] = [coords.dtype.str, coords.tolist()]
            if coords.dtype.kind not in "biufU":
                return None
        return axes if sum(self.shape) <= MOST_STORED else None

    @classmethod
    def from_json(cls, axes: Mapping[str, Any]) -> Grid:
        """Return a grid that was in a file."""
        return cls({name: np.array(values, dtype) for name, (dtype, values) in axes.items()})

    def __len__(self) -> int:
        return math.prod(self.shape)

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, i: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        k, item = range(len(self))[i], {}
        for name, values in reversed(self._values.items()):
            k, place = divmod(k, len(values))
            item[name] = values[place]
        return {name: item[name] for name in self._values}

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {len(values)}" for name, values in self._values.items())
        return f"<Grid of {len(self)} items ({axes})>"

    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> ByName:
        """Return a function of one item that passes its values by name."""
        func = users_function(func)
        bind_arguments(func, (), shared, extra, [*self._values])
        return ByName(func)

    def shaped(self, results: Any) -> Any:
        """Return the results of all items in the shape of the grid, with `coords`.

        A list becomes an array of objects.
        """
        if isinstance(results, tuple):
            return tuple(map(self.shaped, results))
        if isinstance(results, list):
            results = np.fromiter(results, object, len(results))
        shaped: Any = results.reshape(*self.shape, *results.shape[1:])
        if type(shaped) is np.ndarray:  # which has no attributes
            shaped = shaped.view(GridArray)
        shaped.coords = self.coords
        return shaped

    shaped_partly = shaped

    def labelled(self, results: Any, name: str) -> Any:
        """Return the results of all items as an `xarray.DataArray`, or as a `xarray.Dataset`.

        Parameters
        ----------
        results : array or list
            One result for each item; dicts and tuples become the variables of a Dataset.
        name : str
            Of the results, or of the first variables of tuples.
        """
        import xarray  # the caller has asked for it

        keys = _keys_of(results) if isinstance(results, list) else []
        if not keys:
            return self._labelled(results, name)
        variables = {}
        for key in keys:
            is_own = isinstance(key, str) and key not in self._values
            variable = key if is_own else f"{name}_{key}"
            variables[variable] = self._labelled(_variable(results, key), variable)
        return xarray.Dataset(variables)

    def _labelled(self, results: Any, name: str) -> Any:
        import xarray

        values = with_gaps(self.shaped(results))
        dims = [*self._values, *(f"{name}_dim_{k}" for k in range(values.ndim - len(self.shape)))]
        return xarray.DataArray(values, dict(self.coords), dims, name)

    def flat(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of an array for the results with one row for each item.

        Raises
        ------
        ValueError
            It has another shape, or such a view is not possible.
        """
        n = len(self.shape)
        if out.shape[:n] != self.shape:
            raise ValueError(
                f"out= has shape {out.shape}: for this grid its first {n} axes must have the "
                f"lengths {self.shape}, the others are the shape of one result"
            )
        flat = out.view()
        try:
            flat.shape = len(self), *out.shape[n:]  # `reshape` would copy
        except AttributeError:
            raise ValueError(
                "out= is a part of a larger array, or transposed: pass one that numpy.zeros or "
                "nbshare.zeros made, and copy its values"
            ) from None
        return flat


class GridArray(np.ndarray[Any, np.dtype[Any]]):
    """Results of a grid that are in no shared memory."""

    coords: Mapping[str, npt.NDArray[Any]] | None = None


class ByName(Adapted):
    """A function that takes the item of a grid as its keyword arguments."""

    def __call__(self, item: Mapping[str, Any], /, **others: Any) -> Any:
        """Call the function."""
        return super().__call__(**item, **others)


def _keys_of(results: list[Any]) -> Sequence[Any]:
    """Return the keys of dicts, or the places in tuples of one length; empty for others."""
    found = [result for result in results if not isinstance(result, BaseException)]
    if all(type(result) is dict for result in found):
        return list(dict.fromkeys(chain.from_iterable(found)))
    is_tuple = all(type(result) is tuple for result in found)
    return range(len(found[0])) if is_tuple and len(set(map(len, found))) == 1 else []


def _variable(results: list[Any], key: Any) -> npt.NDArray[Any]:
    """Return one variable of all results, with NaN for missing values, or None among texts."""
    parts = [_part(result, key) for result in results]
    first = next(part for part in parts if part is not None)
    gap: Any = None if isinstance(first, str | bytes) else np.full(np.shape(first), np.nan)
    parts = [gap if part is None else part for part in parts]
    try:
        return np.asarray(parts, object if any(part is None for part in parts) else None)
    except ValueError:  # of several shapes
        return np.fromiter(parts, object, len(parts))


def _part(result: Any, key: Any) -> Any:
    if isinstance(result, BaseException):
        return None
    return result.get(key) if isinstance(result, dict) else result[key]


def _values_of(name: str, given: Any) -> Sequence[Any]:
    """Return the values of a parameter, as they can be indexed."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(
            f"grid({name}=...) takes the values of a parameter in a list, an array or a range, not "
            f"{given!r:.100}. Pass [{name}] for a single one, or shared= for what all calls need"
        )
    if isinstance(given, range):
        return given
    is_array = type(given) in (np.ndarray, np.memmap, SharedArray) or hasattr(given, "dims")
    values: Any = np.array(given) if is_array else list(given)  # its own: it does not change
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise TypeError(f"grid({name}=...) takes an array of one dimension, not {values.ndim}")
    return values  # type: ignore[no-any-return]


def _as_array(values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values in a new array, of objects if necessary."""
    if isinstance(values, list) and values:
        is_text = {isinstance(value, str | bytes) for value in values}
        if len(is_text) > 1 or not all(map(is_single, values)):
            return np.fromiter(values, object, len(values))
    return np.array(values)
