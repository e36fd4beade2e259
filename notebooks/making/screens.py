"""Photograph cells of the tutorials and the README in JupyterLab, on a transparent background.

    python notebooks/making/screens.py            # all four
    python notebooks/making/screens.py explore    # one of explore, pipeline, running, error

It needs ``nbshare[browser]`` and Chromium, and takes two minutes. The code is that of the tutorials
and the README: run it after a change there. Texts are grey, to be read in light and in dark.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(FOLDER.parent))

from tests.support import browser  # noqa: E402 - the browser of the tests
from tests.test_readme import fences  # noqa: E402

IMAGES = FOLDER / "images"
TRANSPARENT = """
  :root {
    --jp-layout-color0: transparent !important; --jp-layout-color1: transparent !important;
    --jp-ui-font-color1: #757575 !important; --jp-ui-font-color2: #757575 !important;
    --jp-content-font-color1: #757575 !important; --jp-layout-color2: #80808033 !important;
    --jp-border-color1: #999 !important; --jp-border-color2: #999 !important;
    --jp-cell-editor-background: transparent !important;
    --jp-cell-editor-border-color: #999 !important;
    --jp-rendermime-table-row-background: #80808022 !important;
    --jp-rendermime-error-background: #ff404026 !important;
    --jp-mirror-editor-keyword-color: #209050 !important;
    --jp-mirror-editor-number-color: #209050 !important;
    --jp-mirror-editor-string-color: #d0564e !important;
    --jp-mirror-editor-operator-color: #a866d8 !important;
    --jp-mirror-editor-bracket-color: #757575 !important;
    --jp-mirror-editor-variable-color: #757575 !important;
  }
  html, body, .jp-LabShell, #main, .lm-Widget:not(button):not([data-mime-type*=stderr]) {
    background-color: transparent !important;
  }
  .cm-content, .cm-content *:not([class]), .jp-OutputArea pre { color: #757575 }
  .ansi-blue-fg, .ansi-blue-intense-fg, .jp-OutputArea pre a { color: #4a90d9 !important }
  .ansi-yellow-fg { color: #b08000 !important }
  .jp-Collapser, .jp-cell-toolbar, .jp-Notebook-footer { display: none !important }
"""


def cell(tutorial: str, name: str) -> str:
    """Return the source of a cell of a tutorial."""
    (path,) = FOLDER.glob(f"{tutorial}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    return "".join(next(each for each in cells if each["id"] == name)["source"])


WRONG = "parallel_map(brightness, [0.5, 1.0, None], shared={'x': x, 'slits': slits})"
WITHOUT_FOLDER = r"""() => {
  for (const shown of document.querySelectorAll('.jp-OutputArea pre'))
    shown.innerHTML = shown.innerHTML.replace(/\/[\w\/.-]+\/slits.py/g, 'slits.py');
}"""


@contextmanager
def running(chromium: Any, before: str, shown: str, width: int) -> Iterator[Any]:
    """Run two cells next to the tutorials' modules. Yield the page while the second one runs."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as state:
        browser.write_notebook(Path(folder), [before, shown], "")
        path = {"PYTHONPATH": str(FOLDER)}
        with browser.jupyter_lab(Path(folder), Path(state), **path) as address:
            size = {"width": width, "height": 1400}
            context = chromium.new_context(device_scale_factor=2, viewport=size)
            page = browser.Page(context.new_page(), address.format("maps.ipynb"))
            page.await_kernel()
            page.tab.evaluate("window.jupyterapp.shell.collapseLeft()")
            page.tab.add_style_tag(content=TRANSPARENT)
            page.run(0)
            page.await_end(0)
            page.run(1)
            yield page
            context.close()


def photograph(what: Any, name: str) -> None:
    """Save a part of the page."""
    picture = Image.open(io.BytesIO(what.screenshot(omit_background=True)))
    without_line = picture.crop((0, 0, picture.width, picture.height - 4))  # below a cell
    without_line.save(IMAGES / f"{name}.png", optimize=True)


def unfold(page: Any) -> None:
    """Show what is behind the display's fold, and move the pointer away."""
    page.cell(1).locator("summary").click()
    page.tab.mouse.move(0, 0)


def explore(chromium: Any) -> None:
    """Photograph the panel at the 16th of 31 results, of which more are there."""
    before = "import numpy as np\nfrom magnets import snapshot\n"
    before += "from nbshare import LivePlot, map_async"
    shown = cell("08", "explore").replace("2000}", "8000}")  # slower, to be running then
    with running(chromium, before, shown, 740) as page:
        page.cell(1).get_by_text(re.compile(r"(1[6-9]|2\d) of 31 done")).wait_for()
        slider = page.cell(1).get_by_role("slider")
        slider.focus()
        for _ in range(15):
            page.tab.keyboard.press("ArrowRight")
        page.tab.wait_for_timeout(4000)  # for the sharp plot
        photograph(page.cell(1).locator(".nbshare-panel"), "explore")


def pipeline(chromium: Any) -> None:
    """Photograph the stages of a longer recording than the tutorial's."""
    before = cell("12", "record").replace("MINUTES = 3 ", "MINUTES = 8 ")
    with running(chromium, before, cell("12", "run"), 900) as page:
        unfold(page)
        page.cell(1).get_by_text(re.compile(r"\b[89] s elapsed")).wait_for()
        photograph(page.cell(1).locator("[role=group]"), "pipeline")


def image(chromium: Any) -> None:
    """Photograph the pendulums of the tutorial, with finer steps."""
    before = cell("03", "line") + "\n" + cell("03", "image").partition("times = ")[0]
    before += "picture = " + cell("03", "image").partition("plot=")[2].rpartition(",\n)")[0]
    before = before.replace("357)", "714)")
    shown = "times = parallel_map(time_to_flip, upper, shared={'second': lower}, plot=picture)"
    with running(chromium, before, shown, 900) as page:
        unfold(page)
        page.cell(1).locator("b", has_text=re.compile("^1[34]./")).wait_for()
        photograph(page.cell(1), "running")


def error(chromium: Any) -> None:
    """Photograph the error of the README's function."""
    code = fences("python")
    before = f"open('slits.py', 'w').write({code['slits.py']!r})\n{code['given']}\n"
    before += "parallel_map(abs, range(8), progress=False)  # the workers are there"
    with running(chromium, before, WRONG, 900) as page:
        page.cell(1).get_by_text("item 2").first.wait_for()
        page.tab.evaluate(WITHOUT_FOLDER)
        photograph(page.cell(1), "error")


if __name__ == "__main__":
    pictures = {"explore": explore, "pipeline": pipeline, "running": image, "error": error}
    with browser.chromium() as started:
        for chosen in sys.argv[1:] or pictures:
            pictures[chosen](started)
