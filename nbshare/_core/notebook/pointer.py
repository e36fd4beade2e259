"""The values of a plot, stored in its picture, for the pointer on a page.

A frame, the notebook's file and the panel of `explore` all carry the values. The page needs no
kernel, only one script for all of its pictures::

    painter ─► Cells ─► a chunk of the PNG ─► pointer.js ─► words at the pointer

A cell is a pixel of an image, a point of a line, or a bar. Programs that do not know the chunk skip
the chunk, as the PNG standard requires.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.dates import ConciseDateFormatter, num2date
from numpy.typing import NDArray

from nbshare._core.notebook.raster import Floats, blocks, seen_from_afar
from nbshare._core.notebook.reading import names_of

_CHUNK = b"nbVL"  # a private chunk, not to be copied into a changed picture
_HEADER = 33  # bytes of a PNG before its second chunk
# Most numbers in a frame, and in the last picture, about 2 bytes each. More cells become blocks.
_MOST = {False: 2**15, True: 2**17}
_MOST_DATES = 2**12  # because each is a text
_UNIT = 10_000  # units of the width and height of a picture
_DIGITS = 6, 9, 17  # digits of coordinates, as few as tell them apart
_MANTISSA = 15  # bits that are kept, enough for the four digits that the page shows
_MAX_WHOLE = 2**20  # integers that are kept exactly
_MAX_EXACT = 2**53  # integers that are exact in float64
_GONE = np.uint32(0xFFF80000)  # a NaN that stands for no result


@dataclass(frozen=True)
class Along:
    """Coordinates and edges of the cells along one axis.

    Attributes
    ----------
    edges
        Where cells begin and end, one more edge than cells, or the places of points.
    firsts, lasts
        Coordinates of the first and the last value in each cell.
    label
        Name and unit of the coordinates. Default: the label of the axis.
    names
        Names of the coordinates 0, 1, 2, … Default: numbers, as the axis writes them.
    """

    edges: Floats
    firsts: Floats
    lasts: Floats
    label: str = ""
    names: list[str] | None = None


@dataclass(frozen=True)
class Cells:
    """Values of a plot, and their places.

    Attributes
    ----------
    axes
        The Axes that show the values.
    x, y
        The columns and the rows. `y` is None for lines, of which the page takes the nearest.
    values
        An array of shape (rows, columns), with a further axis if cells have several numbers.
    names
        Name and unit of the values, or those of each line.
    rows
        Another text for each line.
    is_there
        Flags of the cells that have a result. Default: all cells have one.
    joined_by
        Text between several numbers of a cell.
    how
        The reduction that combines cells if there are too many.
    items
        Number of items in each cell and in total, for items that follow each other row by row.
    note
        A line below the value.
    categories
        Names of the values 0, 1, 2, …, if these stand for names.
    are_dates, zone
        Whether the values are Matplotlib's days, and their time zone.
    """

    axes: Any
    x: Along
    y: Along | None
    values: NDArray[Any]
    names: list[str]
    rows: list[str]
    is_there: NDArray[np.bool_] | None = None
    joined_by: str = ", "
    how: str = "mean"
    items: tuple[float, int] | None = None
    note: str = ""
    categories: list[str] | None = None
    are_dates: bool = False
    zone: dt.tzinfo | None = None

    def coarser(self, steps: list[int]) -> Cells:
        """Combine these cells in blocks of so many rows and columns."""
        if self.y is None or max(steps) == 1:
            return self
        x, y = _coarser(self.x, steps[1]), _coarser(self.y, steps[0])
        if self.categories is not None:
            some = slice(None, None, steps[0]), slice(None, None, steps[1])
            is_there = None if self.is_there is None else self.is_there[some]
            note = f"one of {steps[0]} × {steps[1]} pixels"
            return replace(self, x=x, y=y, values=self.values[some], is_there=is_there, note=note)
        values, _ = seen_from_afar(self.how, self.values, steps)
        is_there = self.is_there
        if is_there is not None:
            is_there = blocks(np.logical_or, is_there, steps, False)
        how = self.how if self.how in ("min", "max") else "mean"
        note = f"{how} of {steps[0]} × {steps[1]} pixels"
        return replace(self, x=x, y=y, values=values, is_there=is_there, note=note)


def _coarser(along: Along, step: int) -> Along:
    edges = np.append(along.edges[:-1:step], along.edges[-1])
    lasts = np.append(along.lasts[step - 1 :: step], along.lasts[-1])[: len(edges) - 1]
    return replace(along, edges=edges, firsts=along.firsts[::step], lasts=lasts)


def chunk_of(tables: list[Cells], *, final: bool) -> bytes:
    """Return a chunk of a PNG that stores the values of its picture."""
    if not tables:
        return b""
    most = _MOST[final] // len(tables)
    tables = [_with_fewer(cells, most) for cells in tables]
    head = json.dumps([*map(_head, tables)], separators=(",", ":")).encode()
    numbers = b"".join(map(_bytes_of, tables))
    packed = zlib.compress(struct.pack(">I", len(head)) + head + numbers, 1)
    body = _CHUNK + packed
    return struct.pack(">I", len(packed)) + body + struct.pack(">I", zlib.crc32(body))


def with_chunk(png: bytes, chunk: bytes) -> bytes:
    """Insert a chunk into a PNG."""
    return png[:_HEADER] + chunk + png[_HEADER:]


def _with_fewer(cells: Cells, most: int) -> Cells:
    n_rows, n_columns, *each = cells.values.shape
    most, steps = (_MOST_DATES if cells.are_dates else most) // math.prod(each), [1, 1]
    while math.ceil(n_rows / steps[0]) * math.ceil(n_columns / steps[1]) > most:
        longer = int(n_columns / steps[1] > n_rows / steps[0])
        steps[longer] += 1
    return cells.coarser(steps)


def _head(cells: Cells) -> dict[str, Any]:
    axes, figure = cells.axes, cells.axes.figure.get_figure(root=True)
    width, height = figure.bbox.width, figure.bbox.height
    place = axes.get_window_extent()

    def along(values: Any, *, is_x: bool) -> Any:
        """Return places in the picture, measured from its upper left corner."""
        points = np.zeros((len(values), 2))
        points[:, 1 - is_x] = values
        points[:, int(is_x)] = (axes.get_ylim if is_x else axes.get_xlim)()[0]
        shown = axes.transData.transform(points)[:, 1 - is_x]
        return shown / width if is_x else 1 - shown / height

    def written(cells_along: Along, *, is_x: bool) -> dict[str, Any]:
        places = along(cells_along.edges, is_x=is_x)
        if len(places) == len(cells_along.firsts):  # points
            middles = (places[1:] + places[:-1]) / 2
            places = np.concatenate([[-1.0], middles, [2.0]])
        axis = axes.xaxis if is_x else axes.yaxis
        name = cells_along.label or (axes.get_xlabel if is_x else axes.get_ylabel)()
        name = name or ("column" if is_x else "row")
        texts = [] if cells.items else _texts(axis, cells_along, name)
        return {"at": _whole(places), "texts": texts}

    head: dict[str, Any] = {
        "box": _whole(
            [
                place.x0 / width,
                1 - place.y1 / height,
                place.x1 / width,
                1 - place.y0 / height,
            ]
        ),
        "x": written(cells.x, is_x=True),
        "shape": [*cells.values.shape, *[1] * (3 - cells.values.ndim)],
        "names": [_split(name) for name in cells.names],
        "rows": cells.rows,
        "joined": cells.joined_by,
        "items": cells.items,
        "note": cells.note,
        "categories": cells.categories,
    }
    if cells.y is not None:
        head["y"] = written(cells.y, is_x=False)
    else:
        ends = axes.get_ylim()
        is_log = axes.get_yscale() == "log"
        head["scale"] = [*_whole(along(ends, is_x=False)), *ends, is_log]
    if cells.are_dates:
        head["texts"] = _dates(cells.values.ravel(), cells.zone)
    return head


def _whole(shares: Any) -> list[int]:
    return np.round(np.asarray(shares) * _UNIT).astype(int).tolist()  # type: ignore[no-any-return]


def _split(label: str) -> list[str]:
    """Split the label of an axis into name and unit."""
    label = " ".join(label.split())
    found = re.fullmatch(r"(.+) \((.+?)\)(.*)", label)
    return [found[1] + found[3], found[2]] if found else [label, ""]


def _texts(axis: Axis, along: Along, label: str) -> list[str]:
    """Return the text of each cell along an axis."""
    name, unit = _split(label)
    firsts, lasts = along.firsts, along.lasts
    each = _written(axis, np.concatenate([firsts, lasts]), along.names)
    pairs = zip(each[: len(firsts)], each[len(firsts) :], strict=True)
    texts = [first if first == last else f"{first} to {last}" for first, last in pairs]
    before, after = f"{name} = ", f" {unit}" if unit else ""
    return [before + text + after if text else "" for text in texts]


def _written(axis: Axis, values: Floats, names: list[str] | None) -> list[str]:
    """Return coordinates as texts, as the axis writes them."""
    if names is not None:
        return [names[k] for k in values.astype(int).tolist()]
    formatter = axis.get_major_formatter()
    if isinstance(formatter, ConciseDateFormatter):
        return _dates(values, formatter._tz)
    is_finite = np.isfinite(values)
    steps = np.diff(np.unique(values[is_finite]))
    if steps.size:  # hundredths of a step tell all values apart
        values = np.round(values, 2 - math.floor(math.log10(steps.min())))
    if (values[is_finite] == np.round(values[is_finite])).all():
        if (np.abs(values) < _MAX_EXACT).all():  # the usual case, and quick
            return [*map(str, values.astype(np.int64).tolist())]
        return [f"{value:.0f}" for value in values.tolist()]
    return names_of(values, _DIGITS)


def _dates(values: Floats, zone: dt.tzinfo | None) -> list[str]:
    """Return Matplotlib's days as texts."""
    is_finite = np.isfinite(values)
    days = num2date(values[is_finite], zone)  # type: ignore[no-untyped-call]
    named = iter(names_of(np.array([day.replace(tzinfo=None) for day in days], "M8[s]")))
    return [next(named) if there else "NaT" for there in is_finite]


def _bytes_of(cells: Cells) -> bytes:
    """Return the upper halves of float64 numbers as byte planes, which compress well."""
    values = np.ascontiguousarray(cells.values, np.float64)
    halves = (values.view(np.uint64) >> np.uint64(32)).astype(np.uint32)
    is_whole = (values == np.round(values)) & (np.abs(values) < _MAX_WHOLE)
    lost = 20 - _MANTISSA
    with np.errstate(over="ignore"):
        rounded = (halves + np.uint32(1 << (lost - 1))) >> np.uint32(lost) << np.uint32(lost)
    is_finite = np.isfinite(values)
    halves = np.where(is_finite & ~is_whole, rounded, halves)
    halves = np.where(np.isnan(values), np.uint32(0x7FF80000), halves)
    if cells.is_there is not None:
        is_gone = ~cells.is_there.reshape(*cells.is_there.shape, *[1] * (values.ndim - 2))
        halves = np.where(is_gone, _GONE, halves)
    planes: Any = np.ascontiguousarray(halves.ravel().astype(">u4")).view(np.uint8).reshape(-1, 4)
    return bytes(np.ascontiguousarray(planes.T))
