"""Small results are stored many at a time, as values if nobody can change them."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import uuid
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest

from nbshare import parallel_map
from nbshare._core.store.apart import pickler_maker
from nbshare._core.worker.items import frozen
from tests.support import figures

NOON = dt.datetime(2026, 11, 28, 12)


class Color(enum.Enum):
    """Members are the same object everywhere, whatever their values are."""

    RED = ("a", "list", [1])


class Level(enum.IntFlag):
    """Members are integers too."""

    LOW = 1


class Day(dt.date):
    """Objects of it may have attributes."""


class Zone(dt.tzinfo):
    """Objects of it may have attributes."""

    def utcoffset(self, _):
        """Return the offset."""
        return dt.timedelta(hours=1)


VALUES = [
    *(NOON, NOON.date(), NOON.time(), NOON - NOON.min),
    *(NOON.replace(tzinfo=dt.UTC), NOON.replace(tzinfo=ZoneInfo("UTC"))),
    *(Decimal("1.5"), Fraction(1, 3), uuid.UUID(int=7)),
    *(range(3), pathlib.Path("a/b"), pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a")),
    *(Color.RED, Level.LOW, Level.LOW | 4),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_not_pickled_alone(value):
    """Dates, paths, numbers and the like cannot change before they are stored with others."""
    results = [value, value, (value, 1), [value], {"key": value}, {value: 1}]
    assert [x for part in frozen(results, pickler_maker()) for x in part] == results


@pytest.mark.parametrize(
    "value",
    [Day(2026, 11, 28), NOON.replace(tzinfo=Zone()), [[1]], {1, 2}, (Day(2026, 1, 1), 1)],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_pickled_at_once(value):
    """Somebody may change them before they are stored."""
    parts = frozen([value, [value]], pickler_maker())
    assert [type(x) for part in parts for x in part] == [bytearray] * 2


def test_times_are_told_apart_by_their_zones():
    """Only those whose zone may change are pickled at once."""
    zones = [None, dt.UTC, Zone(), None, Zone(), ZoneInfo("UTC")]
    results = [NOON.replace(tzinfo=zone) for zone in zones]
    found = [x for part in frozen(results, pickler_maker()) for x in part]
    assert [type(x) is bytearray for x in found] == [type(zone) is Zone for zone in zones]


def test_values_of_tiny_items_are_those_of_the_loop():
    """They come with their classes, and in their order."""
    found = parallel_map(figures.value, range(20_000), max_workers=2, out="list")
    wanted = [figures.value(i) for i in range(20_000)]
    assert found == wanted
    assert [*map(type, found)] == [*map(type, wanted)]


def test_members_of_an_enum_of_a_script_are_its_own(script):
    """A class that workers cannot import is sent by value, for many members at a time."""
    out = script("""
import enum, nbshare
class Color(enum.Enum):
    RED = 1
    BLUE = 2
def color(i):
    return Color(1 + i % 2)
found = nbshare.parallel_map(color, range(20_000), max_workers=2, progress=False)
print(all(x is color(i) for i, x in enumerate(found)))
""")
    assert out == "True\n"


def test_a_value_that_cannot_be_pickled_fails_alone():
    """The results that would have been stored with it are there."""
    found = parallel_map(figures.member, range(20_000), max_workers=1, on_error="return")
    assert [i for i, x in enumerate(found) if x is not figures.Member.GOOD] == [9_999]
    assert any("cannot be sent" in note for note in found[9_999].__notes__)
