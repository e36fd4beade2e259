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
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib.util import resolve_name
from pathlib import Path

from nbshare.checkpoint.digests import digest
from nbshare.functions.files import imported_files
from nbshare.functions.freshness import Stamp, is_installed, stamp_of

DYNAMIC = {"globals", "eval", "exec", "vars"}  # may reach definitions that no name leads to
IMPORTING = {"__import__", "import_module"}  # may import any file
# A class that learns of its subclasses, also as a metaclass, and code that asks for them.
FINDS_SUBCLASSES = re.compile(rb"__(init_subclass|subclasses)__|class \w+\([\w\s.,]*(type|Meta)\b")
NOT_IN_WORKERS = {"__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
IMPORTS = ast.Import | ast.ImportFrom | ast.Pass  # what does nothing else
ASSIGNMENTS = ast.Assign | ast.AnnAssign
ALL = "*"  # as a name: all of a module

Step = tuple[str, str]  # a module, and a name in it; "": its import


def parsed(source: bytes) -> ast.Module:
    """Return the syntax tree of a file, without docstrings."""
    for left in (2, 1, 0):
        try:
            tree = ast.parse(source)
            break
        except SystemError:  # of CPython 3.11, if another thread parses at the same time
            if not left:
                raise
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | DEFINITIONS) and ast.get_docstring(part, clean=False):
            part.body = part.body[1:] or [ast.Pass()]
    return tree


def imports_in(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, and to what, such as ``module.name``.

    The name is ``*`` for all names of a module, and empty for a module that is imported only.
    """
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
                yield "", alias.name
        elif isinstance(part, ast.ImportFrom):
            name = "." * part.level + (part.module or "")
            module = resolve_name(name, package) if part.level and package else name
            for alias in part.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


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


class Module:
    """The statements of a file.

    Attributes
    ----------
    name, path, label : str
        Its name and its file, and what messages call it.
    stamp : Stamp or None
        Of the file.
    source : bytes
        What the file holds.
    statements : list of ast.stmt
        Those that workers run.
    named : dict of str to list of ast.stmt
        The statements that define a name.
    targets : dict of str to list of str
        What imports bind a name to.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path, self.stamp = name, path, stamp_of(path)
        # The plain name of a file that was imported by its path: the other may be the folder's.
        self.label = Path(path).stem if name in imported_files() else name
        is_package = os.path.basename(path) == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        self.folder = os.path.dirname(path) if is_package else None
        self.statements: list[ast.stmt] = []
        self.named: dict[str, list[ast.stmt]] = defaultdict(list)  # those that bind a name
        self.targets: dict[str, list[str]] = defaultdict(list)  # of imports
        self.source = Path(path).read_bytes()
        self.finds_subclasses = FINDS_SUBCLASSES.search(self.source) is not None
        for statement in parsed(self.source).body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) in NOT_IN_WORKERS:
                self.statements += statement.orelse
            else:
                self.statements.append(statement)
        for statement in self.statements:
            for name in bound_by(statement):
                self.named[name].append(statement)
            for name, target in imports_in(statement, self.package):
                self.targets[name].append(target)

    @property
    def subclasses(self) -> list[str]:
        """The classes that have a base."""
        classes = [each for each in self.statements if isinstance(each, ast.ClassDef)]
        return [each.name for each in classes if each.bases]


def bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds, if it is one that only defines them."""
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    nodes = list(ast.walk(statement)) if isinstance(statement, ASSIGNMENTS) else []
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    if any(isinstance(node, ast.Attribute | ast.Subscript) for node in stored):
        return set()  # it changes something else
    return {node.id for node in stored if isinstance(node, ast.Name)}


@lru_cache(maxsize=256)
def definitions_in(path: str, name: str, _stamp: Stamp | None) -> dict[str, tuple[str, str]]:
    """Return the digest and the lines of each definition in a file, by what messages call it."""
    try:
        module = Module("", path)
    except (SyntaxError, ValueError):  # it is compiled
        return {name: (digest(Path(path).read_bytes()).hex(), "")}
    found = {f"{each} in {name}": statements for each, statements in module.named.items()}
    found[f"the top level of {name}"] = [x for x in module.statements if not bound_by(x)]
    return {label: (_digest_of(each), _lines_of(each)) for label, each in found.items()}


def _digest_of(statements: list[ast.stmt], more: str = "") -> str:
    text = "".join(map(ast.unparse, statements)) + more
    return digest(text.encode("utf8", "surrogatepass")).hex()


def _lines_of(statements: list[ast.stmt]) -> str:
    """Return the lines of the last one."""
    if not statements:
        return ""
    first, last = statements[-1].lineno, statements[-1].end_lineno
    return f"line {first}" if first == last else f"lines {first}-{last}"


class Sources:
    """What definitions of own files depend on.

    Attributes
    ----------
    parts : dict of str to str
        The digest of each definition that was reached, by what messages call it.
    lines : dict of str to str
        File and lines of each definition, in the same way.
    older : set of str
        Definitions that are not the ones of their names: a module was imported again.
    imports_any : bool
        Whether files are imported under computed names; these may be among those reached.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}
        self._labels = Counter[str]()
        self._seen: dict[Step, None] = {}
        self.older: set[str] = set()
        self.imports_any = False
        self._finds_subclasses = False

    @property
    def paths(self) -> dict[str, Stamp | None]:
        """The files that were reached, in that order, as they were then."""
        return {module.path: module.stamp for module in self.reached()}

    def reached(self) -> dict[Module, list[str]]:
        """Return the modules that were reached, and which names in each."""
        found = defaultdict[Module, list[str]](list)
        for name, attribute in self._seen:
            if (module := self._modules.get(name)) is not None:
                found[module].append(attribute)
        return found

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
            if not todo and self._finds_subclasses:
                found = [(x.name, each) for x in self.reached() for each in x.subclasses]
                todo = [step for step in found if step not in self._seen]

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            parent = self._module(name.rpartition(".")[0]) if "." in name else None
            path = _own_path(name, parent.folder if parent else None)
            self._modules[name] = module = Module(name, path) if path else None
            if module is not None:
                self._finds_subclasses |= module.finds_subclasses
                self._labels[module.label] += 1
                n = self._labels[module.label]  # two files of other folders may have one name
                module.label += f" ({n})" if n > 1 else ""
        return self._modules[name]

    def _asked_of(self, name: str, attributes: Collection[str] = ()) -> list[Step]:
        """Return what code reaches that asks a module, or a name in one, for attributes."""
        below = [f"{name}.{each}" for each in sorted(attributes) if self.is_own(f"{name}.{each}")]
        steps = [step for each in below for step in self._asked_of(each, attributes)]
        if self._module(name) is None:  # it may be a package without a file
            module, _, attribute = name.rpartition(".")
            return [*steps, (module, attribute)] if module else steps
        has_any = below or any(self._has(name, each, set()) for each in attributes)
        return steps + [(name, each) for each in (sorted(attributes) if has_any else [ALL])]

    def _has(self, name: str, attribute: str, seen: set[str]) -> bool:
        """Whether a module has a name, maybe with all of another; `seen`: modules without it."""
        if name in seen or (module := self._module(name)) is None:
            return False
        seen.add(name)
        if attribute in module.named or attribute in module.targets:
            return True
        return any(self._has(all_of[:-2], attribute, seen) for all_of in module.targets[ALL])

    def _step(self, name: str, attribute: str) -> list[Step]:
        """Note one definition; return what it leads to."""
        above = name.rpartition(".")[0]
        steps = [(above, "")] if above else []  # a package is imported before its modules
        if (module := self._module(name)) is None:
            return steps
        stars = module.targets[ALL]
        if attribute == ALL:
            steps += [(name, each) for each in ["", *module.named, *module.targets]]
            return steps + [step for all_of in stars for step in self._asked_of(all_of)]
        if attribute == "":
            found = [each for each in module.statements if self._acts(module, each)]
            return steps + self._note(module, f"{module.label} (top level)", found)
        steps.append((name, ""))
        found, targets = module.named.get(attribute, []), module.targets.get(attribute, [])
        if not found and not targets:  # it is made when asked for, or comes with all of another
            steps.append((name, "__getattr__"))
            targets = [all_of[:-1] + attribute for all_of in stars]
        steps += [step for target in targets for step in self._asked_of(target)]
        return steps + self._note(module, f"{module.label}.{attribute}", found)

    def _acts(self, module: Module, statement: ast.stmt) -> bool:
        """Whether a statement also matters to code that uses none of the names that it binds."""
        if not isinstance(statement, DEFINITIONS):
            calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
            return calls or not bound_by(statement)
        keywords = statement.keywords if isinstance(statement, ast.ClassDef) else []
        for called in [*statement.decorator_list, *keywords]:  # if it is own, it might register it
            names = [node.id for node in ast.walk(called) if isinstance(node, ast.Name)]
            targets = module.targets.get(names[0], []) if names else []
            places = [place for each in targets for place, _ in self._asked_of(each)]
            if not targets or any(map(self.is_own, places)):
                return True
        return False

    def _note(self, module: Module, label: str, found: list[ast.stmt]) -> list[Step]:
        """Note the digest of statements; return what they lead to."""
        steps, bindings = list[Step](), dict[str, list[str]]()
        for statement in found:
            parts = list(ast.walk(statement))
            asked = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            bases = {part.value for part in parts if isinstance(part, ast.Attribute)}
            names = [part for part in parts if isinstance(part, ast.Name)]
            read = {each.id for each in names}
            steps += [(target, "") for _, target in imports_in(statement, module.package)]
            self.imports_any |= not IMPORTING.isdisjoint(asked | read)
            if not DYNAMIC.isdisjoint(read) or ("sys" in read and "modules" in asked):
                steps.append((module.name, ALL))
            for each in names:
                targets, is_defined = module.targets.get(each.id, []), each.id in module.named
                bindings[each.id] = targets if targets or is_defined else module.targets[ALL]
                if targets and each in bases and not is_defined:
                    steps += [step for target in targets for step in self._asked_of(target, asked)]
                else:
                    steps.append((module.name, each.id))
        if done := [each for each in found if not isinstance(each, IMPORTS)]:
            self.parts[label] = _digest_of(done, str(sorted(bindings.items())))
            self.lines[label] = f"{os.path.basename(module.path)}, {_lines_of(done)}"
        return steps
