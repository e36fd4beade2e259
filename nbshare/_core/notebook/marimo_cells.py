"""The outputs of a running cell of marimo, shown by marimo's own functions."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import marimo  # type: ignore[import-not-found, unused-ignore]  # which the caller has
from marimo._runtime.context import get_context  # type: ignore[import-not-found, unused-ignore]

MAX_OWN = 8  # most outputs per kind and cell. Later runs share the last one.


class MarimoOutput:
    """An output of a cell, shown once and then replaced in place (see `KernelOutput`)."""

    number, first = 0, 1
    id = ""  # no page asks for this output

    def __init__(self, cell: MarimoCell) -> None:
        self.cell = cell
        self._shown: Any = None
        self._place = -1  # among the outputs of its cell

    @property
    def is_shared(self) -> bool:
        """Whether an earlier run used this output."""
        return self.number > MAX_OWN

    def reserve(self) -> None:
        """Reserve the place of the output in the cell."""
        self.show(lambda: ({"text/html": ""}, None), final=False)

    def show(self, make: Callable[[], Any], *, final: bool) -> None:  # noqa: ARG002 - each state is shown
        """Replace the output with the one that ``make()`` returns."""
        made = make()
        if made is None or made == self._shown or self.cell.context is not _running():
            return
        self._shown, (data, _) = made, made
        markup = data.get("text/html")
        if markup is None:
            says, png = html.escape(data["text/plain"]), data["image/png"]
            markup = f'<img alt="{says}" src="data:image/png;base64,{png}">'
        if self._place < 0:
            self._place = len(self.cell.context.output)
        marimo.output.replace_at_index(marimo.Html(markup), self._place)


class MarimoCell:
    """The outputs of the running cell."""

    was_stopped = False  # marimo's cells have no Stop button of nbshare

    def __init__(self, context: Any) -> None:
        self.context = context  # this run of the cell
        self.outputs: dict[str, list[MarimoOutput]] = {}
        self.n_taken: dict[str, int] = {}

    def take(self, kind: str) -> MarimoOutput:
        """Return a new output, or the last output if there are too many."""
        own = self.outputs.setdefault(kind, [])
        if len(own) < MAX_OWN:
            own.append(MarimoOutput(self))
        n = self.n_taken[kind] = self.n_taken.get(kind, 0) + 1
        own[-1].number, own[-1].first = n, min(n, MAX_OWN)
        return own[-1]


def _running() -> Any:
    """Return the context of the running cell, or None in a thread."""
    return get_context().execution_context if marimo.running_in_notebook() else None


_cell = MarimoCell(None)


def take(kind: str) -> MarimoOutput:
    """Return an output of this kind for the running cell."""
    global _cell
    if _cell.context is not (context := _running()):
        _cell = MarimoCell(context)
    return _cell.take(kind)
