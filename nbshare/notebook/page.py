"""The browser page that shows a run: it asks for its state, and can stop it.

An output that is only replaced freezes when the page is reloaded, says "running" for ever after a
kernel restart, and takes the focus from its button with every change. So a script in the output
asks three times a second, and changes only the differences::

    script in the row ─► server's web socket ─► control thread ─► PageLink.press, PageLink.answer

The control channel has a thread of its own in every ipykernel since 6.0: it answers while a cell
runs, while a plot is drawn, and after an interrupt. A page without that script (an export, one that
does not trust the notebook, another front end) never asks, and gets new outputs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from nbshare.job import Job
from nbshare.notebook.bar import LIVE
from nbshare.notebook.environment import KernelOutput, has_server, shell

_ASK = "nbshare_rows"
_SCRIPT = files(__package__).joinpath("row.js").read_text("utf-8")

_links: dict[str, PageLink] = {}  # by the id of their output; also those that are over
_stopped_cell = -1  # the last one in which a run was stopped


class PageLink:
    """Answers the requests of a page about one run.

    Parameters
    ----------
    job
        The job of the run.
    output
        The output that shows it.
    draw
        Returns the present markup; safe from any thread.
    in_loop
        Whether the cell waits for the run, and may start more of them.
    without_kernel
        What the page shows once the kernel is gone.

    Attributes
    ----------
    script : str
        Follows the run; empty where no page can ask.
    is_followed : bool
        Whether a page has asked. From then on nothing is sent before the last state.
    is_pressed : bool
        Whether Stop has been pressed.
    refusal : str
        Why that does not stop the run; empty if it does.

    Notes
    -----
    `answer` and `press` are called in the kernel's control thread, all else in the thread that
    waits for the run.
    """

    def __init__(
        self,
        job: Job,
        output: KernelOutput,
        draw: Callable[[], str],
        *,
        in_loop: bool,
        without_kernel: str,
    ) -> None:
        self._job: Job | None = job  # None when it is over
        self._draw = draw
        self._cell = output.cell.number if in_loop else None
        self.is_followed = self.is_pressed = False
        self.script = self.refusal = ""
        if (kernel_id := _kernel_id()) is not None:
            arguments = kernel_id, output.id, without_kernel, _ASK
            self.script = f"<script>({_SCRIPT})({','.join(map(_literal, arguments))})</script>"
            _links[output.id] = self  # no longer the run that used the output before

    def end(self, html: str) -> None:
        """Keep the markup of the last state."""
        self._draw = lambda: html
        self._job = None  # after the markup, for a page that asks meanwhile

    def answer(self) -> dict[str, Any]:
        """Return the answer to the page."""
        self.is_followed = True
        return {"is_over": self._job is None, "html": self._draw()}

    def press(self) -> bool:
        """Stop the run; return False if it was over.

        The first Stop in a cell returns partial results, and the cell continues. The second one
        interrupts the cell: the user wants to leave a loop.
        """
        global _stopped_cell
        job = self._job
        if job is None or job.state not in LIVE:
            return False
        if self.is_pressed:
            return True
        self.is_pressed = True
        if self._cell is not None and self._cell == _stopped_cell:
            job._interrupt()
        else:
            try:
                job.cancel()
            except RuntimeError as error:  # another process runs it
                self.refusal = str(error)
                return False
        _stopped_cell = self._cell or _stopped_cell
        return True


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
    pressed = _links.get(asked.get("stop", ""))
    found = {name: _links.get(name) for name in asked.get("rows", [])}
    answer = {
        "stopped": pressed is not None and pressed.press(),
        "rows": {name: link and link.answer() for name, link in found.items()},
    }
    session = shell().kernel.session
    session.send(stream, f"{_ASK}_reply", answer, parent=message, ident=sender)
