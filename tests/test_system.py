"""All systems have the names that the package asks one for, though only one of them runs here."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import nbshare

PACKAGE = Path(nbshare.__file__).parent
SYSTEM = PACKAGE / "_core" / "system"
HERE = "nbshare._core.system"
MODULES = "files", "locks", "processes", "sections", "waiting"
# Only a fork server asks for the first ones, only a spawned worker and its owner for the second,
# and files have no owners' names on Windows.
FORKING = {"processes.die_with", "processes.opened_owner"}
SPAWNING = {"processes.Life", "processes.inherited", "processes.spawned"}
MISSING = {
    "linux": SPAWNING,
    "macos": FORKING,
    "windows": {*FORKING, "waiting.pipe", "processes.user_in_words"},
}


@cache
def asked_for():
    """Return the names of `MODULES` that the package uses, as ``module.name``."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if not path.is_relative_to(SYSTEM):
            nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
            imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
            names = [name for node in imports if node.module == HERE for name in node.names]
            modules = {each.asname or each.name: each.name for each in names}
            found |= {
                f"{modules[node.value.id]}.{node.attr}"
                for node in nodes
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if modules.get(node.value.id) in MODULES
            }
    return found


def names_of(tree):
    """Return the names that a module defines or imports."""
    found = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.ImportFrom():
                found |= {each.asname or each.name for each in node.names}
            case ast.Assign() | ast.AnnAssign():
                stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
                found |= {each.id for each in stored if isinstance(each.ctx, ast.Store)}
    return found


def modules_of(system):
    """Return the modules of a system, by name."""
    paths = (SYSTEM / system).glob("*.py")
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@pytest.mark.parametrize("system", MISSING)
def test_a_system_has_what_the_package_asks_for(system):
    """Mypy sees the callers with Linux only, and users of another system would meet the error."""
    modules = modules_of(system)
    has = {f"{name}.{each}" for name in MODULES for each in names_of(modules[name])}
    assert asked_for() - has == MISSING[system]


@pytest.mark.parametrize("system", MISSING)
def test_a_system_imports_only_what_somebody_uses(system):
    """Ruff cannot tell, as most of these imports are for others."""
    needless = set()
    for name, tree in (modules := modules_of(system)).items():
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        taken = {each.asname or each.name for node in imports for each in node.names}
        here = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        others = {
            each.name
            for other in modules.values()
            for node in ast.walk(other)
            if isinstance(node, ast.ImportFrom) and node.module == f"{HERE}.{system}.{name}"
            for each in node.names
        }
        asked = {each for each in taken if f"{name}.{each}" in asked_for()}
        needless |= {f"{name}.{each}" for each in taken - {"annotations"} - here - others - asked}
    assert not needless
