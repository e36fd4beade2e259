"""Run every notebook of the tutorials and save it with its outputs, and write the reference.

    python notebooks/making/rebuild.py           # all of them
    python notebooks/making/rebuild.py 02 05     # those whose names begin so
    python notebooks/making/rebuild.py reference # the reference only

The saved outputs depend on the notebook alone, as far as possible: no widgets, no time
stamps, no paths and metadata of the machine. An error ends the rebuild, except in a cell with the
tag ``raises-exception``.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import nbformat
from bars import ON_ANY_PAGE
from nbclient import NotebookClient
from PIL import Image
from render import reference

from nbshare.__main__ import main as nbshare_command
from nbshare._core.notebook.png import in_palette

FOLDER = Path(__file__).resolve().parent.parent
README_PICTURE = FOLDER / "images" / "horizon.webp"
PICTURE_BYTES = 400_000  # of each picture in a notebook: sharp, and in all colours


def rebuild(path: Path) -> None:
    """Execute a notebook in place, in a kernel of its own."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata.tags} if "tags" in cell.metadata else {}
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.evalue = without_machine(output.evalue)
                output.traceback = list(map(without_machine, output.traceback))
            data = output.get("data", {})
            if "image/png" in data:
                picture = shrink(base64.b64decode(data["image/png"]), PICTURE_BYTES)
                data["image/png"] = base64.b64encode(picture).decode()
    nbformat.write(notebook, path)


def without_machine(line: str) -> str:
    """Return a line of an error without the paths and the name of this machine."""
    for path in (FOLDER, FOLDER.parent):
        line = line.replace(f"{path}/", "")
    return line.replace(f"of host {socket.gethostname()}:", "of host laptop:")


def shrink(png: bytes, limit: int) -> bytes:
    """Return the picture at the largest size that fits the limit, in a palette if it must."""
    if len(png) <= limit:
        return png
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    for scale in (1.0, 0.8, 0.65, 0.5):
        size = (round(picture.width * scale), round(picture.height * scale))
        file = io.BytesIO()
        # Keeps the colours of a colour bar, and what is transparent.
        in_palette(picture.resize(size, Image.Resampling.LANCZOS)).save(file, "PNG", optimize=True)
        if file.tell() <= limit:
            return file.getvalue()
    raise ValueError(f"a picture of {len(png)} bytes cannot be brought down to {limit}")


def draw_readme_picture() -> None:
    """Draw the demo's picture, small and legible on any page."""
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.png"
        with mpl.rc_context(ON_ANY_PAGE):
            status = nbshare_command(["demo", "--out", str(picture)])
        if status != 0:
            sys.exit("the demo failed: the picture is as it was")
        Image.open(picture).save(README_PICTURE, quality=90)


def write_reference() -> None:
    """Write the pages of the reference."""
    shutil.rmtree(FOLDER / "reference", ignore_errors=True)
    (FOLDER / "reference").mkdir()
    for name, text in reference().items():
        (FOLDER / name).write_text(text, "utf-8")


def chosen(beginnings: list[str]) -> list[Path]:
    """Return the notebooks whose names begin so, or all of them if none is given."""
    return [
        path
        for path in sorted(FOLDER.glob("*.ipynb"))
        if not beginnings or path.name.startswith(tuple(beginnings))
    ]


if __name__ == "__main__":
    os.environ["NBSHARE_STATIC"] = "1"  # last frames only, no seconds in the progress displays
    if not sys.argv[1:]:
        draw_readme_picture()
    if sys.argv[1:] in ([], ["reference"]):
        write_reference()
    for notebook_path in chosen(sys.argv[1:]):
        print(f"running {notebook_path.name}", flush=True)  # noqa: T201  a command line prints
        rebuild(notebook_path)
