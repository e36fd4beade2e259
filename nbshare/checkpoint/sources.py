"""What a function of a file depends on: the definitions that it reaches, in all own files.

Files are read as they are now, as workers run them. Nothing is imported. Of a file these count:

- the definitions that are reached by their names, from the function on, through other own files;
- what its import does besides definitions: statements with calls, and the like.

Files that workers import in other ways, such as by computed names, count as a whole once they
report them (`nbshare.checkpoint.versions`).
"""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib.util import resolve_name
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from nbshare.checkpoint.digests import digest
from nbshare.functions.files import imported_files
from nbshare.functions.freshness import Stamp, is_installed, stamp_of

DYNAMIC = {"globals", "eval", "exec", "vars"}  # may reach definitions that no name leads to
IMPORTING = {"__import__", "import_module"}  # may import any file
NOT_IN_WORKERS = {"__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ASSIGNMENTS = ast.Assign | ast.AnnAssign
ALL = "*"  # as a name: all of a module

Step = tuple[str, str]  # a module, and a name in it; "": its import


def parsed(source: bytes) -> ast.Module:
    """Return the syntax tree of a file, without docstrings."""
    try:
        tree = ast.parse(source)
    except SystemError:  # of CPython 3.11, if another thread parses at the same time
        tree = ast.parse(source)
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | DEFINITIONS) and ast.get_docstring(part, clean=False):
            part.body = part.body[1:] or [ast.Pass()]
    return tree


class Target(NamedTuple):
    """What an import binds a name to."""

    module: str
    name: str | None  # None: the module itself


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
            module = resolve_name(name, package) if part.level and package else name
            for alias in part.names:
                yield alias.asname or alias.name, Target(module, alias.name)


def _own_path(name: str, folder: str | None) -> str | None:
    """Return the file of a module that is edited; None for installed ones, and if there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and ("." not in name or folder):
        specs = (finder.find_spec(name, folder and [folder]) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        file = spec.origin if spec and spec.has_location else None
    if not file or not file.endswith(".py") or not os.path.exists(file) or is_installed(file):
        return None
    return str(file)


class _Module:
    """The statements of a file."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path, self.stamp = name, path, stamp_of(path)
        # The plain name of a file that was imported by its path: the other may be the folder's.
        self.label = Path(path).stem if name in imported_files() else name
        is_package = os.path.basename(path) == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        self.folder = os.path.dirname(path) if is_package else None
        self.named: dict[str, list[ast.stmt]] = defaultdict(list)
        self.always: list[ast.stmt] = []
        self.targets: dict[str, list[Target]] = defaultdict(list)
        self.imported: list[str] = []  # when it is
        for statement in parsed(Path(path).read_bytes()).body:
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
        if not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
            names = list(bound_by(statement))
            for name in names:
                self.named[name].append(statement)
            if not names or not self._only_defines(statement):
                self.always.append(statement)

    def _only_defines(self, statement: ast.stmt) -> bool:
        """Whether a statement matters only to code that uses the names that it binds."""
        if isinstance(statement, DEFINITIONS):  # own decorators and classes might register it
            called = [*statement.decorator_list]
            if isinstance(statement, ast.ClassDef):
                called += [keyword.value for keyword in statement.keywords]
            names = {each.name for each in statement.body if isinstance(each, DEFINITIONS)}
            return "__init_subclass__" not in names and all(map(self._is_foreign, called))
        is_plain = isinstance(statement, ASSIGNMENTS)
        return is_plain and not any(isinstance(node, ast.Call) for node in ast.walk(statement))

    def _is_foreign(self, decorator: ast.expr) -> bool:
        name = next((part.id for part in ast.walk(decorator) if isinstance(part, ast.Name)), "")
        modules = [target.module for target in self.targets.get(name, [])]
        places = [*modules, *(module.partition(".")[0] for module in modules)]  # or its package
        return bool(places) and not any(_own_path(place, None) for place in places)

    @property
    def subclasses(self) -> list[str]:
        """The classes that have a base."""
        named = self.named.items()
        return [k for k, v in named if any(isinstance(x, ast.ClassDef) and x.bases for x in v)]


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds; none if it changes something else too."""
    if isinstance(statement, DEFINITIONS):
        yield statement.name
        return
    if isinstance(statement, ASSIGNMENTS):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        elements = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
        if not all(isinstance(element, ast.Name) for element in elements):
            return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, DEFINITIONS):
            yield node.name


def definitions_in(path: str, name: str) -> dict[str, tuple[str, str]]:
    """Return the digest and the lines of each definition in a file, by what messages call it."""
    return _definitions_in(path, name, stamp_of(path))


@lru_cache(maxsize=256)
def _definitions_in(path: str, name: str, _stamp: Stamp | None) -> dict[str, tuple[str, str]]:
    try:
        module = _Module("", path)
    except (SyntaxError, ValueError):  # it is compiled
        return {name: (digest(Path(path).read_bytes()).hex(), "")}
    found = {f"{each} in {name}": statements for each, statements in module.named.items()}
    found[f"the top level of {name}"] = module.always
    parts = {label: (_digest_of(_text_of(x)), _lines_of(x)) for label, x in found.items()}
    imports = _digest_of(repr(sorted(module.targets.items())))
    return parts | {f"the imports of {name}": (imports, "")}


def _finds_subclasses(part: ast.AST) -> bool:
    """Whether a class learns of its subclasses, or code asks for them."""
    if isinstance(part, ast.ClassDef):  # a metaclass
        return any(ast.unparse(base).endswith(("type", "Meta")) for base in part.bases)
    names = getattr(part, "name", None), getattr(part, "attr", None)
    return not {"__init_subclass__", "__subclasses__"}.isdisjoint(names)


def _text_of(statements: list[ast.stmt]) -> str:
    return "".join(map(ast.unparse, statements))


def _digest_of(text: str) -> str:
    return digest(text.encode("utf8", "surrogatepass")).hex()


def _lines_of(statements: list[ast.stmt]) -> str:
    """Return the lines of the last one."""
    return f"lines {statements[-1].lineno}-{statements[-1].end_lineno}" if statements else ""


class Sources:
    """What definitions of own files depend on.

    Attributes
    ----------
    parts : dict of str to str
        The digest of each definition that was reached, by what messages call it.
    lines : dict of str to str
        File and lines of each definition, in the same way.
    imports_any : bool
        Whether files are imported under computed names; these may be among those reached.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self._modules: dict[str, _Module | None] = {}
        self._labels = Counter[str]()
        self._seen: dict[Step, None] = {}
        self.imports_any = False
        self._has_registry = False  # of subclasses, which code reaches without their names

    @property
    def paths(self) -> dict[str, Stamp | None]:
        """The files that were reached, in that order, as they were then."""
        modules = [self._modules.get(name) for name, _ in self._seen]
        return {module.path: module.stamp for module in modules if module is not None}

    def definitions(self) -> Iterator[tuple[str, str, list[ast.stmt]]]:
        """Yield what was reached: its module, its name, and the statements that bind it."""
        for name, attribute in self._seen:
            if (module := self._modules.get(name)) is not None:
                yield name, attribute, module.named.get(attribute, [])

    def is_own(self, name: str) -> bool:
        """Whether a module is a file that is edited."""
        return self._module(name) is not None

    def label(self, name: str) -> str:
        """Return the name of a module, wherever its file is."""
        module = self._module(name)
        return name if module is None else module.label

    def reach(self, name: str, attributes: Collection[str] = ()) -> None:
        """Note what code depends on that uses a module, and asks something for these attributes."""
        todo = self._asked_of(name, attributes)
        while todo:  # not recursive: the chain of calls may be long
            if (step := todo.pop()) not in self._seen:
                self._seen[step] = None
                todo += self._step(*step)
            if not todo and self._has_registry:
                modules = {name: self._modules.get(name) for name, _ in self._seen}
                found = [(k, each) for k, v in modules.items() if v for each in v.subclasses]
                todo = [step for step in found if step not in self._seen]

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            parent = self._module(name.rpartition(".")[0]) if "." in name else None
            path = _own_path(name, parent.folder if parent else None)
            self._modules[name] = module = _Module(name, path) if path else None
            if module is not None:  # two files of other folders may have one name
                self._labels[module.label] += 1
                n = self._labels[module.label]
                module.label += f" ({n})" if n > 1 else ""
        return self._modules[name]

    def _asked_of(self, name: str, attributes: Collection[str]) -> list[Step]:
        """Return what code reaches that uses a module, and asks something for these attributes."""
        below = [f"{name}.{each}" for each in sorted(attributes) if self.is_own(f"{name}.{each}")]
        steps = [step for each in below for step in self._asked_of(each, attributes)]
        if self._module(name) is None:  # it may be a package without a file
            return steps
        has_any = below or any(self._has(name, each, set()) for each in attributes)
        return steps + [(name, each) for each in (sorted(attributes) if has_any else [ALL])]

    def _has(self, name: str, attribute: str, seen: set[str]) -> bool:
        """Whether a module has a name, maybe with all of another; `seen`: modules without it."""
        if name in seen or (module := self._module(name)) is None:
            return False
        seen.add(name)
        if attribute in module.named or attribute in module.targets:
            return True
        return any(self._has(t.module, attribute, seen) for t in module.targets.get(ALL, []))

    def _along(self, target: Target, attributes: Collection[str] = ()) -> list[Step]:
        """Return what an imported name leads to, if it is asked for these attributes."""
        module, name = target
        if name is None or self.is_own(f"{module}.{name}"):
            return self._asked_of(module if name is None else f"{module}.{name}", attributes)
        return [(module, name)]

    def _step(self, name: str, attribute: str) -> list[Step]:
        """Note one definition; return what it leads to."""
        if (module := self._module(name)) is None:
            return []
        if attribute == ALL:
            others = [(target.module, ALL) for target in module.targets.get(ALL, [])]
            return others + [(name, each) for each in ["", *module.named, *module.targets]]
        if attribute == "":
            steps = [(each, "") for each in [*module.imported, *_above(name)]]
            return steps + self._note(module, f"{module.label} (top level)", module.always)
        found, targets = module.named.get(attribute, []), module.targets.get(attribute, [])
        steps = [(name, "")]
        if not found and not targets:  # it is made when asked for, or comes with all of another
            targets = [t._replace(name=attribute) for t in module.targets.get(ALL, [])]
            steps += [(name, "__getattr__")] if "__getattr__" in module.named else []
        steps += [step for target in targets for step in self._along(target)]
        return steps + self._note(module, f"{module.label}.{attribute}", found)

    def _note(self, module: _Module, label: str, found: list[ast.stmt]) -> list[Step]:
        """Note the digest of statements; return what they lead to."""
        steps, bindings, text = list[Step](), dict[Any, None](), _text_of(found)
        stars = module.targets.get(ALL, [])
        for statement in found:
            parts = list(ast.walk(statement))
            self._has_registry |= any(map(_finds_subclasses, parts))
            asked = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            bases = {part.value for part in parts if isinstance(part, ast.Attribute)}
            names = [part for part in parts if isinstance(part, ast.Name)]
            steps += [(target.module, "") for _, target in imports_in(statement, module.package)]
            read = {each.id for each in names}
            self.imports_any |= not IMPORTING.isdisjoint(asked | read)
            if not DYNAMIC.isdisjoint(read) or ("sys" in read and "modules" in asked):
                steps.append((module.name, ALL))
            for each in names:
                targets = module.targets.get(each.id, [])
                bound = targets or (() if each.id in module.named else stars)
                bindings |= {(each.id, self.label(t.module), t.name): None for t in bound}
                if targets and each in bases and each.id not in module.named:
                    steps += [step for target in targets for step in self._along(target, asked)]
                else:
                    steps.append((module.name, each.id))
        if found:
            in_order = sorted(bindings, key=itemgetter(0))
            self.parts[label] = _digest_of(f"{text}{in_order}")
            self.lines[label] = f"{os.path.basename(module.path)}, {_lines_of(found)}"
        return steps


def _above(name: str) -> list[str]:
    """Return the packages that a module is in."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]
