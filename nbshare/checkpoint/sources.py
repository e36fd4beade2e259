"""What a function of a file depends on: the definitions that it reaches, in all own files.

Files are read as they are now, as workers run them. Nothing is imported. Of a file these count:

- the definitions that are reached by their names, from the function on, through other own files;
- what its import does besides definitions: statements with calls, and the like.

Modules whose names are computed while the program runs are not seen.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from nbshare.checkpoint.digests import digest
from nbshare.functions.files import imported_files
from nbshare.functions.freshness import is_installed

__all__ = ["Sources", "normal_form", "references"]

# Whoever uses them may reach what no name leads to.
DYNAMIC = {"globals", "eval", "exec", "vars", "__import__", "import_module"}
NOT_IN_WORKERS = {"__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ASSIGNMENTS = ast.Assign | ast.AnnAssign
ALL = "*"  # as a name: all of a module


def normal_form(node: ast.AST) -> str:
    """Return source without docstrings, comments and its formatting."""
    for part in ast.walk(node):
        if isinstance(part, DEFINITIONS) and ast.get_docstring(part, clean=False) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return ast.unparse(node)


class Target(NamedTuple):
    """What an import binds a name to."""

    module: str
    name: str | None  # None: the module itself


def references(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield the names that are read, each with the attributes that are asked of it."""
    inner = set()
    for part in ast.walk(node):
        chain: list[str] = []
        base = part
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
        if isinstance(base, ast.Name) and base not in inner:
            inner.add(base)  # the longest chain comes first
            yield base.id, chain


def imports_in(node: ast.AST, package: str) -> Iterator[tuple[str, Target]]:
    """Yield the names that imports bind; of ``from m import *`` the name is ``*``."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, Target(whole, None)
                yield "", Target(alias.name, None)
        elif isinstance(part, ast.ImportFrom):
            name = "." * part.level + (part.module or "")
            module = resolve_name(name, package) if part.level else name
            for alias in part.names:
                yield alias.asname or alias.name, Target(module, alias.name)


class _Module:
    """The statements of a file."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        # The plain name of a file that was imported by its path: the other may be the folder's.
        self.label = Path(path).stem if name in imported_files() else name
        is_package = os.path.basename(path) == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        self.folder = os.path.dirname(path) if is_package else None
        tree = ast.parse(Path(path).read_bytes())
        self.named: dict[str, list[ast.stmt]] = defaultdict(list)
        self.always: list[ast.stmt] = []
        self.targets: dict[str, list[Target]] = defaultdict(list)
        self.imported: list[str] = []  # when it is
        for statement in tree.body[ast.get_docstring(tree) is not None :]:
            self._add(statement)

    def _add(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in NOT_IN_WORKERS:
            for other in statement.orelse:
                self._add(other)
            return
        for name, target in imports_in(statement, self.package):
            self.targets[name].append(target)
            if not isinstance(statement, DEFINITIONS):
                self.imported += [target.module, f"{target.module}.{target.name}"]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return
        names = list(_bound_by(statement))
        for name in names:
            self.named[name].append(statement)
        if not names or not self._only_defines(statement):
            self.always.append(statement)

    def _only_defines(self, statement: ast.stmt) -> bool:
        """Whether a statement matters to those alone who use the names that it binds."""
        if isinstance(statement, DEFINITIONS):
            return all(self._is_installed(decorator) for decorator in statement.decorator_list)
        is_plain = isinstance(statement, ASSIGNMENTS)
        return is_plain and not any(isinstance(node, ast.Call) for node in ast.walk(statement))

    def _is_installed(self, decorator: ast.expr) -> bool:
        """Whether a decorator is not own code, which might register a function somewhere."""
        name = next(references(decorator), ("", []))[0]
        targets = self.targets.get(name, [])
        is_builtin = name in ("property", "staticmethod", "classmethod")
        return is_builtin or any(_own_path(t.module, None) is None for t in targets)


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds."""
    if isinstance(statement, DEFINITIONS):
        yield statement.name
        return
    if isinstance(statement, ASSIGNMENTS):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        elements = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
        if not all(isinstance(element, ast.Name) for element in elements):
            return  # it changes something
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, DEFINITIONS):
            yield node.name


def _own_path(name: str, folder: str | None) -> str | None:
    """Return the file of a module that is edited; None for installed ones, and if there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        if "." in name and folder is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, folder and [folder])
            if spec is not None:
                file = spec.origin if spec.has_location else None
                break
    is_source = bool(file) and str(file).endswith(".py") and os.path.exists(str(file))
    return str(file) if is_source and not is_installed(str(file)) else None


class Sources:
    """What definitions of own files depend on.

    Attributes
    ----------
    parts : dict of str to str
        The digest of each definition that was reached, by what messages call it.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self._modules: dict[str, _Module | None] = {}
        self._seen: set[tuple[str, str]] = set()

    def is_own(self, name: str) -> bool:
        """Whether a module is a file that is edited."""
        return self._module(name) is not None

    def label(self, name: str) -> str:
        """Return the name of a module, wherever its file is."""
        module = self._module(name)
        return name if module is None else module.label

    def reach(self, name: str, attribute: str = ALL) -> None:
        """Note what a definition of a module depends on, or all of it."""
        todo = [(name, attribute)]
        while todo:  # not recursive: the chain of calls may be long
            if (step := todo.pop()) not in self._seen:
                self._seen.add(step)
                todo += self._step(*step)

    def reach_any(self, name: str, attributes: Collection[str]) -> None:
        """Note what code depends on that uses a module, and asks something for these attributes."""
        if (module := self._module(name)) is not None:
            there = {*module.named, *module.targets} & set(attributes)
            there |= {each for each in attributes if self.is_own(f"{name}.{each}")}
            for each in sorted(there) or [ALL]:
                self.reach(*self._along(name, [each])[0])

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            parent = self._module(name.rpartition(".")[0]) if "." in name else None
            path = _own_path(name, parent.folder if parent else None)
            self._modules[name] = _Module(name, path) if path else None
        return self._modules[name]

    def _along(self, name: str, chain: list[str]) -> list[tuple[str, str]]:
        """Return what ``name.a.b`` leads to: through submodules as far as there are."""
        for k, attribute in enumerate(chain):
            if not self.is_own(below := f"{name}.{attribute}"):
                return [(name, chain[k])]
            name = below
        return [(name, ALL)]

    def _step(self, name: str, attribute: str) -> list[tuple[str, str]]:
        """Note one definition; returns what it leads to."""
        if (module := self._module(name)) is None:
            return []
        if attribute == ALL:
            return [(name, each) for each in ["", *module.named, *module.targets]]
        if attribute == "":  # its import
            found, imported = module.always, module.imported
            todo = [(each, "") for each in [*imported, *_above(name)] if self.is_own(each)]
        else:
            found, todo = module.named.get(attribute, []), [(name, "")]
            targets = module.targets.get(attribute, [])
            if not found and not targets:  # nothing of that name, or it comes with all of another
                targets = [t._replace(name=attribute) for t in module.targets["*"]]
            for target in targets:
                todo += self._along(target.module, [target.name] if target.name else [])
        if found:
            text, more = self._described(module, found)
            kind = attribute or "top level"
            self.parts[f"{module.label}.{kind}" if attribute else f"{module.label} ({kind})"] = text
            todo += more
        return todo

    def _described(
        self, module: _Module, found: list[ast.stmt]
    ) -> tuple[str, list[tuple[str, str]]]:
        """Return the digest of statements, and what they lead to."""
        todo: list[tuple[str, str]] = []
        bindings = set()
        for statement in found:
            for name, target in imports_in(statement, module.package):
                todo += [(target.module, "")] if name == "" or target.name else []
            for name, chain in references(statement):
                if name in DYNAMIC or (chain and chain[-1] in DYNAMIC):
                    todo.append((module.name, ALL))
                if name in module.named:
                    todo.append((module.name, name))
                for target in module.targets.get(name, ()):
                    reached = [target.name, *chain] if target.name else chain
                    bindings.add((name, self.label(target.module), target.name))
                    todo += self._along(target.module, reached)
                if name not in module.named and name not in module.targets:
                    todo += [(target.module, name) for target in module.targets.get("*", ())]
        text = "".join(map(normal_form, found)) + repr(sorted(bindings, key=repr))
        return digest(text.encode("utf8", "surrogatepass")).hex(), todo


def _above(name: str) -> list[str]:
    """Return the packages that a module is in."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]
