"""A grid of all combinations of the values of several parameters, as the items of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.reference import bind_arguments
from nbshare._core.shapes.shaped import (
    Adapted,
    ShapedItems,
    checked_out,
    is_single,
    users_function,
    with_gaps,
)
from nbshare._core.tracebacks import shown_from_the_call

MOST_STORED = 10_000  # values of parameters in a checkpoint, because they are read repeatedly


@shown_from_the_call
def grid(**axes: Iterable[Any]) -> Grid:
    """Return all combinations of the values of some parameters, as items of a run.

    Examples
    --------
    A function of two parameters, whose results have the shape of the grid:

    >>> import nbshare
    >>> def period(length, gravity):
    ...     return 2 * 3.14159 * (length / gravity) ** 0.5
    >>> lengths, planets = [0.5, 1.0, 2.0], [9.81, 3.72]
    >>> periods = nbshare.parallel_map(period, nbshare.grid(length=lengths, gravity=planets))
    >>> periods.shape
    (3, 2)
    >>> periods.coords
    {'length': array([0.5, 1. , 2. ]), 'gravity': array([9.81, 3.72])}

    Coarse first:

    >>> [item["length"] for item in nbshare.grid(order="coarse", length=range(9))]
    [0, 8, 4, 2, 6, 1, 3, 5, 7]

    The same with a loop:

    >>> [round(period(**item), 2) for item in nbshare.grid(length=[1.0, 2.0], gravity=[9.81])]
    [2.01, 2.84]

    Parameters
    ----------
    **axes : iterable
        The values of each parameter, by its name. The last parameter varies fastest.
        ``order="coarse"`` is not a parameter of the function. With this order, items that are far
        apart run first, then the items between them, so that a live plot soon shows the whole
        range. The order takes 8 bytes per item, and the results are copied once. Loops over a job
        and errors number the items in this order.

    Returns
    -------
    Grid
        A sequence of dicts, created on access, so that a grid of 10⁸ items takes no memory.

    Raises
    ------
    TypeError
        If there is no parameter, or one is not a sequence of values, such as a number or a str.

    See Also
    --------
    parallel_map : calls ``func(**item)`` for each item of a grid.
    """
    order = axes.pop("order", None) if isinstance(axes.get("order"), str) else None
    if order not in (None, "coarse"):
        raise ValueError(
            f'grid(order={order!r}) is not allowed: pass "coarse", or a list of values for a '
            "parameter of this name"
        )
    return Grid(axes, is_coarse=order is not None)


class Grid(ShapedItems):
    """All combinations of the values of some parameters, created by `nbshare.grid`.

    Parameters
    ----------
    axes : mapping
        The values of each parameter, by its name.
    is_coarse : bool, default False
        Whether items that are far apart run first.

    Attributes
    ----------
    coords : dict
        The values of each parameter, by its name, as 1-D arrays.
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
    A grid is immutable, so any thread may use it.
    """

    __module__ = "nbshare.types"

    def __init__(self, axes: Mapping[str, Iterable[Any]], *, is_coarse: bool = False) -> None:
        if not axes:
            raise TypeError(
                "grid() needs at least one parameter, for example grid(current=[1, 2], r=[3, 4])"
            )
        self._values = {name: _values_of(name, given) for name, given in axes.items()}
        # For a Series or an Index, whose elements may be objects, such as time stamps.
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
        self._places = coarse_first(self.shape) if is_coarse else None  # the items' places
        self._is_labelled = False  # results are converted to xarray

    @property
    def coords(self) -> dict[str, npt.NDArray[Any]]:
        """The values of each parameter, by its name."""
        return {
            name: _as_array(self._coords.get(name, values)) for name, values in self._values.items()
        }

    @property
    def _plot_coords(self) -> dict[str, npt.NDArray[Any]]:
        return self.coords

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64] | None:
        """Indices of the items in the order of the results, or None if the orders are equal."""
        return None if self._places is None else np.argsort(self._places)

    def as_json(self) -> dict[str, Any]:
        """Return the parameters, or None if they are many, or not all numbers or strings."""
        coords = self.coords.items()
        is_simple = all(each.dtype.kind in "biufU" for _, each in coords)
        if sum(self.shape) > MOST_STORED or not is_simple:
            return {"grid": None}
        axes = {name: [each.dtype.str, each.tolist()] for name, each in coords}
        grid = {"axes": axes, "is_coarse": self._places is not None}
        return {"grid": grid, "is_labelled": self._is_labelled}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Grid:
        """Return a grid from the parameters in a checkpoint."""
        axes = stored["grid"]["axes"].items()
        arrays = {name: np.array(values, dtype) for name, (dtype, values) in axes}
        grid = cls(arrays, is_coarse=stored["grid"]["is_coarse"])
        grid._is_labelled = stored["is_labelled"]
        return grid

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
        if self._places is not None:
            k = int(self._places[k])
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

    def with_out(self, out: Any) -> tuple[Grid, Any]:
        """Return the grid, set to return xarray if requested, and ``out=`` as rows for items."""
        if isinstance(out, str) and out == "xarray":
            _need_xarray()
            labelled = copy(self)
            labelled._is_labelled = True
            return labelled, None
        out = checked_out(out, None)
        return self, self._flat(out) if isinstance(out, np.ndarray) else out

    def shaped(self, results: Any) -> Any:
        """Return the results of all items in the shape of the grid, with `coords`.

        A list is converted to an array of objects.
        """
        if isinstance(results, tuple):
            return tuple(map(self.shaped, results))
        return self.shaped_partly(self.in_order(results))

    def named(self, results: Any, name: str) -> Any:
        """Return the results as `shaped` does, in xarray if requested."""
        return self._labelled(results, name) if self._is_labelled else self.shaped(results)

    def shaped_partly(self, results: Any) -> Any:
        """Return results in row-major order in the shape of the grid, with `coords`."""
        if isinstance(results, list):
            results = np.fromiter(results, object, len(results))
        shaped: Any = results.reshape(*self.shape, *results.shape[1:])
        if type(shaped) is np.ndarray:  # it has no attributes
            shaped = shaped.view(GridArray)
        shaped.coords = self.coords
        return shaped

    def _labelled(self, results: Any, name: str) -> Any:
        """Return the results of all items as an `xarray.DataArray` or `xarray.Dataset`.

        Parameters
        ----------
        results : array or list
            One result for each item. Dicts and tuples are converted to the variables of a Dataset.
        name : str
            The name of the results, and the prefix of variables without a name of their own.
        """
        import xarray  # requested by the caller

        keys = _keys_of(results) if isinstance(results, list) else []
        if not keys:
            return self._variable(results, name)
        variables = {}
        for key in keys:
            is_own = isinstance(key, str) and key not in self._values
            variable = key if is_own else f"{name}_{key}"
            variables[variable] = self._variable(_variable(results, key), variable)
        return xarray.Dataset(variables)

    def _variable(self, results: Any, name: str) -> Any:
        import xarray

        values = with_gaps(self.shaped(results))
        dims = [*self._values, *(f"{name}_dim_{k}" for k in range(values.ndim - len(self.shape)))]
        return xarray.DataArray(values, dict(self.coords), dims, name)

    def _flat(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of an array for the results with one row for each item.

        Raises
        ------
        ValueError
            If `out` has a different shape, or such a view is impossible.
        """
        n = len(self.shape)
        if self._places is not None:
            raise ValueError(
                'out= must not be an array for a grid with order="coarse": remove out='
            )
        if out.shape[:n] != self.shape:
            raise ValueError(
                f"out= has shape {out.shape}: for this grid its first {n} axes must have the "
                f"lengths {self.shape}, and its other axes the shape of one result"
            )
        flat = out.reshape(len(self), *out.shape[n:])
        if flat.size and not np.may_share_memory(flat, out):  # it is a copy
            raise ValueError(
                "out= is a part of a larger array, or transposed: pass an array from numpy.zeros "
                "or nbshare.zeros, and copy its values"
            )
        return flat


class GridArray(np.ndarray[Any, np.dtype[Any]]):
    """Results of a grid as an ordinary array, outside shared memory, with `coords`."""

    coords: Mapping[str, npt.NDArray[Any]] | None = None


class ByName(Adapted):
    """A function that receives a grid item as keyword arguments."""

    def __call__(self, item: Mapping[str, Any], /, **others: Any) -> Any:
        """Call the function."""
        return super().__call__(**item, **others)


def _need_xarray() -> None:
    try:
        import xarray  # noqa: F401 - late: few calls need it
    except ImportError as error:
        raise ImportError('out="xarray" needs the package xarray: pip install xarray') from error


def coarse_first(shape: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the places of a grid, multiples of larger powers of two first."""
    levels = np.full(shape, 127, np.int8)
    for axis, n in enumerate(shape):
        of_axis = np.full(n, 127, np.int8)
        for level in range(n.bit_length()):
            of_axis[1 << level :: 2 << level] = level  # odd multiples
        along = [1] * len(shape)
        along[axis] = n
        np.minimum(levels, of_axis.reshape(along), out=levels)
    return np.argsort(-levels, axis=None, kind="stable")


def _keys_of(results: list[Any]) -> Sequence[Any]:
    """Return the keys of dicts, the places in tuples of one length, or () for other values."""
    found = [result for result in results if not isinstance(result, BaseException)]
    if all(type(result) is dict for result in found):
        return list(dict.fromkeys(chain.from_iterable(found)))
    is_tuple = all(type(result) is tuple for result in found)
    return range(len(found[0])) if is_tuple and len(set(map(len, found))) == 1 else []


def _variable(results: list[Any], key: Any) -> npt.NDArray[Any]:
    """Return one variable of all results, with gaps for missing values."""
    parts = [_part(result, key) for result in results]
    there = np.array([part is not None for part in parts])
    given = [part for part in parts if part is not None]
    try:
        found = _as_array(given) if all(map(is_single, given)) else np.array(given)
    except ValueError:  # shapes differ
        found = np.fromiter(given, object, len(given))
    whole = np.zeros((len(parts), *found.shape[1:]), found.dtype)
    whole[there] = found
    mask = np.broadcast_to(~there.reshape(-1, *[1] * (whole.ndim - 1)), whole.shape)
    return with_gaps(np.ma.MaskedArray(whole, mask))


def _part(result: Any, key: Any) -> Any:
    if isinstance(result, BaseException):
        return None
    return result.get(key) if isinstance(result, dict) else result[key]


def _values_of(name: str, given: Any) -> Sequence[Any]:
    """Return the values of a parameter in a form that can be indexed."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(
            f"grid({name}={given!r:.100}) is not allowed: pass a list, an array or a range of "
            f"values. Pass [{name}] for a single value, and shared= for an argument of all calls."
        )
    if isinstance(given, range):
        return given
    is_array = type(given) in (np.ndarray, np.memmap, SharedArray) or hasattr(given, "dims")
    values: Any = np.array(given) if is_array else list(given)  # a copy, which does not change
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise TypeError(
            f"grid({name}=...) needs a one-dimensional array, not one of shape {values.shape}"
        )
    return values  # type: ignore[no-any-return]


def _as_array(values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values in a new array, of objects if necessary."""
    if isinstance(values, list) and values:
        is_text = {isinstance(value, str | bytes) for value in values}
        if len(is_text) > 1 or not all(map(is_single, values)):
            return np.fromiter(values, object, len(values))
    return np.array(values)
