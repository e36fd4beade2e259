"""Checks the iterables of a run, and returns them as columns that are indexed by item."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

from nbshare._core.engine.request import has_rows
from nbshare._core.messages import cut, is_interrupt, warn
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.shapes.tables import gives_pairs, groups_of, is_grouped
from nbshare._core.wire.failures import raised_by_source
from nbshare._core.wire.kept import kept_items
from nbshare.errors import LengthsWarning


def shaped_among(iterables: Sequence[Any]) -> ShapedItems | None:
    """Return the `ShapedItems` of a call, or None. Raise TypeError if it has other items too."""
    shaped = [x for x in iterables if isinstance(x, ShapedItems) or is_grouped(x)]
    if not shaped:
        return None
    if len(iterables) > 1:
        raise TypeError(
            f"a {type(shaped[0]).__name__} supplies all arguments that vary: pass it without other "
            "iterables, and arguments of all calls in shared="
        )
    return shaped[0] if isinstance(shaped[0], ShapedItems) else groups_of(shaped[0])


def check_iterable(iterable: Any) -> None:
    """Raise with the remedy if an argument is not iterable, or has too many items."""
    if type(iterable) in (list, tuple):
        return
    if hasattr(type(iterable), "__aiter__") and not isinstance(iterable, Iterable):
        raise TypeError(
            f"{type(iterable).__name__} yields its items asynchronously. Collect them first: pass "
            "[x async for x in items]."
        )
    is_iterable = isinstance(iterable, Iterable) or hasattr(type(iterable), "__getitem__")
    if not is_iterable or getattr(iterable, "ndim", 1) == 0:
        kind = "a 0-d array" if is_iterable else type(iterable).__name__
        raise TypeError(
            f"{kind} is not iterable: {cut(repr(iterable))}. Pass a list, an array, range(n) or "
            "another iterable of items. Pass arguments of all calls in shared=."
        )
    if isinstance(iterable, Mapping | str) or is_table(iterable):
        kind, shown = type(iterable).__name__, f" ({reprlib.repr(iterable)})"
        parts, remedy = "keys", "list(d), list(d.values()) or list(d.items()) for an item per entry"
        if isinstance(iterable, str):
            parts, remedy = "characters", "list(text) for an item per character"
        elif not isinstance(iterable, Mapping):
            is_polars = hasattr(iterable, "to_dicts")
            parts, shown = "columns", ""
            rows = "df.to_dicts()" if is_polars else "nbshare.rows(df)"
            remedy = f"{rows} for an item per row, or list(df.columns) per column"
        raise TypeError(
            f"a {kind} among the iterables yields its {parts} as items{shown}. Pass {remedy}. "
            "Pass arguments of all calls in shared={name: ...}."
        )
    if gives_pairs(iterable):
        raise TypeError(
            f"a {type(iterable).__name__} yields pairs of a key and a frame. Pass [frame "
            "for _, frame in windows] for frames, or list(windows) for the pairs."
        )
    if isinstance(iterable, range) and iterable[sys.maxsize :]:
        raise ValueError(
            f"{iterable} has more than {sys.maxsize} items, the maximum for a run. Memory allows "
            f"far fewer, about 25 million per GB. Pass iter({iterable}), whose items are read "
            "during the run."
        )


def is_table(iterable: Any) -> bool:
    """Return whether an object iterates over its columns, as frames of pandas and polars do."""
    kind = type(iterable)
    return hasattr(kind, "columns") and (hasattr(kind, "iterrows") or hasattr(kind, "iter_rows"))


def is_series(iterable: Any) -> bool:
    """Return whether an object is a Series or an Index, whose name and values are in memory."""
    return hasattr(iterable, "to_numpy") and not hasattr(iterable, "dims")


def warn_of_lengths(iterables: Sequence[Any]) -> None:
    """Issue a LengthsWarning if iterables have different lengths."""
    lengths = [n for n in map(known_length, iterables) if n is not None]
    if len(set(lengths)) > 1:
        counts = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
        warn(
            f"the iterables have {counts} items. The run stops after {min(lengths)}, because each "
            "call takes one item of each. For all combinations, pass nbshare.grid(x=a, y=b), with "
            "the names of the function's parameters. For pairs, cut the iterables to one length. "
            "Pass arguments of all calls in shared=.",
            LengthsWarning,
        )


def known_length(iterable: Any) -> int | None:
    """Return the number of items, or None if it is not known in advance."""
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:  # such as a tqdm bar without a total
        return None


def items_of(
    iterables: Sequence[Any],
) -> tuple[list[Any], Iterator[tuple[Any, ...]] | None, int | None]:
    """Return the columns of a run, an iterator over the others' items, and the number of items.

    If all iterables have a length, those that cannot be indexed, such as a set, are read now, and
    the iterator is None. Otherwise, their columns and the number of items are None.
    """
    columns: list[Any] = [x if has_rows(x) else None for x in iterables]
    shortest = min((len(x) for x in columns if x is not None), default=None)
    are_all_sized = all(isinstance(x, Sized) for x in iterables)
    if not are_all_sized:  # lists are pickled with the others, because they may share objects
        columns = [None if isinstance(x, list | tuple) else x for x in columns]
    without_rows = [kept_items(x) for x, c in zip(iterables, columns, strict=True) if c is None]
    others = islice(zip(*without_rows, strict=False), shortest)
    if not are_all_sized:
        return columns, others, None
    if any(x is None for x in columns):
        gone_through: list[tuple[Any, ...]] = []
        try:
            gone_through.extend(others)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise raised_by_source(error, len(gone_through))  # noqa: B904 - mostly itself
        shortest = len(gone_through)
        taken = map(list, zip(*gone_through, strict=True))
        columns = [next(taken, []) if x is None else x for x in columns]
    whole = [x if isinstance(x, ShapedItems) else x[:shortest] for x in columns]
    return whole, None, shortest or 0
