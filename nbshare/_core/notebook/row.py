"""The progress display in a notebook: one output, whose last state is saved.

tqdm's own widget is saved in the .ipynb as "0%" forever. This display has three forms:

``live``   with a Stop button, for a page that asks (`notebook.page`)
``saved``  for the notebook's file, without figures, while such a page shows the live one
``last``   one line, when the run is over

Until a page asks, and where none can, the output is replaced with ``live`` without the button.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest

from nbshare._core.engine.stats import WorkerActivity
from nbshare._core.jobs.html_tables import html_table
from nbshare._core.jobs.job import Job
from nbshare._core.memory.budget import rounded
from nbshare._core.messages import counted, cut
from nbshare._core.notebook import page
from nbshare._core.notebook.bar import (
    LIVE,
    Speed,
    Words,
    describe,
    duration,
    stage_lines,
)
from nbshare._core.notebook.environment import is_static, kernel_output

_INTERVAL_S = 1 / 3
_MAX_FAILURES = 10  # most failures that are listed
_SLOW_S, _MUCH = 5.0, 3  # seconds, and multiple of the usual duration, from which an item is slow
_BAR_ROOM = 24  # px, the height of a histogram
_MAX_NAMED = 20  # most retried items that are listed
_MAX_TEXT = 60  # characters of an item or a message
_MAX_ERROR = 200  # characters of an error, over several lines
_LEAST_GAIN_S = 1.0  # the gain of a shorter run is noise
# The row is as wide as a plot, and aligned with code and printed output.
_WIDTH = "max-width:760px;box-sizing:border-box;padding:2px 0 2px 8px"
_HEIGHT, _BAR = 24, 4  # px, the same during and after the run, so nothing jumps, and the bar in it

# The theme's colours, for light and dark pages, or Okabe and Ito's without a theme.
_BLUE = "--jp-brand-color1", "#0072B2"
_GREEN = "--jp-success-color1", "#009E73"
_ORANGE = "--jp-warn-color1", "#D55E00"
_RED = "--jp-error-color1", "#B2182B"
_GREY = "--jp-ui-font-color2", "#757575"
_TEXT = "--jp-ui-font-color1", "inherit"
# Mark and colour, always next to the state's name. No triangle, which would mean a fold.
_LOOKS: dict[str, tuple[str, tuple[str, str]]] = {
    "starting": ("○", _BLUE),
    "running": ("●", _BLUE),
    "done": ("✓", _GREEN),
    "stopped": ("■", _ORANGE),
    "interrupted": ("■", _ORANGE),
    "failed": ("✗", _RED),
}
_UNKNOWN = "was running at its last update; its kernel has ended since"
_THREADS = "This Python has no GIL: backend=&quot;threads&quot; uses all CPUs, too."
_TEXTS = "now", "reports", "stage"  # columns of text
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
_GAP = "&nbsp;" * 3  # like all gaps, in the markup, because GitHub strips styles
# Names without room wrap into a second line, which is hidden.
_HINT = (
    '<div style="flex:0 1 auto;height:{height}px;overflow:hidden">&#8203;'
    '<span style="display:inline-block;white-space:nowrap">{names}</span></div><div>&nbsp;▾</div>'
)
_BUTTON = (
    '<button title="Stop this run now, keep its results, and continue with the notebook"{disabled}'
    ' style="font:inherit;height:24px;padding:0 10px;cursor:pointer;border-radius:3px;'
    "color:var(--jp-ui-font-color1);background:var(--jp-layout-color2);"
    'border:1px solid var(--jp-border-color1)">{text}</button>'
)


class NotebookRow:
    """The progress display of one run, in HTML and in plain text.

    Parameters
    ----------
    job
        The job of the run.
    in_background
        Whether other cells run at the same time.
    has_plot
        Whether a plot follows below. A page shows its values under the pointer.
    """

    def __init__(self, job: Job, *, in_background: bool, has_plot: bool = False) -> None:
        self._job = job
        self._timed = not is_static()  # if not, omit figures that differ from run to run
        self._speed = Speed(job)
        self.output = kernel_output("row")
        # The cell that waits for the run, and may start more of them.
        self._cell = None if in_background else self.output.cell
        self._is_followed = self._is_pressed = False
        self._refusal = ""  # why Stop does not stop the run
        texts = _without_kernel(job, "ended with its kernel"), _without_kernel(job, _UNKNOWN)
        self._script = page.follow(self, self.output.id, *texts)
        self._pointer = page.POINTER if has_plot and self._timed else ""
        self._script += self._pointer if self._script else ""

    def draw(self, *, final: bool) -> float:
        """Show the current state, and return the time until the next call in seconds."""
        bundle = self._bundle(final=final)
        if final:
            page.end(self.output.id, bundle["text/html"])
            # Inside, because the first line must be the row's.
            bundle["text/html"] = (
                bundle["text/html"].removesuffix("</div>") + self._pointer + "</div>"
            )
        self.output.show(lambda: (bundle, None), final=final)
        return _INTERVAL_S

    def for_page(self) -> str:
        """Return the markup for a page that asks, and send the other pages only the last state."""
        self._is_followed = True
        words, stop = self._words(), ""
        if self._job.state in LIVE and not self._refusal:
            text = "stopping…" if self._is_pressed else "Stop"
            stop = _BUTTON.format(disabled=" disabled" * self._is_pressed, text=text)
        return self._markup(words, stop=stop)

    def press(self) -> None:
        """Stop the run on behalf of the Stop button.

        At the first press in a cell, the run returns partial results, and the cell continues. At
        the second, the cell is interrupted, because the user wants to leave a loop.
        """
        if self._is_pressed or self._job.state not in LIVE:
            return
        self._is_pressed = True
        if self._cell is not None and self._cell.was_stopped:
            self._job._interrupt()
            return
        try:
            self._job.cancel()
        except RuntimeError as error:  # another process runs the job
            self._refusal = str(error)
        if self._cell is not None:
            self._cell.was_stopped = True

    def _bundle(self, *, final: bool) -> dict[str, str]:
        if self._is_followed and not final:  # for the notebook's file
            plain = self._line(Words("running at its last update", "", [])).strip()
            says = html.escape(plain)
            markup = f'<div data-saved aria-label="{says}"\nstyle="{_WIDTH}">{says}</div>'
        else:
            words = self._words()
            markup = self._markup(words)
            stages = stage_lines(self._job) if self._timed else []
            plain = "\n".join([self._line(words), *stages])
        if not final:  # a script updates the markup on pages that run scripts
            markup = f"<div>{markup}{self._script}</div>"
        return {"text/html": markup, "text/plain": plain}

    def _words(self) -> Words:
        words = describe(self._job, self._speed, timed=self._timed)
        if words.state == "starting":
            words = words._replace(state=f"starting {counted(self._job.n_workers, 'worker')}…")
        if self.output.is_shared:
            first, last = self.output.first, self.output.number
            is_one = first == last
            which = f"run {last}" if is_one else f"the last of runs {first} to {last}"
            words.details.append(f"{which} of this cell")
        return words

    def _line(self, words: Words) -> str:
        label = f"{self._job.label} " if self._job.label else ""
        return f"{_look(words)[0]} {label}{words}"

    def _markup(self, words: Words, *, stop: str = "") -> str:
        """Return a line, a bar while the job runs, and the details folded under both."""
        mark, colour = _look(words)
        label = f"<b>{html.escape(self._job.label)}</b> " if self._job.label else ""
        # A screen reader reads this aloud at each change, so there are no figures.
        state = f'<span role="status">{label}{words.state}</span>'
        details = [_detail(each) for each in words.details if not each.endswith(" %")]
        pieces = [f"<b>{words.items}</b>", *details]  # the bar shows the percentage
        is_live = self._job.state in LIVE
        activity = self._job._run.activity() if is_live else None
        pieces += _slowest(activity or (), self._job.n_workers, self._speed.rate)
        columns = "".join(_column(piece, keeps_place=is_live) for piece in pieces)
        # U+FE0E makes this a mark, not an emoji. Text takes the theme's colour.
        mark = f'<span style="{_css("color", colour)}">{mark}&#xFE0E;</span>'
        line = f"{mark} {state}{_GAP}{columns}"
        names, inside = self._fold(activity)
        bar = "" if activity is None else self._bar(colour, activity)
        if names:
            hint = _HINT.format(names=names, height=_HEIGHT - _BAR * is_live)
            line = (
                '<details><summary style="display:block;cursor:pointer">'
                f'<div style="display:flex;{_css("color", _GREY)}"><div style="flex:1 0 auto;'
                f'max-width:calc(100% - 2ch);{_css("color", _TEXT)}">{line}</div>{hint}</div>'
                f"{bar}</summary>{inside}</details>"
            )
        else:
            line += bar
        if is_live and self._refusal:
            line += f"<div>{html.escape(self._refusal)}</div>"
        says = html.escape(self._line(words))  # the first line, to which JupyterLab folds outputs
        return (
            f'<div aria-label="{says}"\nrole="group" style="{_WIDTH};display:flex;gap:12px;'
            'font-variant-numeric:tabular-nums">'
            f'<div style="flex:1;line-height:{_HEIGHT - _BAR * is_live}px">{line}</div>{stop}</div>'
        )

    def _bar(self, colour: tuple[str, str], activity: Sequence[WorkerActivity]) -> str:
        job, shape = self._job, f"height:{_BAR}px;border-radius:2px"
        inside = values = ""
        if job.n_items:
            under_way = sum(worker.fraction or 0.0 for worker in activity)  # reported shares
            part = min(1.0, (job.n_done + under_way) / job.n_items)
            inside = f'<div style="width:{part:.1%};{shape};{_css("background", colour)}"></div>'
            values = (
                f' aria-valuenow="{job.n_done}" aria-valuemin="0" aria-valuemax="{job.n_items}"'
            )
        return (
            f'<div role="progressbar" aria-label="{html.escape(self._job.label)}"{values}'
            f' style="{shape};background:rgba(128,128,128,0.25);forced-color-adjust:none">'
            f"{inside}</div>"
        )

    def _stages(self) -> str:
        """Return a table of a pipeline's stages, with their queues and how busy each stage is."""
        stages = self._job.stages
        names = [(html.escape(s.name), s.workers, s.n_blocks) for s in stages]
        if not self._timed:
            return _table(("stage", "workers", "blocks"), names)
        figures = [(f"{s.queued} of {s.slots}" if s.slots else "", f"{s.busy:.0%}") for s in stages]
        head = ("stage", "workers", "blocks", "queue before it", "busy")
        return _table(head, [(*a, *b) for a, b in zip(names, figures, strict=True)])

    def _fold(self, activity: Sequence[WorkerActivity] | None) -> tuple[str, str]:
        """Return the names of the details, such as workers and failures, and their markup."""
        job = self._job
        parts = [("stages", self._stages())] if job.stages else []
        is_known = job.stats if activity is None else activity or not job.n_done
        if self._timed and is_known:
            table = job.stats._repr_html_() if activity is None else self._table_of(activity)
            durations = "" if job._is_reduced else _histogram(job._run.durations())
            parts.append((counted(job.n_workers, "worker"), table + _gain(job) + durations))
        if prints := job.last_prints:
            parts.append(("prints", _list("last prints", map(html.escape, prints))))
        if job.errors and job.state != "failed":  # then the error is raised
            parts.append(("failures", _failures(job)))
        if len(retried := job._run.retried()):
            parts.append(("retries", _list("retried", [_items(retried.tolist())])))
        if hints := job._run.hints:
            parts.append((counted(len(hints), "hint"), _list("hints", map(html.escape, hints))))
        inside = "".join(part for _, part in parts)
        if inside and job._run.has_processes and not _has_gil():
            inside += f'<div style="{_css("color", _GREY)}">{_THREADS}</div>'
        return ", ".join(name for name, _ in parts), inside

    def _table_of(self, workers: Sequence[WorkerActivity]) -> str:
        memory = [worker.memory_bytes for worker in workers]
        columns: dict[str, list[object]] = {
            "stage": [html.escape(worker.stage) for worker in workers],
            "worker": [worker.number for worker in workers],
            "now": [self._doing(worker) for worker in workers],
            "for": [_short(w.since_s) if w.items or w.is_loading else "" for w in workers],
            "reports": [_report(worker) for worker in workers],
            "items done": [worker.n_items for worker in workers],
            "memory": [rounded(n) if n else "" for n in memory],
        }
        del columns["worker" if self._job.stages else "stage"]
        if not any(columns["reports"]):
            del columns["reports"]
        return _table(list(columns), zip(*columns.values(), strict=True))

    def _doing(self, worker: WorkerActivity) -> str:
        items, text = worker.items, worker.text
        if not items:
            return "loading" if worker.is_loading else "waiting"
        if len(items) > 1:
            return f"items {items[0]} to {items[-1]}"
        if self._job.stages:  # the items are blocks
            return f"block {items[0]}"
        if text == str(items[0]):
            return f"item {text}"
        return f"item {items[0]}: {html.escape(_cut(_plain_number(text)))}"


def _gain(job: Job) -> str:
    """Return a line that tells how much faster the workers of a finished run were than one."""
    stats = job.stats
    working_s = sum(worker.working_s for worker in stats)
    there_s = working_s + sum(worker.waiting_s for worker in stats)
    if job.state in LIVE or job.elapsed_s < _LEAST_GAIN_S or len(stats) < 2:
        return ""
    if working_s < job.elapsed_s / 20:  # mostly the start of the workers
        return ""
    gain, busy = working_s / job.elapsed_s, working_s / there_s
    return f"<div>{gain:.1f} × as fast as one after the other, {100 * busy:.0f} % busy</div>"


def _histogram(durations: Sequence[int]) -> str:
    """Return bars for the number of items that took up to 1, 2, 4, 8, ... ns."""
    there = [k for k, n in enumerate(durations) if n]
    if not there:
        return ""
    shown, bars = range(there[0], there[-1] + 1), ""
    ends = [_short(2**k / 2e9) for k in range(shown[0], shown[-1] + 2)]
    per_item, look = _BAR_ROOM / max(durations), _css("background", _GREY)
    for k, low, high in zip(shown, ends, ends[1:], strict=False):
        n = durations[k]
        height = round(per_item * n) + 2 * (n > 0)  # a few items are visible, too
        says = f"{low} to {high}: {counted(n, 'item')}"
        bars += f'<div title="{says}" style="width:16px;height:{height}px;{look}"></div>'
    low, high = ends[0], ends[-1]
    return (
        f'<div role="img" aria-label="durations of items, from {low} to {high}" '
        'style="display:flex;align-items:flex-end;gap:2px;line-height:1.2">'
        f"<div>durations:&emsp;{low}&ensp;</div>"
        f'<div style="display:contents;forced-color-adjust:none">{bars}</div>'
        f"<div>&ensp;{high}</div></div>"
    )


def _without_kernel(job: Job, what: str) -> str:
    """Return a text about a job whose kernel has ended. A detached job may still run."""
    if job._run.stored_in:
        shows = f"nbshare.attach({job._run.stored_in!r}) shows what is stored"
        return f"■ {job.label}: its kernel has ended; {shows}"
    return f"■ {job.label} {what}".replace("  ", " ")


def _look(words: Words) -> tuple[str, tuple[str, str]]:
    """Return the mark and the colour of a state."""
    mark, colour = _LOOKS[words.state.split()[0]]
    return mark, _ORANGE if words.state.startswith("done with") else colour


def _slowest(activity: Sequence[WorkerActivity], n_workers: int, results_per_s: float) -> list[str]:
    """Name the item that has been running longest if it takes much longer than usual."""
    alone = [worker for worker in activity if len(worker.items) == 1 and not worker.stage]
    if not alone or not results_per_s:
        return []
    slowest = max(alone, key=lambda worker: worker.since_s)
    if slowest.since_s < max(_SLOW_S, _MUCH * n_workers / results_per_s):
        return []
    return [f"slowest: item {slowest.items[0]}, {duration(int(slowest.since_s))}"]


def _detail(text: str) -> str:
    """Return a detail as markup, in grey if few users need it."""
    text = html.escape(text)
    is_aside = text.endswith((" retried", "detached"))
    return f'<span style="{_css("color", _GREY)}">{text}</span>' if is_aside else text


def _column(piece: str, *, keeps_place: bool) -> str:
    """Return a column of the progress display as HTML.

    With `keeps_place`, give it a minimum width, so that later columns stay in place when its
    numbers change.
    """
    width = len(re.sub("<[^>]*>", "", piece)) + 1 if keeps_place else 0
    return f'<span style="display:inline-block;min-width:{width}ch">{piece}{_GAP}</span>'


def _plain_number(text: str) -> str:
    """Shorten a number with decimals, and return any other text unchanged."""
    return f"{float(text):.4g}" if re.fullmatch(r"-?\d+\.\d*(e[+-]\d+)?", text) else text


def _report(worker: WorkerActivity) -> str:
    far = "" if worker.fraction is None else f"<b>{int(100 * worker.fraction)} %</b>"
    return " ".join(filter(None, [far, html.escape(_cut(worker.report))]))


def _failures(job: Job) -> str:
    errors = job.errors
    lines = [
        f"item {i}: {html.escape(_cut(f'{type(errors[i]).__name__}: {errors[i]}', _MAX_ERROR))}"
        for i in nsmallest(_MAX_FAILURES, errors)
    ]
    if len(errors) > len(lines):
        lines.append(f"and {len(errors) - len(lines)} more: nbshare.last_job().errors")
    return _list("failures", lines)


def _items(items: Sequence[int]) -> str:
    named = ", ".join(map(str, items[:_MAX_NAMED]))
    n_more = len(items) - _MAX_NAMED
    return f"item{'s' * (len(items) > 1)} {named}" + (f" and {n_more:,} more" if n_more > 0 else "")


def _list(title: str, lines: Iterable[str]) -> str:
    """Return lines under a title."""
    listed = "".join(f"<div>&emsp;{line}</div>" for line in lines)
    return f"<div>{title}:</div>{listed}"


def _cut(text: str, n: int = _MAX_TEXT) -> str:
    return cut(" ".join(text.split()), n)


def _table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return an HTML table of cells that are already markup."""
    figures = "text-align:right;white-space:nowrap"
    styles = ["text-align:left" if name in _TEXTS else figures for name in head]
    return f'<div style="margin-left:-0.5em">{html_table(rows, head, styles)}</div>'


def _css(name: str, colour: tuple[str, str]) -> str:
    """Return a style. The plain colour applies where an untrusted page strips the variable."""
    variable, plain = colour
    return f"{name}:{plain};{name}:var({variable},{plain})"


def _short(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else duration(seconds)
