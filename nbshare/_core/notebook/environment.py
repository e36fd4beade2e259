"""The surroundings (a Jupyter kernel, marimo, a terminal, or a log), and the outputs of a cell."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

from nbshare._core.functions.modules import variables_of

Bundle: TypeAlias = tuple[dict[str, str], dict[str, Any] | None]  # MIME types, and metadata
Make: TypeAlias = Callable[[], Bundle | None]

JUPYTER = "JupyterLab or Jupyter Notebook"
_MAX_OWN = 8  # runs of a cell that each have an output of a kind
_SHARED_INTERVAL_S = 0.25  # interval of changes of an output that several runs share


def surroundings() -> Literal["kernel", "marimo", "terminal", "log"]:
    """Return where output appears: in a kernel, a running cell of marimo, a terminal or a log.

    The kernel is checked first, because the stderr of a kernel may be a terminal.
    """
    # Any kernel has loaded IPython.
    get_ipython = variables_of(sys.modules.get("IPython.core.getipython")).get("get_ipython")
    if get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None:
        return "kernel"
    runs_in_marimo = variables_of(sys.modules.get("marimo")).get("running_in_notebook")
    if runs_in_marimo is not None and runs_in_marimo():
        return "marimo"
    with suppress(AttributeError, ValueError):  # without stderr, or if it is closed
        return "terminal" if sys.stderr.isatty() else "log"
    return "log"


def is_static() -> bool:
    """Return whether the output is for a document that is rebuilt (``NBSHARE_STATIC=1``)."""
    return os.environ.get("NBSHARE_STATIC", "") not in ("", "0")


def has_server() -> bool:
    """Return whether a Jupyter server started this kernel, whose pages can show Stop."""
    return "JPY_SESSION_NAME" in os.environ  # not set by nbclient


def shell() -> Any:
    """Return the IPython shell of a kernel."""
    return cast(Any, sys.modules["IPython"]).get_ipython()


def front_end() -> str | None:
    """Return the name of the front end if it shows widgets, or None.

    A notebook that is executed without a page, for example by nbclient, shows no widgets.
    """
    if "google.colab" in sys.modules:
        return "Colab"
    if "__vsc_ipynb_file__" in shell().user_ns:
        return "VS Code"
    return JUPYTER if has_server() else None


def cell_number() -> int:
    """Return the execution count of the running cell in a kernel."""
    return int(shell().execution_count)


def cell_id() -> str | None:
    """Return the id that the cell keeps when it is run again, or None."""
    try:
        return str(shell().kernel.get_parent("shell")["metadata"]["cellId"])
    except Exception:  # noqa: BLE001  other kernels have other ways
        return None


class KernelOutput:
    """One output of a cell, shown once and then replaced in place.

    The first runs of a cell have one output each. Later runs, such as in a loop of 200 quick calls,
    reuse the outputs of runs that are over, and change them at most four times a second. So a cell
    never floods the page.

    Parameters
    ----------
    cell
        The outputs of the same kind in the cell.
    is_shared
        True if the output may have shown an earlier run.

    Attributes
    ----------
    number
        Number of runs of the cell that have used outputs of this kind, including this run.
    first
        Number of the first of the consecutive runs that have used this output, the last of which is
        `number`.
    id
        The id of the output in the front end.
    sent_at
        When the output was last changed, on the monotonic clock.
    is_last
        Whether the run is over, so that the output no longer changes.
    """

    number, first = 0, 1

    def __init__(self, cell: Cell, *, is_shared: bool) -> None:
        from IPython.display import DisplayHandle

        # The id is chosen now, so that the last frame can replace the first one even if that was
        # interrupted.
        self._handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        self.id = str(self._handle.display_id)
        self.cell, self.is_shared = cell, is_shared
        self._shown: Bundle | None = None
        self.sent_at = -_SHARED_INTERVAL_S
        self._waiting: Make | None = None
        self.is_last = False

    @property
    def shown(self) -> dict[str, str]:
        """The contents of the output, by MIME type."""
        return self._shown[0] if self._shown is not None else {}

    def reserve(self) -> None:
        """Reserve the place of the output in the cell, unless it is already shown."""
        if self._shown is None:
            self.show(lambda: ({"text/plain": ""}, None), final=False)

    def show_again(self) -> None:
        """Show the output in the running cell, too. Updates replace both."""
        if self._shown is not None:
            self._handle.display(self._shown[0], metadata=self._shown[1], raw=True)

    def show(self, make: Make, *, final: bool) -> None:
        """Replace the output with the one that `make` returns.

        `make` is called immediately. But if another run has just used the output, `make` is called
        at the end of the cell, unless a newer update replaces it, so that a loop of quick calls
        draws few plots.
        """
        self._waiting = make
        since_s = time.monotonic() - self.sent_at
        if not self.is_shared or self.cell.is_over or since_s >= _SHARED_INTERVAL_S:
            self.send(again=final and self.cell.is_over)
        if final and self.is_shared:
            self.cell.free.append(self)  # other runs may reuse it

    def send(self, *, again: bool = False) -> None:
        """Send a waiting update if it changes the output.

        If `again`, send it in the next cell, too.
        """
        make, self._waiting = self._waiting, None
        made = make() if make is not None else None
        if again and (last := made or self._shown):
            self._send_again_in_next_cell(*last)  # first, because the next cell may run at any time
        if made is None or made == self._shown:
            return
        self.sent_at = time.monotonic()
        show = self._handle.display if self._shown is None else self._handle.update
        show(made[0], metadata=made[1], raw=True)
        self._shown = made

    def _send_again_in_next_cell(self, data: dict[str, str], metadata: Any) -> None:
        """Send the last state again in the next cell, as nbclient records outputs only in cells."""
        events = shell().events

        def send(*_: object) -> None:
            events.unregister("pre_run_cell", send)
            self._handle.update(data, metadata=metadata, raw=True)

        events.register("pre_run_cell", send)


class Cell:
    """The outputs of one kind in the running cell."""

    def __init__(self) -> None:
        self._events = shell().events
        self._n_taken = 0
        self.was_stopped = False  # whether the user has stopped one of its runs
        self.free: list[KernelOutput] = []
        self.is_over = False
        self._events.register("post_run_cell", self._end)

    def take(self) -> KernelOutput:
        """Return a new output, or that of a run that is over."""
        self._n_taken += 1
        is_shared = self._n_taken > _MAX_OWN
        output = self.free.pop() if self.free else KernelOutput(self, is_shared=is_shared)
        if output.number != self._n_taken - 1:  # new, or other outputs were used since
            output.first = self._n_taken
        output.number, output.is_last = self._n_taken, False
        return output

    def _end(self, *_: object) -> None:
        """Send updates that are still waiting."""
        self.is_over = True
        self._events.unregister("post_run_cell", self._end)
        for output in self.free:
            output.send()


class MarimoOutput:
    """An output of a cell of marimo, shown once and then replaced in place."""

    number, first = 0, 1
    id = ""  # no page asks for this output

    def __init__(self, cell: MarimoCell) -> None:
        self.cell = cell
        self._shown: Any = None
        self._place = -1  # among the outputs of its cell

    @property
    def is_shared(self) -> bool:
        """Whether an earlier run used this output."""
        return self.number > _MAX_OWN

    def show(self, make: Callable[[], Any], *, final: bool) -> None:  # noqa: ARG002 - each state is shown
        """Replace the output with the one that ``make()`` returns."""
        made = make()
        if made is None or made == self._shown or self.cell.is_over:
            return
        self._shown, (data, _) = made, made
        markup = data.get("text/html")
        if markup is None:
            from html import escape  # late, because most runs show no plot

            says, png = escape(data["text/plain"]), data["image/png"]
            markup = f'<img alt="{says}" src="data:image/png;base64,{png}">'
        if self._place < 0:
            self._place = len(_marimo_context().output)
        marimo = sys.modules["marimo"]
        marimo.output.replace_at_index(marimo.Html(markup), self._place)


class MarimoCell:
    """The outputs of one kind in the running cell of marimo."""

    was_stopped = False  # marimo's cells have no Stop button of nbshare

    def __init__(self) -> None:
        self._context = _marimo_context()
        self._outputs: list[MarimoOutput] = []
        self._n_taken = 0

    @property
    def is_over(self) -> bool:
        """Whether another cell runs, or this one once more."""
        return self._context is not _marimo_context()

    def take(self) -> MarimoOutput:
        """Return a new output, or the last one if there are too many."""
        if self._n_taken < _MAX_OWN:
            self._outputs.append(MarimoOutput(self))
        self._n_taken += 1
        output = self._outputs[-1]
        output.number, output.first = self._n_taken, min(self._n_taken, _MAX_OWN)
        return output


def _marimo_context() -> Any:
    """Return the context of this run of marimo's cell, or None in a thread."""
    from marimo._runtime import context  # type: ignore[import-not-found, unused-ignore]

    is_running = sys.modules["marimo"].running_in_notebook()
    return context.get_context().execution_context if is_running else None


_current: dict[str, Cell | MarimoCell] = {}  # by kind


def kernel_output(kind: str) -> KernelOutput:
    """Return an output of the running cell in a notebook, for one kind of content."""
    cell = _current.get(kind)
    if cell is None or cell.is_over:
        cell = _current[kind] = MarimoCell() if surroundings() == "marimo" else Cell()
    return cast("KernelOutput", cell.take())
