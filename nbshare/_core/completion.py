"""Completion in a notebook, for the values of ``plot="…"``, which Jedi does not offer."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import nbshare

_VALUE = re.compile(r"""(?:(\w+)\s*=\s*|\(\s*)(["'])(\w*)\Z""")  # at the end of a text
_INNER = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}")  # brackets that are closed


def complete_in(shell: Any) -> None:
    """Offer these values in a shell of IPython."""
    try:
        from IPython.core.completer import context_matcher
    except ImportError:  # before 8.6
        return
    shell.Completer.custom_matchers.append(context_matcher()(_offered))


def _offered(context: Any) -> dict[str, Any]:
    """Return what completes a text, instead of what others offer, as a matcher of IPython."""
    from IPython.core.completer import SimpleCompletion

    lines = context.full_text.split("\n")[: context.cursor_line]
    text = "\n".join([*lines, context.text_until_cursor])
    typed, values = _values(text)
    found = [SimpleCompletion(value, type="value") for value in values if value.startswith(typed)]
    return {"completions": found, "matched_fragment": typed, "suppress": bool(found)}


def _values(text: str) -> tuple[str, list[str]]:
    """Return the word at the end of a text, and what may be there."""
    found = _VALUE.search(text)
    if found is None:
        return "", []
    before = text[: found.start() + 1] if found[1] is None else text[: found.start()]
    while before != (before := _INNER.sub("", before)):
        pass
    called = re.search(r"(\w+)\s*\([^()]*\Z", before)
    if called is None or called[1] not in nbshare.__all__:
        return "", []
    hints = _hints(getattr(nbshare, called[1]))
    return found[3], list(_literals(hints.get(found[1] or next(iter(hints), ""))))


def _hints(thing: Any) -> dict[str, Any]:
    """Return the types of the arguments of a public function or class."""
    from nbshare._core.options import MapOptions

    if thing in (nbshare.parallel_map, nbshare.map_async):
        return {"func": str, **typing.get_type_hints(MapOptions)}
    return typing.get_type_hints(thing.__init__ if inspect.isclass(thing) else thing)


def _literals(hint: Any) -> Iterator[str]:
    """Yield the texts that a type allows by name."""
    for part in typing.get_args(hint):
        if typing.get_origin(hint) is typing.Literal:
            if isinstance(part, str):
                yield part
        else:
            yield from _literals(part)
