"""The reference is what the docstrings say, and shows every public name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import nbshare
from nbshare._core.wire.settings import SETTINGS

pytestmark = pytest.mark.repo

pytest.importorskip("numpydoc")
FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
RENDER = runpy.run_path(str(FOLDER / "making" / "render.py"))
PAGES = {
    page: page.read_text("utf-8")
    for page in [FOLDER / "reference.md", *(FOLDER / "reference").glob("*.md")]
}
DETAILS = FOLDER / "details.md"  # the page that is written by hand


def test_the_reference_is_that_of_the_docstrings():
    """After a docstring has changed, run ``python notebooks/making/rebuild.py reference``."""
    rendered = RENDER["reference"]()
    assert {FOLDER / name: text for name, text in rendered.items()} == PAGES


def test_every_public_name_has_an_entry():
    """With its own heading, on one page."""
    headings = re.findall(r"^## (\w+)$", "\n".join(PAGES.values()), re.MULTILINE)
    names = {*nbshare.__all__, *nbshare.errors.__all__, *nbshare.types.__all__}
    assert sorted(headings) == sorted({*headings} | (names - {"errors", "types"}))


def test_its_links_lead_somewhere():
    """To a file, and there to a heading or a mark, also those of its index to single arguments."""
    pages = PAGES | {DETAILS: DETAILS.read_text("utf-8")}
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            path, _, place = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), (page.name, target)
            if place:
                marks = re.findall(r'<a id="([^"]+)">', pages[file])
                heads = re.findall(r"^#+ (.+)$", pages[file], re.MULTILINE)
                assert place in {*marks, *(head.lower().replace(" ", "-") for head in heads)}, (
                    target
                )


def test_the_table_of_workers_has_what_they_take_over():
    """Each setting of the list that calls carry, and no other, with those of the machine."""
    rows = re.findall(r"^\| (.+) \| the same \| (.*)\|$", DETAILS.read_text("utf-8"), re.MULTILINE)
    told = {name: "own" in note for names, note in rows for name in names.split(", ")}
    settings = [s for s in SETTINGS.values() if s.told]
    carried = {name: s.is_local for s in settings for name in s.told.split(", ")}
    assert told == {"environment": True, **carried}


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("DataFrame: rows as items", "rows of a table as items"),
        ("results: an array or a list", "list"),
        ("colour limits", "colour"),
        ("lengths of iterables", "lengths that differ"),
        ("cost of a plot", "15 %"),
        ("what workers inherit", "working directory"),
    ],
)
def test_what_readers_look_for_is_in_the_index(topic, words):
    """Its link leads to a text that tells it."""
    (line,) = [line for line in PAGES[FOLDER / "reference.md"].splitlines() if topic in line]
    path, _, place = re.search(r"\(([^()]+)\)$", line)[1].partition("#")
    text = (FOLDER / path).read_text("utf-8")
    found = re.search(rf'<a id="{place}">|^## {place}$', text, re.MULTILINE | re.IGNORECASE)
    assert words in text[found.start() :][:1500]
