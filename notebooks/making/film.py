"""Film the first cell of the README in JupyterLab, next to the plain loop.

    python notebooks/making/film.py   # writes images/live.webp

It needs ``nbshare[browser]`` and Chromium, and takes about a minute. Loop and parallel map run one
after the other, each with all CPUs to itself, and are put together at the same clock.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from PIL import Image, ImageChops, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import browser  # noqa: E402 - the browser of the tests
from tests.test_readme import fences  # noqa: E402

IMAGES = ROOT / "notebooks" / "images"
WIDTH = 640  # pixels, of the film
SEEN = 740  # pixels of the page that these show: a narrower page has another layout
LIMIT = 1_000_000  # bytes
STEP_S = 0.2  # between frames
LAST_S = 4.0  # for which the last frame stays

STARTED = "parallel_map(abs, range(8), progress=False)  # the workers are there"
LOOP = "%%time\nlight = [brightness(each, x, slits) for each in y]"
LOOK = "type(light).__name__, light.shape"

# Nothing but the cells, and a pointer, which a screenshot would not have.
STYLE = """
  .jp-NotebookPanel-toolbar, .jp-NotebookPanel-footer, .jp-Notebook-footer, .jp-Cell-Placeholder,
  .jp-cell-toolbar, .jp-Collapser { display: none !important }
  .jp-WindowedPanel-outer { padding: 4px !important; overflow: hidden !important }
  .jp-Cell { padding: 2px !important }
  .jp-InputPrompt, .jp-OutputPrompt { flex: 0 0 52px !important; min-width: 52px !important }
  #pointer { position: fixed; z-index: 99999; pointer-events: none; left: -40px }
"""
POINTER = """() => {
  const shape = 'M1 1 L1 17 L5 13 L8 20 L11 19 L8 12 L14 12 Z';
  document.body.insertAdjacentHTML('beforeend', `<svg id="pointer" width="16" height="22">
    <path d="${shape}" fill="black" stroke="white"/></svg>`);
  document.addEventListener('mousemove', event => {
    const {style} = document.querySelector('#pointer');
    style.left = event.clientX + 'px';
    style.top = event.clientY + 'px';
  }, true);
}"""

Frames = list[tuple[float, Image.Image]]  # when, since the cell was started


def notebook(folder: Path, *cells: str) -> None:
    """Write a notebook, and the module of the README next to it."""
    (folder / "slits.py").write_text(fences("python")["slits.py"])
    given = fences("python")["given"]
    browser.write_notebook(folder, [f"{given}\n{STARTED}", *cells], "")


@contextmanager
def opened(chromium: Any, height: int, *cells: str) -> Iterator[Any]:
    """Open a notebook whose first cell, which is out of sight, has run; `height`: of the cells."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as state:
        notebook(Path(name), *cells)
        with browser.jupyter_lab(Path(name), Path(state)) as address:
            page = browser.Page(chromium.new_page(), address.format("maps.ipynb"))
            page.await_kernel()
            start(page, 0)
            page.await_end(0)
            page.tab.evaluate("window.jupyterapp.shell.collapseLeft()")
            page.tab.add_style_tag(content=STYLE)
            page.tab.evaluate(POINTER)
            page.tab.evaluate(
                "document.querySelector('.jp-Notebook .jp-Cell').style.display = 'none'"
            )
            size, box = page.tab.viewport_size, shown(page)
            width = size["width"] + SEEN - box["width"]
            page.tab.set_viewport_size(
                {"width": round(width), "height": round(size["height"] + height - box["height"])}
            )
            page.tab.wait_for_timeout(1000)
            yield page
            page.tab.close()


def shown(page: Any) -> Any:
    """Return where the cells are."""
    return page.tab.locator(".jp-WindowedPanel-outer").bounding_box()


@contextmanager
def filmed(page: Any) -> Iterator[Frames]:
    """Keep each frame that the browser paints."""
    frames: Frames = []
    client = page.tab.context.new_cdp_session(page.tab)

    def keep(event: Any) -> None:
        picture = Image.open(io.BytesIO(base64.b64decode(event["data"]))).convert("RGB")
        frames.append((event["metadata"]["timestamp"] - began, picture))
        client.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    client.on("Page.screencastFrame", keep)
    began = time.time()
    client.send("Page.startScreencast", {"format": "jpeg", "quality": 95})
    yield frames
    client.send("Page.stopScreencast")
    box, size = shown(page), page.tab.viewport_size
    for k, (when, picture) in enumerate(frames):
        zoom = picture.width / size["width"]
        edges = box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]
        scale = WIDTH / box["width"]
        new = WIDTH, round(box["height"] * scale)
        cut = picture.crop([round(zoom * edge) for edge in edges])
        frames[k] = when, cut.resize(new, Image.Resampling.LANCZOS)


def point(page: Any, what: Any) -> None:
    """Move the pointer to something, as a hand would, and press."""
    while (box := what.bounding_box()) is None:  # amid a change of the display
        page.tab.wait_for_timeout(20)
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.tab.mouse.move(*middle, steps=8)
    page.tab.mouse.click(*middle)
    page.tab.wait_for_timeout(300)
    page.tab.mouse.move(SEEN - 80, 0, steps=8)


def await_count(page: Any, pattern: str) -> None:
    """Wait until so many items are done."""
    page.cell(1).locator("b", has_text=re.compile(f"^{pattern}/")).wait_for()


def start(page: Any, number: int) -> None:
    """Run a cell without a click that would show."""
    page.tab.evaluate(
        """number => {
          const {content} = window.jupyterapp.shell.currentWidget;
          content.activeCellIndex = number;
          window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        number,
    )


def loop(page: Any) -> None:
    """Run the loop to its end."""
    start(page, 1)
    page.tab.wait_for_timeout(1000)
    page.await_end(1)
    page.cell(1).get_by_text("Wall time").wait_for()


def parallel(page: Any) -> None:
    """Run the parallel map, unfold its workers, look at the array. Run it again, and press Stop."""
    start(page, 1)
    await_count(page, r"[3-9]\d")
    point(page, page.cell(1).locator("summary"))
    page.tab.wait_for_timeout(1000)
    page.await_end(1)
    page.await_sharp(1)
    start(page, 2)
    page.await_end(2)
    page.tab.wait_for_timeout(2500)
    start(page, 1)
    await_count(page, r"1\d\d")
    point(page, page.cell(1).get_by_role("button", name="Stop"))
    page.await_end(1)
    page.cell(1).get_by_text("stopped").wait_for()
    start(page, 2)
    page.cell(2).get_by_text("MaskedArray").wait_for()


def film(chromium: Any, height: int, act: Callable[[Any], None], *cells: str) -> Frames:
    """Return the frames of a notebook, from the start of its first visible cell."""
    with opened(chromium, height, *cells) as page:
        page.tab.wait_for_timeout(1000)
        with filmed(page) as frames:
            act(page)
            page.tab.wait_for_timeout(2000)  # the last frames are on their way
        return frames


def at(frames: Frames, when: float) -> Image.Image:
    """Return the frame that is seen at a time."""
    return next(frame for t, frame in [*frames[::-1], frames[0]] if t <= when or t == frames[0][0])


def together(above: Frames, below: Frames) -> tuple[list[Image.Image], list[int]]:
    """Return the frames of both, one above the other, with a clock, and their durations in ms."""
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 12)
    (_, first), (_, second) = above[0], below[0]
    shown: list[Image.Image] = []
    durations: list[int] = []
    for k in range(int(max(above[-1][0], below[-1][0]) / STEP_S) + 2):
        frame = Image.new("RGB", (WIDTH, first.height + second.height), "white")
        frame.paste(at(above, k * STEP_S), (0, 0))
        frame.paste(at(below, k * STEP_S), (0, first.height))
        draw = ImageDraw.Draw(frame)
        draw.text((WIDTH - 50, first.height - 20), f"{k * STEP_S:4.1f} s", "#777777", font)
        draw.line([(0, first.height), (WIDTH, first.height)], "#cccccc")
        draw.rectangle([(0, 0), (WIDTH - 1, frame.height - 1)], outline="#cccccc")
        if shown and ImageChops.difference(shown[-1], frame).getbbox() is None:
            durations[-1] += round(1000 * STEP_S)
        else:
            shown.append(frame)
            durations.append(round(1000 * STEP_S))
    durations[-1] += round(1000 * LAST_S)
    return shown, durations


def save(frames: list[Image.Image], durations: list[int], path: Path) -> None:
    """Write an animation, as good as the limit allows."""
    for quality in (80, 65, 50, 35):
        file = io.BytesIO()
        options = {"duration": durations, "loop": 0, "quality": quality, "method": 4}
        frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], **options)
        if file.tell() <= LIMIT:
            path.write_bytes(file.getvalue())
            return
    raise ValueError(f"the film has {file.tell()} bytes; it may have {LIMIT}")


def main() -> None:
    """Make the film."""
    call = fences("python")["slits"].strip()
    with browser.chromium() as chromium:
        above = film(chromium, 128, loop, LOOP)
        below = film(chromium, 600, parallel, call, LOOK)
    save(*together(above, below), IMAGES / "live.webp")


if __name__ == "__main__":
    main()
