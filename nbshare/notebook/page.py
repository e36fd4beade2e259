"""The browser page that shows a run: it asks for its state, and can stop it.

An output that is only replaced freezes when the page is reloaded, says "running" for ever after a
kernel restart, and takes the focus from its button with every change. So a script in the output
asks three times a second, and changes only the differences::

    script in the row ─► server's web socket ─► control thread ─► Row.press, Row.for_page

The control channel has a thread of its own in every ipykernel since 6.0: it answers while a cell
runs, while a plot is drawn, and after an interrupt. A page without that script (an export, one that
does not trust the notebook, another front end) never asks, and gets new outputs.
"""

from __future__ import annotations

import contextlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from nbshare.notebook.environment import has_server, shell

_ASK = "nbshare_rows"
_SCRIPT = files(__package__).joinpath("row.js").read_text("utf-8")


class Row(Protocol):
    """The display of a run; both methods are called in the kernel's control thread."""

    def for_page(self) -> str:
        """Return the present markup. A page follows the run, and this shows its state."""

    def press(self) -> None:
        """Stop the run, if it is not over."""


# By the id of their output; of a run that is over, the last markup.
_rows: dict[str, Row | str] = {}


def follow(row: Row, output_id: str, without_kernel: str, unknown: str) -> str:
    """Answer pages about a run from now on.

    Parameters
    ----------
    row
        Its display.
    output_id
        The output that shows it, no longer the run that used it before.
    without_kernel
        What the page shows if the kernel ends while the page follows the run.
    unknown
        What a page shows that is opened when the kernel is gone: the run may have been over before.

    Returns
    -------
    str
        A script that follows the run; empty where no page can ask.
    """
    kernel_id = _kernel_id()
    if kernel_id is None:
        return ""
    _rows[output_id] = row
    arguments = kernel_id, output_id, without_kernel, unknown, _ASK
    return f"<script>({_SCRIPT})({','.join(map(_literal, arguments))})</script>"


def end(output_id: str, html: str) -> None:
    """Keep the markup of the last state for pages that ask."""
    if output_id in _rows:
        _rows[output_id] = html


def _literal(text: str) -> str:
    return json.dumps(text).replace("<", "\\u003c")  # or a label could end the script


def _kernel_id() -> str | None:
    """Return the server's id of this kernel, ready for pages; None without a server."""
    if not has_server():
        return None
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):  # no ipykernel
        from ipykernel.connect import get_connection_file

        kernel = shell().kernel
        kernel.control_handlers[_ASK] = _on_ask
        return Path(get_connection_file()).stem.removeprefix("kernel-")
    return None


def _on_ask(stream: Any, sender: Any, message: dict[str, Any]) -> None:
    asked = message["content"]
    pressed = _rows.get(asked.get("stop", ""), "")
    if not isinstance(pressed, str):
        pressed.press()
    answer = {"rows": {name: _answer(name) for name in asked.get("rows", [])}}
    session = shell().kernel.session
    session.send(stream, f"{_ASK}_reply", answer, parent=message, ident=sender)


def _answer(name: str) -> dict[str, Any] | None:
    row = _rows.get(name)
    if isinstance(row, str):
        return {"is_over": True, "html": row}
    return None if row is None else {"is_over": False, "html": row.for_page()}
