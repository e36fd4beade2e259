"""The panel of `nbshare.explore`: sliders and buttons, and a plot that is also saved.

On a page of Jupyter's server three outputs follow each other in the cell::

    words and style   for the notebook's file
    the panel         ipywidgets, until the kernel ends
    the plot          an ordinary PNG: saved in the file

A style hides the last one while the panel exists. Without the panel it hides the panel's place,
where JupyterLab would write "Error displaying widget". Other front ends get panel and plot as two
forms of one output. Where no page shows widgets, there is the plot and a sentence.

Moving a slider only records the wanted result. One thread per panel draws: a quick plot while the
slider moves, a sharp one when it rests, which is also saved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nbshare.notebook.environment import begun_before, front_end, is_static

if TYPE_CHECKING:
    from nbshare.notebook.explore import View
    from nbshare.notebook.figure import Frame

__all__ = ["show_panel", "text_of"]

_INTERVAL_S = 0.1  # between two plots, and between looks at a running job
_REST_S = 0.4  # after a move: then a sharp plot is worth its time
_STALE_S = 3.0  # the saved plot is at most this old while the slider moves
_PLAY_MS = 200  # between items, of the Play button

_WORDS = "To choose other results, run this cell in JupyterLab, Notebook 7 or VS Code."
_BUTTON, _AUTO = {"width": "36px"}, {"width": "auto"}
_CHILD = ".jp-OutputArea-child"
_STYLE = f"""<style>
{_CHILD}:has(.nbshare-words):has(+ {_CHILD} .nbshare-panel),
{_CHILD}:has(.nbshare-words) + {_CHILD}:not(:has(.nbshare-panel)),
{_CHILD}:has(.nbshare-words) + {_CHILD}:has(.nbshare-panel) + {_CHILD} {{display: none}}
</style>"""


def text_of(value: Any) -> str:
    """Format a value of an axis for its slider."""
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)


class Axis:
    """A slider with its buttons: over the items, or the values of one axis of a grid.

    Parameters
    ----------
    name
        Shown at its left.
    values
        The values to show; None: the index of the item.
    on_move
        Called after each move.
    """

    def __init__(self, name: str, values: Any, on_move: Callable[[], None]) -> None:
        import ipywidgets as w

        look: dict[str, Any] = {"description": name, "layout": {"flex": "0 1 440px"}}
        if values is None:
            self._slider, self._trait = w.IntSlider(max=0, **look), "value"
        else:
            options = [(text_of(value), i) for i, value in enumerate(values)]
            self._slider, self._trait = w.SelectionSlider(options=options, **look), "index"
        self._play = w.Play(max=0, interval=_PLAY_MS, show_repeat=False, layout={"width": "80px"})
        w.jslink((self._play, "value"), (self._slider, self._trait))
        steps = []
        for step, icon, tooltip in ((-1, "step-backward", "previous"), (1, "step-forward", "next")):
            button = w.Button(icon=icon, tooltip=f"{tooltip} {name}", layout=_BUTTON)
            button.on_click(lambda _, step=step: self.move(self.place + step))
            steps.append(button)
        self._slider.observe(lambda _: on_move(), self._trait)
        self.row = w.HBox([self._slider, *steps, self._play])

    @property
    def place(self) -> int:
        """Its position, from 0 on."""
        return int(getattr(self._slider, self._trait))

    def move(self, place: int) -> None:
        """Move it, within its range."""
        setattr(self._slider, self._trait, min(max(place, 0), self._play.max))

    def reach(self, n: int) -> None:
        """Set its number of positions."""
        self._play.max = n - 1
        if self._trait == "value":
            self._slider.max = n - 1


class Panel:
    """The widgets, the saved plot, and the thread that draws.

    Parameters
    ----------
    view
        The results to show.
    """

    def __init__(self, view: View) -> None:
        import ipywidgets as w
        from IPython.display import DisplayHandle

        self._view = view
        axes: dict[str, Any] = {**view.axes} or {"item": None}
        self._axes = [Axis(name, values, self._note_move) for name, values in axes.items()]
        for axis, n in zip(self._axes, view.shape or (view.n,), strict=True):
            axis.reach(n)
        self._image = w.Image(format="png", layout={"width": "760px", "max_width": "100%"})
        self._words = w.Label(layout={"margin": "0 16px 0 8px"})
        self._follow = w.Checkbox(description="follow the newest", indent=False, layout=_AUTO)
        self._stop = w.Button(description="Stop", tooltip="End this run now", layout=_AUTO)
        self._stop.on_click(lambda _: view.source.cancel())
        if not view.source.running():
            self._end_live()
        live = w.HBox([self._words, self._follow, self._stop], layout={"flex_flow": "row wrap"})
        self._all = w.VBox([*(axis.row for axis in self._axes), live, self._image])
        self._all.add_class("nbshare-panel")
        self._saved: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        widget = {"version_major": 2, "version_minor": 0, "model_id": self._all.model_id}
        self._also: dict[str, Any] = {"application/vnd.jupyter.widget-view+json": widget}
        self._present = np.zeros(0, bool)  # at the last look
        self._shown: tuple[int, bool] | None = None  # item, and whether it had arrived
        self._moved_at = self._saved_at = 0.0
        self._is_ours, self._is_over = False, False  # the move of a slider; the panel
        self._has_news = threading.Event()
        self.move(view.first)

    def display(self) -> None:
        """Show it in the running cell, and keep it up to date."""
        for before in begun_before(self):  # the same cell shows the new one
            before.close()
        if front_end() == "jupyter":
            words = f'{_STYLE}<div class="nbshare-words">{_WORDS}</div>'
            _show({"text/html": words, "text/plain": _WORDS})
            _show({**self._also, "text/plain": ""})
            self._also = {}
        self._save(self._saved.display)
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Remove it: another one replaces it."""
        self._is_over = True
        self._has_news.set()
        self._all.close()

    @property
    def _item(self) -> int:
        places = [axis.place for axis in self._axes]
        return int(np.ravel_multi_index(places, self._view.shape)) if self._view.axes else places[0]

    def _note_move(self) -> None:
        if not self._is_ours:  # the user has chosen this one
            self._follow.value = False
        self._moved_at = time.monotonic()
        self._has_news.set()

    def _run(self) -> None:
        is_running = True
        while not self._is_over:
            is_at_rest = not is_running and self._saved_at >= self._moved_at
            self._has_news.wait(None if is_at_rest else _INTERVAL_S)
            self._has_news.clear()
            is_running, began = self._view.source.running(), time.monotonic()  # before looking
            try:
                self._look(is_running=is_running)
            except Exception as error:  # noqa: BLE001  a user's function may raise anything
                self._words.value = f"{type(error).__name__}: {error}"
                self._saved_at = time.monotonic()
            time.sleep(max(0.0, began + _INTERVAL_S - time.monotonic()))

    def _look(self, *, is_running: bool) -> None:
        """Update the panel."""
        source = self._view.source
        if not is_running:
            self._end_live()
        if not self._view.axes:
            self._axes[0].reach(self._view.n)
        self._follow_newest()
        item, now = self._item, time.monotonic()
        if self._shown != (item, self._view.has(item)):
            self._moved_at = now
            self._draw(sharp=False)
        words = self._view.name(item)
        if source.state != "done":
            words += f" · {source.n_done} of {source.n_tasks or '?'} done, {source.state}"
        self._words.value = words  # last: the plot is ready
        is_due = now - self._moved_at > _REST_S or now - self._saved_at > _STALE_S
        if self._saved_at < self._moved_at and is_due:
            self._save(self._saved.update)

    def _follow_newest(self) -> None:
        present = self._view.source.present
        before = np.zeros(len(present), bool)
        before[: len(self._present)] = self._present[: len(present)]
        new, self._present = np.flatnonzero(present & ~before), present
        if not (len(new) and self._follow.value):
            return
        self.move(int(new[-1]))

    def move(self, item: int) -> None:
        """Move the sliders to a result."""
        places = np.unravel_index(item, self._view.shape or (self._view.n,))
        self._is_ours = True
        for axis, place in zip(self._axes, places, strict=True):
            axis.move(int(place))
        self._is_ours = False

    def _end_live(self) -> None:
        self._follow.layout.display = self._stop.layout.display = "none"

    def _save(self, show: Callable[..., object]) -> None:
        """Draw a sharp plot, here and for the notebook's file."""
        self._saved_at = time.monotonic()
        data, metadata = self._draw(sharp=True).bundle
        show({**data, **self._also}, metadata=metadata, raw=True)

    def _draw(self, *, sharp: bool) -> Frame:
        item = self._item
        self._shown = item, self._view.has(item)
        frame = self._view.draw(item, sharp=sharp)
        self._image.value = frame.png
        return frame


def show_panel(view: View) -> None:
    """Show a panel in the running cell, or a plot where widgets do not work."""
    if front_end() is not None and not is_static():
        Panel(view).display()
        return
    if not is_static():
        _show({"text/plain": _WORDS})
    _show(*view.draw(view.first, sharp=True).bundle)


def _show(data: dict[str, Any], metadata: Any = None) -> None:
    from IPython.display import display

    display(data, metadata=metadata, raw=True, display_id=True)  # type: ignore[no-untyped-call]
