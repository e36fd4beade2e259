"""A drawn figure as a PNG: quickly while it changes, sharp and small in the end."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

DPI = 100  # of the frames that follow each other
_FINAL_DPIS = (200, 150, 100)  # sharp on fine screens, if the file stays small
_MAX_FINAL_BYTES = 90_000


def live_png(canvas: Any) -> bytes:
    """Draw at the resolution of the page."""
    return _encode(_pixels(canvas, DPI), compress_level=1)


def final_png(canvas: Any, palette: list[int] | None) -> bytes:
    """Draw the sharpest picture that makes a small file.

    Parameters
    ----------
    canvas
        Of matplotlib's Agg.
    palette
        All colours, R, G, B, …, if they are known.
    """
    png = b""
    for dpi in _FINAL_DPIS:
        picture = _pixels(canvas, dpi)
        if palette is None and dpi == _FINAL_DPIS[0]:
            png = _encode(picture)
            if len(png) <= _MAX_FINAL_BYTES:
                break
        # A palette makes a third of the bytes, and no eye sees the difference.
        png = _encode(_with_palette(picture, palette))
        if len(png) <= _MAX_FINAL_BYTES:
            break
    return png


def _pixels(canvas: Any, dpi: int) -> Image.Image:
    canvas.figure.set_dpi(dpi)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    canvas.figure.set_dpi(DPI)
    return picture


def _with_palette(picture: Image.Image, colours: list[int] | None) -> Image.Image:
    if colours is None:
        return picture.quantize(256)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def _encode(picture: Image.Image, compress_level: int = 6) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=compress_level)
    return file.getvalue()
