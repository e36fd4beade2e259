"""The Stop button in the row of a running map.

A click has to reach a kernel whose main thread is busy with the cell. A widget's message may queue
behind that cell (ipykernel 6 and 7.4), and an interrupt cannot be told from the user's own, and
may hit the next cell. So the button speaks to the kernel's control channel, which a thread of its
own serves in every ipykernel since 6.0::

    script in the row -> server's web socket -> control thread -> StopButton.press -> Job.stop

The row's HTML holds a script that makes the button, not the button: neither a page that does not
trust the notebook nor one without that server and kernel (an export, a viewer) shows one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from nbshare.notebook.base import LIVE

if TYPE_CHECKING:
    from nbshare.job import Job
    from nbshare.notebook.environment import KernelOutput

_MESSAGE = "nbshare_stop"
_SCRIPT = files(__package__).joinpath("stop_button.js").read_text("utf-8")


class StopButton:
    """The button of one map.

    Parameters
    ----------
    job
        The map.
    output
        Where its row is shown.
    in_loop
        Whether the cell waits for the map, and may have more of them to come.

    Notes
    -----
    `press` is called in the kernel's control thread, all else in the one that waits for the map.
    """

    def __init__(self, job: Job, output: KernelOutput, *, in_loop: bool) -> None:
        self._job, self._cell = job, output.cell if in_loop else None
        self._is_pressed = False
        kernel_id = _kernel_id()
        self.markup = ""  # to be shown while the map runs; empty where nobody can press it
        if kernel_id is not None:
            arguments = ",".join(
                json.dumps(text)
                for text in (kernel_id, _MESSAGE, output.id, f"{output.id} {output.number}")
            )
            self.markup = (
                f'<span style="float:right"><script>({_SCRIPT})({arguments})</script></span>'
            )
            _buttons[output.id] = self

    def press(self) -> bool:
        """End the map; returns False if it was over.

        The first map of a cell that is stopped gives its partial results, and the cell goes on;
        the next one is interrupted, and with it the cell: the user wants to get out of a loop.
        """
        global _stopped_cell
        if self._job.state not in LIVE:
            return False
        with _lock:
            is_again, self._is_pressed = self._is_pressed, True
            is_second = False
            if self._cell is not None:
                is_second, _stopped_cell = _stopped_cell == self._cell, self._cell
        if is_again:
            return True
        if is_second:
            self._job.interrupt()
        else:
            self._job.stop()
        return True


_buttons: WeakValueDictionary[str, StopButton] = WeakValueDictionary()  # by the id of their output
_stopped_cell = -1  # the last one in which a map was stopped
_lock = threading.Lock()


def _kernel_id() -> str | None:
    """Return what the server calls this kernel, ready for presses; None if there is no server."""
    if "JPY_SESSION_NAME" not in os.environ:  # set by Jupyter's server, not by nbclient
        return None
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):  # no ipykernel
        from ipykernel.connect import get_connection_file

        kernel = cast(Any, sys.modules["IPython"]).get_ipython().kernel
        kernel.control_handlers[_MESSAGE] = _on_message
        return Path(get_connection_file()).stem.removeprefix("kernel-")
    return None


def _on_message(stream: Any, sender: Any, message: dict[str, Any]) -> None:
    button = _buttons.get(message["content"].get("row", ""))
    answer = {"stopped": button is not None and button.press()}
    kernel = cast(Any, sys.modules["IPython"]).get_ipython().kernel
    kernel.session.send(stream, f"{_MESSAGE}_reply", answer, parent=message, ident=sender)
