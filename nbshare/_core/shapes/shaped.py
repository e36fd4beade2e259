"""Base of items that define the call of the function and the form of the results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.messages import cut


class ShapedItems(Sequence[Any]):
    """Items that are created on access, such as the combinations of a grid.

    Workers receive all items as one object, and create the items that they run.
    """

    passes_its_parts = True  # see `arrays.passed`
    columns: Sequence[Any] = ()  # the iterables of blocks, which workers receive instead of them
    n_items: int = 0  # in blocks
    layout: Any = None  # the `Layout` if the items are tiles

    @property
    def _plot_coords(self) -> Mapping[str, npt.NDArray[Any]]:
        """Names and values of the axes of the results, for a plot. Empty if there are no axes."""
        return {}

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64] | None:
        """Indices of the items in the order of the results, or None if the orders are equal."""
        return None

    def in_order(self, results: Any) -> Any:
        """Reorder results, an array or a list, from the order of the items to their own."""
        if (numbers := self.numbers) is None:
            return results
        return [results[i] for i in numbers] if isinstance(results, list) else results[numbers]

    def with_out(self, out: Any) -> tuple[ShapedItems, Any]:
        """Return the items with results in the form of ``out=``, and the array for their rows.

        Raises
        ------
        TypeError, ValueError
            If the results cannot have this form.
        """
        return self, checked_out(out, len(self))

    @abstractmethod
    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> Callable[..., Any]:
        """Return a function of one item that calls the user's function.

        Parameters
        ----------
        func : callable
            The user's function.
        shared : mapping
            The objects of ``shared=``, passed by name.
        extra : sequence of str
            Names of other arguments.

        Raises
        ------
        TypeError
            If the function does not accept these items.
        """

    def note_on(self, error: BaseException) -> None:
        """Add to the error of an item how the function is called, if that may be the cause."""

    @abstractmethod
    def shaped(self, results: Any) -> Any:
        """Return the results of all items, in the order of the items, in their final form.

        Parameters
        ----------
        results : array, list or tuple of arrays
            One result for each item.
        """

    def named(self, results: Any, name: str) -> Any:
        """Return the results as `shaped` does, with `name` if their final form has a name."""
        del name
        return self.shaped(results)

    def shaped_partly(self, results: Any) -> Any:
        """Return results so far, already in their own order, in their final form."""
        return results

    def as_json(self) -> dict[str, Any]:
        """Return the form of the items, so that a checkpoint can be read without the items."""
        return {}


def checked_out(out: Any, n_items: int | None) -> Any:
    """Return ``out=`` if it can hold `n_items` results. Raise with the remedy if not."""
    if out is None:
        return None
    if isinstance(out, str):
        if out in ("list", "stack"):
            return out
    elif isinstance(out, np.ndarray):
        if out.dtype.hasobject or is_masked(out):
            raise TypeError('out= must be a plain array of numbers. For objects pass out="list".')
        if not out.flags.writeable:
            raise ValueError("out= is read-only. Pass an array that can be written to.")
        if out.ndim == 0:
            raise ValueError("out= is a 0-d array: it needs a first axis, with a row for each item")
        if n_items not in (None, len(out)):
            raise ValueError(
                f"out= has shape {out.shape}, but there are {n_items} items: its first axis must "
                f"have length {n_items}, and its other axes the shape of one result"
            )
        return out
    raise ValueError(
        f'out={cut(repr(out))} is not allowed: pass None, "list", "stack", an ndarray with a row '
        'for each item, or "xarray" for the items of a grid'
    )


class Adapted(partial[Any]):
    """A user's function, adapted to the items of a run. A partial is unpacked."""

    @property
    def users(self) -> Callable[..., Any]:
        """The user's function."""
        given = self.args or self.keywords
        return partial(self.func, *self.args, **self.keywords) if given else self.func


def users_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the user's function, from a function that may be adapted."""
    return func.users if isinstance(func, Adapted) else func


def with_gaps(results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return results without a mask, with NaN, NaT or None in masked places."""
    if not np.ma.is_masked(results):
        return np.asarray(results)
    masked: Any = np.ma.asarray(results)
    if masked.dtype.kind in "mM":
        return np.asarray(masked.filled(np.array("NaT", masked.dtype)))
    if masked.dtype.kind in "biufc":
        floats = masked.astype(np.result_type(masked.dtype, np.float32))
        if survives(floats.compressed(), masked.compressed()):
            return np.asarray(floats.filled(np.nan))
    objects = masked.data.astype(object)
    objects[masked.mask] = None
    return np.asarray(objects)


def survives(stored: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Return whether all values survive the conversion to the dtype of `stored`."""
    if stored.dtype.kind == "c" and value.dtype.kind != "c":
        stored = stored.real  # casting the whole would warn
    if stored.dtype.kind == "f" and value.dtype.kind in "iu":
        too_large = 2.0 ** (8 * value.itemsize - (value.dtype.kind == "i"))
        if (stored >= too_large).any():  # the largest ones are rounded to it
            return False
    with np.errstate(all="ignore"):  # for casts that lose values
        back = stored.astype(value.dtype)
    return np.array_equal(back, value, equal_nan=not issubclass(value.dtype.type, np.flexible))


def is_single(value: Any) -> bool:
    """Return whether a value is not an array, list or tuple."""
    return bool(value.ndim == 0) if hasattr(value, "ndim") else not isinstance(value, list | tuple)
