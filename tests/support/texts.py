"""The texts of a figure that overlap or are cut."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.text import Text

_TOUCH = 0.3  # of a line: the boxes of texts are higher than their letters


def faults(figure):
    """Return the texts of a figure that reach into another one, or beyond the figure."""
    figure.canvas.draw()
    shown = [(text, text.get_window_extent()) for text in _shown(figure)]
    width, height = figure.bbox.size
    cut = [
        text.get_text()
        for text, box in shown
        if min(box.x0, box.y0, width - box.x1, height - box.y1) < -1
    ]
    pairs = [
        (text.get_text(), other.get_text())
        for (text, one), (other, two) in itertools.combinations(shown, 2)
        if not (text.get_rotation() % 90 or other.get_rotation() % 90)  # boxes of turned texts
        and min(one.x1, two.x1) - max(one.x0, two.x0) > 1
        and min(one.y1, two.y1) - max(one.y0, two.y0) > _TOUCH * _line(text, other)
    ]
    return cut + pairs


def _line(*texts):
    return min(text.get_fontsize() for text in texts) * texts[0].figure.dpi / 72


def _shown(figure):
    """Return the texts that are drawn: of ticks only those of the visible range."""
    hidden = set()
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            drawn = axis._update_ticks()
            others = {*axis.majorTicks, *axis.minorTicks}.difference(drawn)
            hidden |= {label for tick in others for label in (tick.label1, tick.label2)}
            hidden |= {tick.label2 for tick in drawn}
    texts = (text for text in figure.findobj(Text) if text.get_visible() and text not in hidden)
    return [text for text in texts if text.get_text().strip()]
