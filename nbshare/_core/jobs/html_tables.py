"""HTML tables for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from nbshare._core.engine.stats import StageStats, WorkerStats
from nbshare._core.memory.budget import rounded
from nbshare._core.wire.failures import name_of_item

S = TypeVar("S", bound=WorkerStats | StageStats)


class StatsTable(list[S]):
    """A list of the stats of workers or stages, shown as a table in a notebook."""

    def _repr_html_(self) -> str:
        names = [*self[0]._fields] if self else []
        if not any(getattr(stats, "n_retried", 0) for stats in self):
            names = [name for name in names if name != "n_retried"]
        rows = [[_figure(name, getattr(stats, name)) for name in names] for stats in self]
        if "pid" in names:  # a reader knows workers by their numbers
            names[0] = "worker"
            rows = [[str(k), *row[1:]] for k, row in enumerate(rows, 1)]
        styles = ["text-align:left" if name == "slowest" else "" for name in names]
        words = [re.sub("^n_|_s$|_bytes$", "", name).replace("_", " ") for name in names]
        return html_table(rows, words, styles)


def html_table(
    rows: Iterable[Iterable[object]], head: Sequence[str] = (), styles: Iterable[str] = ()
) -> str:
    """Return an HTML table. The cells are markup already, and each column has a style."""
    columns = [f' style="{style}"' if style else "" for style in styles]

    def line(kind: str, cells: Iterable[object]) -> str:
        made = zip_longest(cells, columns, fillvalue="")
        return f"<tr>{''.join(f'<{kind}{style}>{cell}</{kind}>' for cell, style in made)}</tr>"

    top = f"<thead>{line('th', head)}</thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"


def _figure(name: str, value: Any) -> str:
    from html import escape  # late, because most runs show no table

    if isinstance(value, tuple):  # the slowest items
        items = (
            f"{name_of_item(slow.index, slow.item)}: {_seconds(slow.elapsed_s)}" for slow in value
        )
        return "<br>".join(map(escape, items))
    if name.endswith("_bytes"):
        return rounded(value) if value else "–"
    if isinstance(value, float):
        return _seconds(value)
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def _seconds(value: float) -> str:
    """Format seconds with two significant digits, at least 0.001 s, or as an integer from 10 s."""
    return f"{value:.0f} s" if value >= 10 else f"{float(f'{value:.3f}'):.2g} s"
