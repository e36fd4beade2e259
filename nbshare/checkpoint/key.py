"""What the results of a call depend on, and what differs from another call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nbshare.checkpoint.code import Code
from nbshare.checkpoint.items import ItemDigests
from nbshare.checkpoint.sources import Sources
from nbshare.engine.run import Request

MOST_NAMED = 6  # differences in a message

Parts = Mapping[str, str]  # digests, by what messages call the parts


class Key(NamedTuple):
    """What results depend on."""

    parts: Parts
    items: ItemDigests  # each result depends on one of them
    sources: Sources


def key_of(request: Request, version: str | None) -> Key:
    """Return what the results of a call depend on.

    Raises
    ------
    CheckpointError
        If a part of it has no digest that is the same tomorrow.
    """
    code = Code(version)
    of = code.digests.of
    parts = {"the function": of(request.func, "the function").hex()}
    for name, value in request.shared.items():
        parts[f"shared[{name!r}]"] = of(value, f"shared[{name!r}]").hex()
    if request.initializer is not None:
        parts["the initializer"] = of(request.initializer, "the initializer").hex()
    seed = request.policy.seed
    parts["seed="] = of(seed, "seed").hex()
    parts["version="] = of(version, "version").hex()
    items = ItemDigests(code.digests, is_seeded=seed is not None)
    return Key(parts | code.parts, items, code.sources)


def differences(old: Parts, new: Parts, lines: Mapping[str, str]) -> list[str]:
    """Return what differs, in words; `lines`: where some parts are."""
    names = [name for name in old if name in new and old[name] != new[name]]
    where = {name: f" ({lines[name]})" for name in lines if lines[name]}
    changed = [f"{name} changed{where.get(name, '')}" for name in names]
    # That the function is another one says less than which definition changed.
    found = [text for text in changed if text != "the function changed"]
    found += [f"{name} is new" for name in new if name not in old]
    found += [f"{name} is gone" for name in old if name not in new]
    found = found or changed
    if len(found) > MOST_NAMED:
        found = [*found[: MOST_NAMED - 1], f"{len(found) - MOST_NAMED + 1} more differ"]
    return found
