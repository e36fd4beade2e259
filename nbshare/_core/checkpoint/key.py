"""The dependencies of a call's results, and their differences from those of another call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from nbshare._core.checkpoint.code import CodeDigests
from nbshare._core.checkpoint.digests import Digests
from nbshare._core.checkpoint.items import ItemDigests
from nbshare._core.checkpoint.sources import Sources
from nbshare._core.engine.request import Request

MOST_NAMED = 6  # differences in a message
MOST_WAYS = 2  # paths shown for a changed part

OF_CODE = ".__code__"  # the parts of code mean nothing to a reader

Parts = Mapping[str, str]  # digests of parts, by their names in messages


class Key(NamedTuple):
    """The dependencies of a call's results."""

    parts: Parts
    items: ItemDigests  # each result depends on one item
    sources: Sources
    outlines: Mapping[str, Parts]  # outlines of parts, by the same names


def key_of(request: Request, version: str | None) -> Key:
    """Return the dependencies of a call's results.

    Raises
    ------
    CheckpointError
        If a part of the call has no stable digest.
    """
    code = CodeDigests(version)
    inputs = {"the function": request.users}
    if request.reduce is not None:
        inputs |= {"reduce=": request.reduce, "on_error=": request.policy.on_error}
    inputs |= {f"shared[{name!r}]": value for name, value in request.shared.items()}
    if request.initializer is not None:
        inputs["the initializer"] = request.initializer
    inputs |= {"seed=": request.policy.seed, "version=": version}
    parts = {name: code.digests.of_part(value, name) for name, value in inputs.items()}
    columns = request.iterables if request.source is None and request.n_items else None
    digests = Digests(_defined_in_full(version), version) if columns is None else code.digests
    is_seeded = request.workers_policy.seed is not None
    items = ItemDigests(digests, is_seeded=is_seeded, columns=columns)
    parts |= code.parts  # last, because items may be of the user's classes
    return Key(parts, items, code.sources, code.digests.outlines)


def _defined_in_full(version: str | None) -> Callable[[Any], str]:
    """Return a function that returns a text for a definition with all its dependencies.

    For items that arrive later, when no part can be added to the key.
    """

    @cache
    def definition(obj: Any) -> str:
        code = CodeDigests(version)
        return f"{code.definition(obj)} {sorted(code.parts.items())}"

    return definition


def places(old: Mapping[str, Parts], new: Mapping[str, Parts]) -> dict[str, str]:
    """Return where parts of a key have changed, by the name of the part, from two outlines."""
    found = {}
    for name in old.keys() & new.keys():
        before, after = old[name], new[name]
        changed = [way for way in after if way in before and before[way] != after[way]]
        inner = [way for way in changed if not any(_is_in(other, way) for other in changed)]
        shown = [way for way in inner if not way.startswith(OF_CODE)][:MOST_WAYS]
        if shown:
            found[name] = f"in {' and '.join(shown)}"
    return found


def _is_in(other: str, way: str) -> bool:
    """Return whether one path begins with another."""
    return other.startswith(way) and other[len(way) : len(way) + 1] in (".", "[")


def differences(old: Parts, new: Parts, lines: Mapping[str, str]) -> list[str]:
    """Return the differences of two keys, in words. `lines` has the places of some parts."""
    where = {name: f" ({place})" for name, place in lines.items() if place}
    changed = [name for name in old if name in new and old[name] != new[name]]
    found = [f"{name} changed{where.get(name, '')}" for name in changed]
    found += [f"{name} is new" for name in new if name not in old]
    found += [f"{name} was removed" for name in old if name not in new]
    # A changed function says less than a changed definition.
    if len(found) > 1 and found[0] == "the function changed":
        del found[0]
    if len(found) > MOST_NAMED:
        found = [*found[: MOST_NAMED - 1], f"{len(found) - MOST_NAMED + 1} more differ"]
    return found
