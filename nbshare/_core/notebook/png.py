"""Pictures as PNG files of moderate size, and colour maps that fit into their palettes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from numpy.typing import NDArray
from PIL import Image

from nbshare._core.notebook.live_plot import CannotDrawError

MAX_BYTES = 600_000  # limit of a file
# Sizes of a palette: the colours of a map, which an image and its colour bar share, and all.
_N_MAP_COLOURS = 192
_N_OPAQUE, _N_ALL = 224, 256
# Median cut is for pictures with more colours, or whose frequent colours cover fewer of the pixels.
_MOST, _LEAST_SHARE = 4096, 0.98


def encode(picture: Image.Image, compress_level: int = 6) -> bytes:
    """Encode a picture as PNG."""
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=compress_level)
    return file.getvalue()


def encode_moderately(
    draw: Callable[[int], Image.Image], resolutions: tuple[int, ...], max_bytes: int
) -> bytes:
    """Return the first PNG that is small enough, or the one of the last resolution."""
    for resolution in resolutions:
        picture = draw(resolution)
        if _n_changes(picture) < max_bytes // 2:  # otherwise it is larger, and encoding takes time
            png = encode(picture)
            if len(png) <= max_bytes:
                break
        png = encode(in_palette(picture))
        if len(png) <= max_bytes:
            break
    return png


def _n_changes(picture: Image.Image) -> int:
    """Return the number of pixels that differ from their left neighbour."""
    pixels = np.ascontiguousarray(picture.convert("RGBA")).view(np.uint32)
    return int(np.count_nonzero(pixels[:, 1:] != pixels[:, :-1]))


def in_palette(picture: Image.Image) -> Image.Image:
    """Return a picture reduced to 256 colours.

    The colours of an image and its colour bar are kept, because values are read from these colours.
    Text and edges have many rare colours, which are replaced by the nearest colours of the palette.
    """
    pixels = np.asarray(picture.convert("RGBA"))
    is_opaque = pixels[..., 3] == 255
    places = np.empty(is_opaque.shape, np.uint8)
    palette = np.zeros((_N_ALL, 4), np.uint8)
    places[is_opaque], palette[:_N_OPAQUE] = _opaque(pixels[is_opaque])
    if not is_opaque.all():
        rest = _quantized(pixels[~is_opaque], Image.Quantize.FASTOCTREE, _N_ALL - _N_OPAQUE)
        places[~is_opaque], palette[_N_OPAQUE:] = rest[0] + _N_OPAQUE, rest[1]
    reduced = Image.fromarray(places)
    reduced.putpalette(palette.tobytes(), "RGBA")
    reduced.info["transparency"] = palette[:, 3].tobytes()
    return reduced


def _opaque(colours: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the index of each colour in a palette, and the palette."""
    codes = colours[:, :3] @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    each, where, counts = np.unique(codes, return_inverse=True, return_counts=True)
    if len(each) > _MOST:
        return _quantized(colours, Image.Quantize.MEDIANCUT, _N_OPAQUE)
    rgb = (each[:, np.newaxis] >> np.array([16, 8, 0], np.uint32) & 255).astype(np.int16)
    kept = np.argsort(-counts, kind="stable")[:_N_OPAQUE]
    if counts[kept].sum() < _LEAST_SHARE * len(codes):
        return _quantized(colours, Image.Quantize.MEDIANCUT, _N_OPAQUE)
    nearest = np.array([abs(rgb[kept] - one).max(axis=1).argmin() for one in rgb], np.uint8)
    palette = np.column_stack([rgb[kept], np.full(len(kept), 255)])
    return nearest[where], _filled(palette, _N_OPAQUE)


def _quantized(
    colours: NDArray[np.uint8], method: Image.Quantize, n: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    mode = "RGBA" if method == Image.Quantize.FASTOCTREE else "RGB"
    strip: Any = np.ascontiguousarray(colours[np.newaxis, :, : len(mode)])
    reduced = Image.fromarray(strip).quantize(n, method=method, dither=Image.Dither.NONE)
    flat = np.array(reduced.getpalette("RGBA"), np.uint8).reshape(-1, 4)[:n]
    return np.asarray(reduced).ravel(), _filled(flat, n)


def _filled(palette: NDArray[Any], n: int) -> NDArray[np.uint8]:
    """Pad a palette to n colours."""
    return np.pad(palette, ((0, n - len(palette)), (0, 0))).astype(np.uint8)


def colour_map(name: str | Colormap) -> Colormap:
    """Return a colour map that fits into a palette, with the 8-bit colours of a file.

    An image and its colour bar therefore have the same colours.
    """
    try:
        whole = mpl.colormaps[name] if isinstance(name, str) else name
    except KeyError as error:
        raise CannotDrawError(f"LivePlot(cmap={name!r}): {error.args[0]}") from None
    colours = whole((np.arange(_N_MAP_COLOURS) + 0.5) / _N_MAP_COLOURS)
    return ListedColormap(np.round(colours * 255) / 255).with_extremes(bad="none")
