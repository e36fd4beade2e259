"""The row of a map in a notebook: one output, whose last state is what gets saved.

tqdm's own widget is saved in the .ipynb as "0%" for ever.
"""

from __future__ import annotations

import html
from heapq import nsmallest
from typing import TYPE_CHECKING

from nbshare.notebook.bar import Pace, describe, duration, percent, stage_lines
from nbshare.notebook.base import LIVE
from nbshare.notebook.environment import KernelOutput
from nbshare.notebook.stop_button import StopButton

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbshare.engine.stats import WorkerActivity
    from nbshare.job import Job, State

_INTERVAL_S = 1 / 3
_MAX_FAILURES = 10  # listed
_MAX_TEXT = 60  # characters of an item or a message
_N_SLOWEST = 3

# The theme's colours, right on light and dark pages, and Okabe and Ito's where there is none.
_BLUE = "--jp-brand-color1", "#0072B2"
_GREEN = "--jp-success-color1", "#009E73"
_ORANGE = "--jp-warn-color1", "#D55E00"
_RED = "--jp-error-color1", "#B2182B"
_LOOKS: dict[
    State, tuple[str, tuple[str, str]]
] = {  # glyph and colour, always beside the state's word
    "starting": ("▷", _BLUE),
    "running": ("▶", _BLUE),
    "done": ("✓", _GREEN),
    "stopped": ("■", _ORANGE),
    "interrupted": ("■", _ORANGE),
    "failed": ("✗", _RED),
}
_GAP = " &emsp; "  # in the markup, as all that keeps words apart: GitHub strips styles


class NotebookRow:
    """One output of a cell, in HTML and in plain text.

    Parameters
    ----------
    job
        The map.
    label
        What it is called.
    timed
        False: nothing that differs from one run to the next (seconds, rates, workers).
    in_background
        Whether cells go on meanwhile.
    """

    def __init__(self, job: Job, label: str, *, timed: bool, in_background: bool) -> None:
        self._job, self._label, self._timed = job, label, timed
        self._pace = Pace(job)
        self.output = KernelOutput("row")
        self._stop = StopButton(job, self.output, in_loop=not in_background)
        self._shown: dict[str, str] = {}

    def draw(self, *, final: bool) -> float:
        """Send the row if it differs from the one that is shown."""
        bundle = self._bundle(final=final)
        if final or bundle != self._shown:
            self.output.show(lambda: (bundle, None), final=final)
            self._shown = bundle
        return _INTERVAL_S

    def _bundle(self, *, final: bool) -> dict[str, str]:
        job = self._job
        glyph, colour = _LOOKS[job.state]
        word = f"starting {_workers(job.n_workers)}…" if job.state == "starting" else job.state
        count, details = describe(job, self._pace, timed=self._timed)
        if self.output.is_shared:
            details += f" · map {self.output.number} of this cell"
        name = " ".join(filter(None, [self._label, word]))
        plain = "\n".join(
            [f"{glyph} {name}  {count}{details}", *(stage_lines(job) if self._timed else [])]
        )
        label = f"<b>{html.escape(self._label)}</b> " if self._label else ""
        # U+FE0E: a glyph, not an emoji. Text takes the theme's colour.
        words = f"{label}{word}{_GAP}<b>{count}</b>{details.replace(' · ', _GAP)}"
        stop = self._stop.markup if not final and job.state in LIVE else ""
        row = (
            '<div style="max-width:640px;padding:2px 0 5px;font-variant-numeric:tabular-nums">'
            f'<div style="padding-bottom:4px">{stop}<span style="{_css("color", colour)}">'
            f"{glyph}&#xFE0E;</span> {words}</div>"
            f"{self._bar(colour)}{self._stages()}{self._fold(final=final)}</div>"
        )
        return {"text/html": row, "text/plain": plain}

    def _bar(self, colour: tuple[str, str]) -> str:
        n_tasks, n_done = self._job.n_tasks, self._pace.count()
        shape = "height:6px;border-radius:3px"
        inside = ""
        if n_tasks is not None:
            width = percent(n_done, n_tasks)
            inside = f'<div style="width:{width}%;{shape};{_css("background", colour)}"></div>'
        return f'<div style="{shape};background:rgba(128,128,128,0.25)">{inside}</div>'

    def _stages(self) -> str:
        """Return a table of a pipeline's stages: where the queue is full, and who is busy."""
        stages = self._job.stages
        if not stages:
            return ""
        names = [(html.escape(s.name), s.workers, s.n_blocks) for s in stages]
        if not self._timed:
            return _table(("stage", "workers", "blocks"), names)
        figures = [(f"{s.queued} of {s.slots}" if s.slots else "", f"{s.busy:.0%}") for s in stages]
        head = ("stage", "workers", "blocks", "queue before it", "busy")
        return _table(head, [(*a, *b) for a, b in zip(names, figures, strict=True)])

    def _fold(self, *, final: bool) -> str:
        """Return what is under the row for those who ask: the workers, and the failures."""
        job = self._job
        parts, names = [], []
        if self._timed:
            parts.append(self._activity() if job.state in LIVE else self._stats())
            names.append(_workers(job.n_workers))
        if job.errors:
            parts.append(_failures(job))
            names.append("failures")
        if not parts:
            return ""
        inside = f"<summary>{' and '.join(names)}</summary>{''.join(parts)}"
        if final:
            return f"<details>{inside}</details>"
        # Each update replaces the elements: a fold that the user has opened is opened again. What
        # is saved in the end has no script.
        name = f"nbshare-{self.output.id}"
        remember = f"(window.nbshareOpen=window.nbshareOpen||{{}})['{name}']=this.open"
        restore = (
            f"if((window.nbshareOpen||{{}})['{name}'])document.getElementById('{name}').open=true"
        )
        return (
            f'<details id="{name}" ontoggle="{remember}">{inside}</details>'
            f"<script>{restore}</script>"
        )

    def _activity(self) -> str:
        workers = self._job.activity
        columns: dict[str, list[object]] = {
            "worker": [worker.pid for worker in workers],
            "now": [_doing(worker) for worker in workers],
            "for": [_short(worker.since_s) if worker.items else "" for worker in workers],
            "reports": [_report(worker) for worker in workers],
            "items done": [worker.n_items for worker in workers],
            "memory": [_memory(worker.memory_bytes) for worker in workers],
        }
        if not any(columns["reports"]):
            del columns["reports"]
        return _table(columns, zip(*columns.values(), strict=True))

    def _stats(self) -> str:
        stats = self._job.stats
        rows = [
            (
                worker.pid,
                worker.n_items,
                _short(worker.starting_s),
                _short(worker.working_s),
                _short(worker.waiting_s),
                _memory(worker.peak_bytes),
            )
            for worker in stats
        ]
        head = ("worker", "items", "start-up", "working", "waiting", "most memory")
        slow = sorted((s for worker in stats for s in worker.slowest), key=lambda s: -s.seconds)
        slowest = [f"{_item(s.index, s.item)}, {_short(s.seconds)}" for s in slow[:_N_SLOWEST]]
        return _table(head, rows) + _list("slowest items", slowest)


def _doing(worker: WorkerActivity) -> str:
    items = worker.items
    if not items:
        return "loading" if worker.report else "waiting"
    if len(items) > 1:
        return f"items {items[0]} to {items[-1]}"
    return _item(items[0], worker.text)


def _report(worker: WorkerActivity) -> str:
    far = "" if worker.fraction is None else f"<b>{int(100 * worker.fraction)} %</b>"
    return " ".join(filter(None, [far, html.escape(_cut(worker.report))]))


def _failures(job: Job) -> str:
    errors = job.errors
    lines = [
        f"item {i}: {html.escape(_cut(f'{type(errors[i]).__name__}: {errors[i]}'))}"
        for i in nsmallest(_MAX_FAILURES, errors)
    ]
    if len(errors) > len(lines):
        lines.append(f"and {len(errors) - len(lines)} more: nbshare.last_job().errors")
    return _list("failures", lines)


def _list(title: str, lines: Iterable[str]) -> str:
    """Return lines under a title; nothing if there are none."""
    listed = "".join(f"<div>&emsp;{line}</div>" for line in lines)
    return f"<div>{title}:</div>{listed}" if listed else ""


def _item(index: int, text: str) -> str:
    return f"item {index}" if text == str(index) else f"item {index}: {html.escape(_cut(text))}"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return an HTML table; its cells are markup already."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>"
        f"<tbody>{lines}</tbody></table>"
    )


def _css(name: str, colour: tuple[str, str]) -> str:
    """Return a style; pages that do not trust the notebook strip the variable of the two."""
    variable, plain = colour
    return f"{name}:{plain};{name}:var({variable},{plain})"


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else duration(seconds)


def _memory(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB" if nbytes else ""


def _workers(n: int) -> str:
    return f"{n} worker" if n == 1 else f"{n} workers"
