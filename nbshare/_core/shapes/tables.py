"""Groups and rows of a table of pandas or polars, as the items of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np

from nbshare._core.functions.reference import bind_arguments, label_of, needed_by
from nbshare._core.messages import noted, warn
from nbshare._core.shapes.shaped import Adapted, ShapedItems, is_single, users_function, with_gaps
from nbshare._core.tracebacks import shown_from_the_call


@shown_from_the_call
def rows(table: Any) -> Rows:
    """Return the rows of a table as items of a run.

    Examples
    --------
    The results have the index of the table:

    >>> import pandas as pd
    >>> import nbshare
    >>> stars = pd.DataFrame({"flux": [1.0, 0.01]}, index=["Vega", "Mira"])
    >>> def magnitude(star):
    ...     import math
    ...     return -2.5 * math.log10(star.flux)
    >>> nbshare.parallel_map(magnitude, nbshare.rows(stars))
    Vega   -0.0
    Mira    5.0
    dtype: float64

    Dicts become a table:

    >>> def both(star):
    ...     return {"flux": star.flux, "is_bright": star.flux > 0.1}
    >>> nbshare.parallel_map(both, nbshare.rows(stars))
          flux  is_bright
    Vega  1.00       True
    Mira  0.01      False

    Parameters
    ----------
    table : pandas.DataFrame
        The table. Workers share one copy of it.

    Returns
    -------
    Rows
        A sequence of named tuples, as in `pandas.DataFrame.itertuples`, with ``row.Index`` and each
        column by its name.

    Raises
    ------
    TypeError
        If `table` is not a DataFrame.

    See Also
    --------
    parallel_map : also accepts ``table.groupby(...)`` as items.

    Notes
    -----
    Do not change the table while it is in use.
    """
    return Rows(table)


class _TableItems(ShapedItems):
    """Parts of a table, whose results are labelled with the table's index.

    Attributes
    ----------
    index : pandas.Index
        The label of each item.
    """

    index: Any

    def __len__(self) -> int:
        return len(self.index)

    @property
    def _plot_coords(self) -> dict[str, Any]:
        """The values of the index by its name, for a plot, tuples for several levels."""
        names = [str(name) for name in self.index.names if name is not None]
        return {", ".join(names) or "item": self.index.to_numpy()}

    def shaped(self, results: Any) -> Any:
        """Return single values as a Series, dicts or Series as a DataFrame, others as they are."""
        import pandas as pd  # imported by the caller already

        if isinstance(results, tuple):
            return tuple(map(self.shaped, results))
        if isinstance(results, list):
            found = [result for result in results if not isinstance(result, BaseException)]
            is_table = all(type(x) is dict for x in found) or _are_series(found)
            if found and is_table:
                whole = [{} if isinstance(x, BaseException) else x for x in results]
                with suppress(ValueError, pd.errors.InvalidIndexError):  # Series of one label twice
                    return pd.DataFrame(whole).set_axis(self.index)
                return results
            return pd.Series(results, self.index) if all(map(is_single, results)) else results
        return pd.Series(np.array(with_gaps(results)), self.index) if results.ndim == 1 else results


def _are_series(results: Sequence[Any]) -> bool:
    import pandas as pd

    return all(isinstance(result, pd.Series) for result in results)


class Rows(_TableItems):
    """The rows of a table, created by `nbshare.rows`.

    Parameters
    ----------
    table : pandas.DataFrame
        The table.

    Examples
    --------
    A row by its place:

    >>> import pandas as pd
    >>> import nbshare
    >>> items = nbshare.rows(pd.DataFrame({"star": ["Vega", "Mira"], "flux": [1.0, 0.01]}))
    >>> items[1].star
    'Mira'

    The number of rows:

    >>> len(items)
    2
    """

    __module__ = "nbshare.types"

    def __init__(self, table: Any) -> None:
        if not (hasattr(table, "itertuples") and hasattr(table, "iloc")):
            raise TypeError(
                f"rows() takes a pandas.DataFrame, not {type(table).__name__}: pass "
                "pandas.DataFrame(data)"
            )
        self._table = table
        self.index = table.index

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return list(self._table.iloc[i].itertuples(name="Row"))
        return self[i : i + 1 or None][0]

    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> Callable[..., Any]:
        """Return the function of a row."""
        bind_arguments(func, [self], shared, extra)
        return func


def is_grouped(items: Any) -> bool:
    """Return whether an object is a groupby of pandas, or a group_by of polars."""
    return type(items).__name__.endswith("GroupBy") and (
        hasattr(items, "ngroup") or hasattr(items, "named_by")
    )


def gives_pairs(items: Any) -> bool:
    """Return whether an object yields pairs of a key and a frame, as windows of time do."""
    kind = type(items)
    is_polars = kind.__module__.startswith("polars")  # windows of pandas yield frames
    return kind.__name__.endswith("Resampler") or (is_polars and kind.__name__ in _WINDOWS)


_WINDOWS = "DynamicGroupBy", "RollingGroupBy"


def groups_of(grouped: Any) -> ShapedItems:
    """Return the groups of a groupby of pandas or a group_by of polars, as items."""
    return Groups(grouped) if hasattr(grouped, "ngroup") else PolarsGroups(grouped)


_AS_PAIRS = (
    "To receive the key as well, take two arguments: def f(key, frame). To receive pairs, as in "
    "map, pass list(groups)."
)
# First words of the errors of functions that use a frame as a pair.
_OF_A_PAIR = (
    "KeyError: [01]$|ValueError: .*unpack|TypeError: .*positional argument|"
    "(IndexError|OutOfBoundsError): .*(index|bounds)"
)


class _Keyed(ShapedItems):
    """Groups that a function receives with or without their keys."""

    _has_keys = False  # whether the function receives them
    _gives_rows = False  # whether a frame returns its rows by their numbers

    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> Callable[..., Any]:
        """Return a function of one group, which calls `func` with the frame, or key and frame."""
        func = users_function(func)
        given = {*shared, *extra}
        needed = [name for name in needed_by(func) if name not in given]
        self._has_keys = len(needed) == 2
        if self._has_keys and re.search(_FRAME, needed[0]) and not re.search(_FRAME, needed[1]):
            raise TypeError(
                f"{label_of(func)}({', '.join(needed)}) would receive the key of a group as "
                f"{needed[0]} and its frame as {needed[1]}. If {needed[1]} is the same for all "
                f"groups, pass it in shared={{{needed[1]!r}: ...}}. If the function takes a key "
                "and a frame, name its parameters key and frame."
            )
        from nbshare._core.source.bytecode import uses_of  # late, only groups need it

        bind_arguments(func, [None] * (1 + self._has_keys), shared, extra)
        if len(needed) == 1 and "unpacked" in (uses := uses_of(func, needed[0])):
            raise TypeError(
                f"{label_of(func)} unpacks {needed[0]!r}, but {needed[0]!r} is the frame of a "
                f"group, not a (key, frame) pair. {_AS_PAIRS} To unpack the frame itself, write "
                f"list({needed[0]})."
            )
        if len(needed) == 1 and self._gives_rows and "[1]" in uses:
            warn(
                f"{label_of(func)} takes {needed[0]}[1], but {needed[0]!r} is the frame of a "
                f"group, not a (key, frame) pair, and its [1] is a row. {_AS_PAIRS} To get a row, "
                f"write {needed[0]}.slice(1, 1).",
                UserWarning,
            )
        return WithKey(func) if self._has_keys else func

    def note_on(self, error: BaseException) -> None:
        """Add a note to the error of a function that uses a frame as a pair."""
        try:
            said = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - a user's __str__
            return
        if not self._has_keys and re.match(_OF_A_PAIR, said):
            noted(error, f"The function receives the frame of each group. {_AS_PAIRS}")


class _Frames(Sequence[Any]):
    """Parts of a table, each created on access.

    Many frames at the same time would cost a third of the run time of small groups, in the garbage
    collector.
    """

    def __init__(self, table: Any, starts: Sequence[int], stops: Sequence[int]) -> None:
        self._table, self._places = table, list(map(slice, starts, stops))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        # The function behind iloc[a:b], which takes half of its time.
        return map(self._table._slice, self._places)

    def __getitem__(self, i: Any) -> Any:
        return list(self)[i] if isinstance(i, slice) else self._table._slice(self._places[i])


class Groups(_Keyed, _TableItems):
    """The groups of a table, from ``table.groupby(...)``.

    A copy of the table stores its rows group by group, so that each group is a view of it.

    Parameters
    ----------
    grouped : pandas DataFrameGroupBy or SeriesGroupBy
        The groups.
    """

    def __init__(self, grouped: Any) -> None:
        numbers = np.nan_to_num(grouped.ngroup().to_numpy(), nan=-1).astype(np.int64)
        order = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]  # -1 is in none
        # `head` and others drop rows. Counting them takes a third of the time here.
        self._table = grouped._selected_obj.iloc[order]
        self.index, sizes = _keys_and_sizes(grouped)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        by = grouped.level if grouped.keys is None else grouped.keys
        self._is_tuple = isinstance(by, list) and len(by) == 1  # a key of length one, as in pandas

    def __getitem__(self, i: Any) -> Any:
        if not isinstance(i, slice):
            k = range(len(self))[i]
            return self[k : k + 1][0]
        frames = _Frames(self._table, self._starts[:-1][i].tolist(), self._starts[1:][i].tolist())
        if not self._has_keys:
            return frames
        keys = self.index[i].tolist()
        return list(zip(((key,) for key in keys) if self._is_tuple else keys, frames, strict=True))


RESULT, ROW = "result", "nbshare row"  # columns


class PolarsGroups(_Keyed):
    """The groups of a table of polars, in the order in which they begin.

    A copy of the table stores its rows group by group, and is sent as Arrow's buffers.

    Parameters
    ----------
    grouped : polars GroupBy
        The groups.
    """

    _gives_rows = True

    def __init__(self, grouped: Any) -> None:
        import polars as pl  # type: ignore[import-not-found, unused-ignore]  # loaded by the caller

        again = copy(grouped)  # with all its settings, such as `having`
        again.df, again.maintain_order = grouped.df.with_row_index(ROW), True
        found = again.agg(pl.col(ROW))
        self._keys, rows = found.drop(ROW), found[ROW]
        self._starts = np.concatenate([[0], np.cumsum(rows.list.len().to_numpy(), dtype=np.int64)])
        self._table = grouped.df[rows.explode().to_numpy()]

    def __getstate__(self) -> dict[str, Any]:
        """Return the tables as Arrow tables, whose buffers are sent by reference."""
        return vars(self) | {"_table": self._table.to_arrow(), "_keys": self._keys.to_arrow()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import polars as pl  # imported by the caller already

        vars(self).update(state)
        self._table, self._keys = map(pl.from_arrow, (self._table, self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def _plot_coords(self) -> dict[str, Any]:
        """The keys by their name, for a plot, tuples for several columns."""
        keys = [key[0] if len(key) == 1 else key for key in self._keys.rows()]
        return {", ".join(self._keys.columns): np.fromiter(keys, object, len(keys))}

    def __getitem__(self, i: Any) -> Any:
        if not isinstance(i, slice):
            k = range(len(self))[i]
            return self[k : k + 1][0]
        starts, stops = self._starts[:-1][i].tolist(), self._starts[1:][i].tolist()
        frames = [self._table.slice(a, b - a) for a, b in zip(starts, stops, strict=True)]
        return list(zip(self._keys[i].rows(), frames, strict=True)) if self._has_keys else frames

    def shaped(self, results: Any) -> Any:
        """Add single values or dicts to the keys as columns. Return others as they are."""
        if isinstance(results, tuple):
            return tuple(map(self.shaped, results))
        if not isinstance(results, list):
            if results.ndim > 1:
                return results
            is_time = results.dtype.kind in "mM"  # Python would return nanoseconds as integers
            values = with_gaps(results) if is_time else results.tolist()
            return self._with_columns({RESULT: values}, results)
        values = [None if isinstance(value, BaseException) else value for value in results]
        found = [value for value in values if value is not None]
        if found and all(type(value) is dict for value in found):
            return self._with_columns([{} if x is None else x for x in values], results)
        is_column = all(map(is_single, found))
        return self._with_columns({RESULT: values}, results) if is_column else results

    def _with_columns(self, columns: Any, results: Any) -> Any:
        """Return the keys with more columns, or only the results if a name occurs twice."""
        import polars as pl

        with suppress(pl.exceptions.PolarsError):
            return self._keys.hstack(pl.DataFrame(columns, infer_schema_length=None))
        return results


class WithKey(Adapted):
    """A function of the key of a group and its frame."""

    def __call__(self, item: tuple[Any, Any], /, **others: Any) -> Any:
        """Call the function."""
        return super().__call__(*item, **others)


def _keys_and_sizes(grouped: Any) -> tuple[Any, Any]:
    """Return the keys and the sizes of all groups, in the order of a loop over them."""
    indexed = copy(grouped)
    indexed.as_index = True  # otherwise the sizes are a column, whose name may be a key's
    sizes = indexed.size()
    return sizes.index, sizes.to_numpy()


_FRAME = r"(^|_)(df|frame|table|data|part|rows)(_|\d*$)"  # names of a frame
