"""JupyterLab in a headless Chromium, driven as a person would."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
QUIET = {  # settings, without news, and saving only when asked to
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
LIMIT_S = 120

# One sample for each frame that the browser paints, with the height of the outputs, picture,
# scrolling, row.
RECORDER = """
number => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[number];
  const scroller = cell.closest('.jp-WindowedPanel-outer');
  const samples = window.samples = [];
  const look = () => {
    const outputs = cell.querySelector('.jp-OutputArea');
    const image = cell.querySelector('.jp-OutputArea img');
    samples.push([
      Math.round(outputs.getBoundingClientRect().height),
      image === null ? null : image.complete && image.naturalWidth > 0 ? image.src : '',
      Math.round(scroller.scrollTop),
      outputs.innerText,
    ]);
    window.recording = requestAnimationFrame(look);
  };
  look();
}
"""


def require() -> None:
    """Skip a module of tests if something is missing, found without an import, which is slow."""
    for name in ("playwright", "jupyterlab", "nbconvert"):
        if find_spec(name) is None:
            reason = f"no browser tests without {name}: nbshare[browser]"
            pytest.skip(reason, allow_module_level=True)
    if CHROMIUM is None:
        pytest.skip("no browser tests: Chromium is not installed", allow_module_level=True)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def write_notebook(folder: Path, cells: Iterable[str], tasks: str) -> None:
    """Write a notebook, and the file of its functions next to it."""
    import nbformat

    (folder / "tasks_of_cells.py").write_text(tasks)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "maps.ipynb")


@contextlib.contextmanager
def jupyter_lab(folder: Path, state: Path, **environ: str) -> Iterator[str]:
    """Run a server on this machine only. Yield the address of its Lab, with a token."""
    for name, settings in QUIET.items():
        file = state / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, token = f"http://127.0.0.1:{port}", secrets.token_hex()
    names = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    homes = {name: str(state / name.lower()) for name in names}
    homes["JUPYTERLAB_SETTINGS_DIR"] = str(state / "settings")
    homes["JUPYTERLAB_WORKSPACES_DIR"] = str(state / "workspaces")
    options = f"""--no-browser --allow-root --ip=127.0.0.1 --port={port} --ServerApp.port_retries=0
        --IdentityProvider.token={token} --ServerApp.root_dir={folder} --LabApp.news_url=None
        --ServerApp.terminals_enabled=False --LabApp.expose_app_in_browser=True"""
    with (state / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *options.split()],
            env={**os.environ, **homes, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        _await_server(server, f"{address}/api/status?token={token}", state / "server.log")
        yield f"{address}/lab/tree/{{}}?reset&token={token}"
    finally:
        server.send_signal(signal.SIGTERM)  # it ends its kernels
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _await_server(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.1)
    raise TimeoutError(f"the server did not come up:\n{log.read_text()[-2000:]}")


def pointed(tab: Any, picture: Any, share: float = 0.5) -> str:
    """Move the mouse into a picture, to a share of its width, and half its height.

    Return what the page says of that place.
    """
    tab.mouse.move(0, 0)
    box = {"width": 0}
    while not box["width"]:  # the next frame has replaced the picture
        box = picture.evaluate(
            """image => {
              image.scrollIntoView({block: 'center'});
              const {x, y, width, height} = image.getBoundingClientRect();
              return {x, y, width, height};
            }"""
        )
    tab.mouse.move(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])
    label = tab.locator("[role=tooltip]")
    label.wait_for()
    return str(label.inner_text())


class Page:
    """A notebook that is open in a tab."""

    def __init__(self, tab: Any, address: str) -> None:
        self.tab = tab
        tab.set_default_timeout(LIMIT_S * 1000)
        tab.goto(address)
        tab.wait_for_selector(".jp-Notebook .jp-Cell")

    def await_kernel(self) -> None:
        """Wait until the kernel is there."""
        self.tab.wait_for_function(
            """() => {
              const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext;
              return session?.session?.kernel?.status === 'idle';
            }"""
        )

    def cell(self, number: int) -> Any:
        """Find a cell."""
        return self.tab.locator(".jp-Notebook .jp-Cell").nth(number)

    def run(self, number: int) -> None:
        """Start a cell."""
        self.cell(number).locator(".jp-InputPrompt").click()
        self.tab.keyboard.press("Control+Enter")

    def await_end(self, number: int) -> None:
        """Wait until a cell has run, and its prompt has a number."""
        self.tab.wait_for_function(
            r"""number => /\[\d+\]/.test(document.querySelectorAll('.jp-Notebook .jp-Cell')[number]
                  .querySelector('.jp-InputPrompt').innerText)""",
            arg=number,
        )

    def await_sharp(self, number: int) -> None:
        """Wait until a cell shows a last picture, which has twice the pixels."""
        self.tab.wait_for_function(
            """number => {
              const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[number];
              const image = cell.querySelector('.jp-OutputArea img');
              return image !== null && image.naturalWidth >= 2 * image.width;
            }""",
            arg=number,
        )

    def await_output(self, number: int, text: str) -> None:
        """Wait until what would be saved of a cell says something."""
        self.tab.wait_for_function(
            """([number, text]) => {
              const {content} = window.jupyterapp.shell.currentWidget;
              const {outputs} = content.widgets[number].model;
              return JSON.stringify(outputs.toJSON()).includes(text);
            }""",
            arg=[number, text],
        )

    def pointed(self, number: int, share: float = 0.5) -> str:
        """Move the mouse into a cell's picture. Return what is said of that place."""
        return pointed(self.tab, self.cell(number).locator("img:visible").last, share)

    @contextlib.contextmanager
    def recorded(self, number: int) -> Iterator[list[list[Any]]]:
        """Look at a cell's outputs in every frame. The list is filled at the end."""
        samples: list[list[Any]] = []
        self.tab.evaluate(RECORDER, number)
        yield samples
        self.tab.evaluate("cancelAnimationFrame(window.recording)")
        samples += self.tab.evaluate("window.samples")

    def restart_kernel(self) -> None:
        """Restart the kernel, as the menu does after its question."""
        self.tab.evaluate(
            "() => window.jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()"
        )

    def save(self) -> None:
        """Save the notebook, as Ctrl-S does, and wait until the server has written the file."""
        self.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
