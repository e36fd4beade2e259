"""What the results of a call depend on, and what differs from another call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nbshare.checkpoint.code import Code
from nbshare.checkpoint.digests import Digests
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
    columns = request.iterables if request.source is None and request.n_tasks else None
    digests = Digests(_defined_in_full(version), version) if columns is None else code.digests
    items = ItemDigests(digests, is_seeded=seed is not None, columns=columns)
    return Key(parts | code.parts, items, code.sources)  # last: items may be of own classes


def _defined_in_full(version: str | None) -> Callable[[Any], str]:
    """Return what gives a text for a definition that holds all that it depends on.

    For items that are not there yet, so that the key cannot have the parts that they lead to.
    """
    known: dict[int, tuple[Any, str]] = {}  # with the objects, which are kept

    def definition(obj: Any) -> str:
        if id(obj) not in known:
            code = Code(version)
            known[id(obj)] = obj, f"{code.definition(obj)} {sorted(code.parts.items())}"
        return known[id(obj)][1]

    return definition


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
