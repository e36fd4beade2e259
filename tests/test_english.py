"""Docstrings and comments use the verbs and nouns of the trade."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.repo

PACKAGE = Path(__file__).resolve().parent.parent / "nbshare"
FILES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("file", FILES)
def test_its_verbs_have_content_and_its_nouns_are_nouns(file):
    """No docstring begins with Have, Be, Let or Do. At most one "what" stands for a noun."""
    text = (PACKAGE / file).read_text("utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    docs = [ast.get_docstring(node) or "" for node in nodes]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    assert [doc for doc in docs if re.match(r"(Have|Be|Let|Do)\b", doc)] == []
    assert len(re.findall(r"(?<![`*])\bwhat\b(?!`)", "\n".join(docs + comments))) <= 1


@pytest.mark.parametrize("file", FILES)
def test_a_comment_behind_code_is_no_relative_clause(file):
    """It names its thing: "edges of bars", not "of bars"."""
    lines = io.StringIO((PACKAGE / file).read_text("utf-8"))
    comments = [t for t in tokenize.generate_tokens(lines.readline) if t.type == tokenize.COMMENT]
    behind = [token.string for token in comments if token.line.strip() != token.string]
    assert [text for text in behind if re.match(r"# (of|as|whose|which|who)\b", text)] == []


@pytest.mark.parametrize("file", FILES)
def test_reasons_of_errors_are_conditions(file):
    """Each entry of Raises begins with "If", as in NumPy's documentation."""
    nodes = ast.walk(ast.parse((PACKAGE / file).read_text("utf-8")))
    docs = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    entries = [re.search(r"^Raises\n-+\n((?:.+\n?)+)", doc, re.MULTILINE) for doc in docs]
    reasons = [entry[1] for entry in entries if entry]
    assert [text for text in reasons if re.search(r"^\S.*\n +(?!If |\s)", text, re.MULTILINE)] == []


@pytest.mark.parametrize("file", FILES)
def test_messages_of_several_sentences_end_with_a_period(file):
    """One of a single sentence has no period. Those that end with a value are not checked."""
    nodes = [*ast.walk(ast.parse((PACKAGE / file).read_text("utf-8")))]
    calls = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    calls += [x for x in nodes if getattr(getattr(x, "func", 0), "id", 0) in ("warn", "noted")]
    args = [arg for call in calls for arg in getattr(call, "args", ())]
    texts = [ast.unparse(arg).strip("f'\"") for arg in args if not isinstance(arg, ast.Name)]
    whole = [text for text in texts if not text.endswith((")", "}", "}.", "..."))]
    assert [x for x in whole if bool(re.search(r"[.?] [A-Z{]", x)) != x.endswith(".")] == []
