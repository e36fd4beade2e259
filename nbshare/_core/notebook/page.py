"""The browser page that shows a run. The page asks for the run's state, and can stop the run.

An output that is only replaced freezes when the page is reloaded, says "running" forever after a
kernel restart, and its button loses the focus with every change. A script in the output therefore
asks three times a second, and changes only the differences::

    script in the row ─► server's web socket ─► control thread ─► Row.press, Row.for_page

Since ipykernel 6.0, the control channel has a thread of its own. This thread answers while a cell
runs, while a plot is drawn, and after an interrupt. A page without that script (an export, an
untrusted notebook, another front end) never asks, and gets new outputs.

The plot below the row is an output that is replaced. A page names the picture that it shows, and
gets the current one if a reload made it miss that one.
"""

from __future__ import annotations

import contextlib
import json
import time
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from nbshare._core.notebook.environment import KernelOutput, has_server, shell

_ASK = "nbshare_rows"
_LATE_S = 1.0  # after which a page that does not show a picture was reloaded
_MOST_PLOTS = 50  # kept for pages
_SCRIPT = files(__package__).joinpath("row.js").read_text("utf-8")
# Shows the values that pictures carry (`notebook.pointer`) on any page that runs scripts.
_POINTER = files(__package__).joinpath("pointer.js").read_text("utf-8")
POINTER = f"<script>{' '.join(map(str.strip, _POINTER.splitlines()))}</script>"


class Row(Protocol):
    """The display of a run. Both methods are called in the kernel's control thread."""

    def for_page(self) -> str:
        """Return the current markup for a page that follows the run."""

    def press(self) -> None:
        """Stop the run unless it is over."""


# By the id of the output: the display, or the last markup of a run that is over.
_rows: dict[str, Row | str] = {}
_plots: dict[str, KernelOutput] = {}


def follow(row: Row, output_id: str, without_kernel: str, unknown: str) -> str:
    """Begin to answer the pages that show a run.

    Parameters
    ----------
    row
        The display of the run.
    output_id
        The output that shows the run from now on, instead of an earlier one.
    without_kernel
        The markup that the page shows if the kernel ends while the page follows the run.
    unknown
        The markup for a page that is opened after the kernel's end, which cannot know whether the
        run was over.

    Returns
    -------
    str
        A script that follows the run, or an empty string if no page can ask.
    """
    kernel_id = _kernel_id()
    if kernel_id is None:
        return ""
    _rows[output_id] = row
    _plots.pop(output_id, None)  # an earlier run's
    arguments = kernel_id, output_id, without_kernel, unknown, _ASK
    return f"<script>({_SCRIPT})({','.join(map(_literal, arguments))})</script>"


def follow_plot(output_id: str, plot: KernelOutput) -> None:
    """Send pictures of a run's plot to pages that miss them, below the row `output_id`."""
    if output_id in _rows:
        _plots[output_id] = plot
        if len(_plots) > _MOST_PLOTS:
            del _plots[next(iter(_plots))]


def end(output_id: str, html: str) -> None:
    """Store the last markup of a run for pages that ask."""
    if output_id in _rows:
        _rows[output_id] = html


def _literal(text: str) -> str:
    return json.dumps(text).replace("<", "\\u003c")  # or a label could end the script


def _kernel_id() -> str | None:
    """Prepare to answer pages, and return the server's id of this kernel, None without a server."""
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
    seen = asked.get("pictures", {})
    answer = {"rows": {name: _answer(name, seen.get(name)) for name in asked.get("rows", [])}}
    session = shell().kernel.session
    session.send(stream, f"{_ASK}_reply", answer, parent=message, ident=sender)


def _answer(name: str, seen: list[str] | None) -> dict[str, Any] | None:
    """Return the state of a row, and its picture if the page missed it."""
    row = _rows.get(name)
    if row is None:
        return None
    is_over, picture = _picture(_plots.get(name), seen)
    answer = {"picture": picture} if picture else {}
    if isinstance(row, str):
        return {"is_over": is_over, "html": row, **answer}
    return {"is_over": False, "html": row.for_page(), **answer}


def _picture(plot: KernelOutput | None, seen: list[str] | None) -> tuple[bool, str]:
    """Return whether a page has the last picture of a plot, and any picture that it has missed."""
    if plot is None or not seen:
        return True, ""
    png = plot.shown.get("image/png", "")
    is_old = bool(png) and not all(png.endswith(end) for end in seen)
    is_late = is_old and time.monotonic() - plot.sent_at > _LATE_S
    return plot.is_last and not is_old, png if is_late else ""
