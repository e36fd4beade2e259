"""The reference is what the docstrings say, and shows every public name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbshare

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TEXT = (FOLDER / "reference.md").read_text("utf-8")


def test_the_reference_is_that_of_the_docstrings():
    """After a docstring has changed: ``python notebooks/rebuild.py reference``."""
    rendered = runpy.run_path(str(FOLDER / "render.py"))["reference"]()
    assert rendered == TEXT


def test_every_public_name_has_an_entry():
    """With its own heading."""
    headings = set(re.findall(r"^### (\w+)$", TEXT, re.MULTILINE))
    names = {*nbshare.__all__, *nbshare.errors.__all__, *nbshare.types.__all__}
    assert headings >= names - {"errors", "types"}


def test_its_links_lead_to_headings():
    """No link to a name that is not there."""
    headings = {found.lower() for found in re.findall(r"^#+ `?([\w ]+)", TEXT, re.MULTILINE)}
    targets = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert {target.replace("-", " ") for target in targets} <= headings
