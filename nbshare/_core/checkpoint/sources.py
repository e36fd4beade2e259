"""The dependencies of a function in a file: the definitions that it reaches.

Files are parsed, not imported, in their current version, which workers run. These parts of a file
count:

- definitions that the function reaches by name, also through other files of the user;
- effects of its import besides plain definitions, such as statements with calls, and decorators and
  base classes that may register definitions;
- the whole file, if names do not show its use: as a value, by ``import *``, or by an attribute that
  it does not define.

Other files that workers execute count as a whole when workers report them. So do the files above if
code looks up names at run time (`checkpoint.versions`).
"""

from __future__ import annotations

import ast
import builtins
import os
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from nbshare._core.checkpoint.digests import digest
from nbshare._core.functions.files import imported_files
from nbshare._core.functions.freshness import Stamp, stamp_of
from nbshare._core.functions.imports import found_by
from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import file_of, variables_of
from nbshare._core.source.file import (
    ALL,
    DEFINITIONS,
    OF_PROPERTIES,
    Dependency,
    File,
    bound_by,
    dependency_on,
    dotted_name,
    imports_in,
    names_in,
    parsed_file,
    run_by_import,
    uses_in,
)

# Words in code that looks up names in its own module, and in any loaded module. With a dot, an
# attribute of a module, under any name. `*` if the module is used as a value.
IN_MODULE = {"globals", "locals", "vars", "eval", "exec", "query", "evaluate"}
ANYWHERE = {
    "sys.modules", "sys.*", "gc.*", "__globals__", "__builtins__", "__subclasses__", "_getframe",
    "currentframe", "getmodule", "getclosurevars", "get_type_hints", "tb_frame", "gi_frame",
    "cr_frame", "ag_frame", "f_back", "f_globals", "f_locals", "f_builtins",
    "get_objects", "get_referents", "get_referrers",
}  # fmt: skip
LOADING = {  # words in code that loads any file, or its contents
    "__import__", "import_module", "importlib", "runpy", "pkgutil", "pydoc", "mock",
    "pickle", "allow_pickle", "read_pickle", "cloudpickle", "dill", "joblib", "shelve",
    "dictConfig", "fileConfig", "exec",
}  # fmt: skip
OF_DOCSTRINGS = {"__doc__", "getdoc", "help"}  # words in code that reads docstrings
OF_TEXTS = {
    "getsource", "getsourcelines", "getcomments", "findsource", "get_source", "get_data",
    "linecache", "co_firstlineno", "co_lines", "f_lineno", "tb_lineno",
}  # fmt: skip
OF_PACKAGES = {"pkgutil", "iter_modules", "walk_packages"}  # words in code that lists modules
LOOKING_UP, READING = ANYWHERE | LOADING, OF_DOCSTRINGS | OF_TEXTS
OF_FOLDERS = {"parent", "parents", "dirname", "with_name"}  # words that lead to other paths
NAMES = re.compile(r"[^\W\d]\w*(?:[.:][^\W\d]\w*)*")  # a string that may be a name
# Callables, and bases of classes, without other effects while a module is imported.
PLAIN = {
    "abc", "collections", "collections.abc", "contextlib", "dataclasses", "enum", "functools",
    "math", "pathlib", "re", "typing",
}  # fmt: skip
PLAIN |= {f"numpy.{x}" for x in ("array", "arange", "linspace", "logspace", "zeros", "ones")}
PLAIN |= {f"numba.{name}" for name in ("jit", "njit", "vectorize", "guvectorize")}
NOT_PLAIN = {
    "functools.reduce", "functools.update_wrapper", "dataclasses.replace", "typing.get_type_hints",
}  # fmt: skip
PLAIN |= {name for name, value in vars(builtins).items() if isinstance(value, type)}
PLAIN -= {"type", "map", "filter"}
OF_MEMBERS = {"__init__", "__new__", "_generate_next_value_"}  # members of an enumeration's class
HOOKS = {"__init_subclass__", "__set_name__", "__class_getitem__", "__mro_entries__"}
CALLABLE = DEFINITIONS | ast.Lambda | ast.Attribute | ast.Call


def _own_path(name: str, folder: str | None) -> str | None:
    """Return the file of a module that users edit, or None if it is installed or has no file."""
    file = file_of(sys.modules.get(name))
    if file is None and ("." not in name or folder):
        spec = found_by(sys.meta_path, name, folder and [folder])
        file = spec.origin if spec and spec.has_location else None
    if not file or not file.endswith(".py") or not os.path.exists(file) or is_installed(file):
        return None
    return str(file)


def _places_of(statement: ast.stmt, lines: Mapping[str, list[int]]) -> list[str]:
    """Return, for the names that run with a statement, how often each was bound before it."""
    names = {getattr(part, "id", getattr(part, "name", "")) for part in run_by_import(statement)}
    return [
        f"{name} {sum(line < statement.lineno for line in lines[name])}"
        for name in sorted(names & lines.keys())
    ]


def text_of(source: bytes, reading: Collection[str]) -> bytes:
    """Return the part of a file's text that code with these words can read."""
    if not OF_TEXTS.isdisjoint(reading):
        return source
    parts = [
        part for part in ast.walk(ast.parse(source)) if isinstance(part, ast.Module | DEFINITIONS)
    ]
    return repr([ast.get_docstring(part, clean=False) for part in parts]).encode()


def modules_in(folder: str) -> list[str]:
    """Return the names of the modules in a package's folder."""
    return sorted(info.name for info in pkgutil.iter_modules([folder]))


@lru_cache(maxsize=256)
def definitions_in(
    path: str, name: str, stamp: Stamp | None, reading: frozenset[str]
) -> dict[str, tuple[str, str]]:
    """Return digest and lines of each definition in a file, by its name in messages.

    `reading` is that of `Sources`.
    """
    try:
        file = parsed_file("", path, stamp)
    except (SyntaxError, ValueError):  # such as a compiled module
        return {name: (digest(Path(path).read_bytes()).hex(), "")}
    source = Path(path).read_bytes()
    reading |= {word for word in OF_TEXTS if word.encode() in source}
    texts = {f"the text of {name}": (digest(text_of(source, reading)).hex(), "")} if reading else {}
    found = {f"{each} in {name}": statements for each, statements in file.named.items()}
    found[f"the top level of {name}"] = [x for x in file.statements if not bound_by(x)]
    return texts | {label: (_digest_of(each), _lines_of(each)) for label, each in found.items()}


def _digest_of(statements: list[ast.stmt], more: str = "") -> str:
    text = "".join(map(ast.unparse, statements)) + more
    return digest(text.encode("utf8", "surrogatepass")).hex()


def _lines_of(statements: list[ast.stmt]) -> str:
    """Return the lines of the last of these statements as text."""
    if not statements:
        return ""
    first, last = statements[-1].lineno, statements[-1].end_lineno
    return f"line {first}" if first == last else f"lines {first}-{last}"


class Sources:
    """The dependencies of definitions in files of the user.

    Attributes
    ----------
    parts : dict of str to str
        The digest of each reached definition, by its name in messages.
    lines : dict of str to str
        The file and the lines of each definition, by the same names.
    looks_up : bool
        Whether code looks up names at run time, so that all files that workers execute count as a
        whole.
    reading : set of str
        Words in code that reads docstrings, or texts of files, which then count as well.
    older : set of str
        Definitions whose names lead to newer ones, because a module was imported again.
    """

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self._files: dict[str, File | None] = {}  # by module
        self._labels: dict[str, str] = {}
        self._seen: dict[Dependency, None] = {}
        self._acting: dict[tuple[str, str], bool] = {}  # whether the use of a name may have effects
        self.looks_up, self._lists, self.reading = False, False, set[str]()
        self.older: set[str] = set()

    @property
    def paths(self) -> dict[str, Stamp]:
        """The stamps of the reached files, by path, in the order in which they were reached."""
        return {file.path: file.stamp for file in self.reached()}

    def reached(self) -> dict[File, list[str]]:
        """Return the reached names, by file."""
        found = defaultdict[File, list[str]](list)
        for name, path in self._seen:
            if (file := self._files.get(name)) is not None:
                found[file].append(path.partition(".")[0])
        return found

    def is_own(self, name: str) -> bool:
        """Return whether a module is a file that the user edits."""
        return self._file(name) is not None

    def label(self, name: str) -> str:
        """Return the name of a module for messages, which does not depend on its folder."""
        return name if self._file(name) is None else self._labels[name]

    def name_of(self, module: ModuleType) -> str:
        """Return the name of a module, or the path of one that was loaded by its path."""
        name: str = variables_of(module).get("__name__", "")
        file = file_of(module) or ""
        is_own = file.endswith(".py") and os.path.exists(file) and not is_installed(file)
        if is_own and sys.modules.get(name) is not module:
            known = self._file(name)
            name = name if known is None or known.path == file else file
            if self._file(name) is None:
                self._add(name, file)
        return name

    def reach(self, name: str, path: str = ALL) -> None:
        """Record the dependencies of code that uses `path`, a dotted name, in a module."""
        todo = [(name, path)]
        while todo:  # not recursive, because the chain of calls may be long
            if (each := todo.pop()) not in self._seen:
                self._seen[each] = None
                todo += self._follow(*each)

    def note_words(self, words: set[str], constants: Iterable[Any]) -> list[Dependency]:
        """Record words and constants of code that look up names.

        Return the dependencies that the constants name.
        """
        needed = list[Dependency]()
        for text in constants:
            if isinstance(text, str) and NAMES.fullmatch(text):
                names = re.split("[.:]", text)
                words |= (LOOKING_UP | READING).intersection(names)
                places = [(".".join(names[:k]), names[k]) for k in range(1, len(names))]
                needed += [(own, x) for own, x in places if (m := self._file(own)) and m.has(x)]
        self.looks_up |= not words.isdisjoint(LOOKING_UP)
        self._lists |= not words.isdisjoint(OF_PACKAGES)
        self.reading |= READING & words
        if "__file__" in words and words.isdisjoint(OF_FOLDERS):
            self.reading |= OF_TEXTS
        return needed

    def texts(self) -> dict[str, str]:
        """Return digests of texts of files and of names of modules, if code reads them."""
        found = [*self.reached()] if self.reading or self._lists else []
        texts = dict[str, bytes]()
        for own in found:
            if self.reading:
                text = text_of(Path(own.path).read_bytes(), self.reading)
                texts[f"the text of {self.label(own.name)}"] = text
            if self._lists and own.folder:
                names = repr(modules_in(own.folder)).encode()
                texts[f"the modules of {self.label(own.name)}"] = names
        return {label: digest(text).hex() for label, text in texts.items()}

    def _file(self, name: str) -> File | None:
        if name not in self._files:
            parent = self._file(name.rpartition(".")[0]) if "." in name else None
            self._add(name, _own_path(name, parent.folder if parent else None))
        return self._files[name]

    def _add(self, name: str, path: str | None) -> None:
        self._files[name] = parsed_file(name, path, stamp_of(path)) if path else None
        if path is not None:
            # The plain name of a file that was imported by its path.
            label = known = Path(path).stem if name in imported_files() else name
            for n in count(2):  # files of different folders may share a name
                if label not in self._labels.values():
                    break
                label = f"{known} ({n})"
            self._labels[name] = label

    def _follow(self, name: str, path: str) -> list[Dependency]:
        """Record a definition. Return the dependencies of its use."""
        above, (attribute, _, rest) = name.rpartition(".")[0], path.partition(".")
        needed = [(above, "")] if above else []  # a package is imported before its modules
        file, below = self._file(name), f"{name}.{attribute}"
        targets = file.targets.get(attribute, []) if file else []
        is_known = file is not None and file.has(attribute)
        if attribute not in ("", ALL) and (below in targets or not is_known) and self.is_own(below):
            needed.append((below, rest or ALL))
            is_known = file is None or not file.has("__getattr__")
        if file is None:
            return needed
        if attribute == ALL:
            self.looks_up |= file.folder is not None  # its modules are attributes of it, too
            names = ["", *file.named, *file.targets]
            self._note(file, "(order of names)", [], " ".join(names))
            return needed + [(name, each) for each in names]
        if attribute == "":
            return needed + self._imported(file)
        needed.append((name, ""))
        if not is_known:  # created on access, or imported by ``*``
            needed.append((name, ALL))
        needed += [dependency_on(target, rest) for target in targets if target != below]
        return needed + self._note(file, attribute, file.named.get(attribute, []))

    def _imported(self, file: File) -> list[Dependency]:
        """Record the effects of a module's import, except plain definitions."""
        needed = file.leads_to(ALL)
        found, names, order = list[ast.stmt](), list[str](), list[str]()
        for statement in file.statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                needed += [(target, "") for _, target in imports_in([statement], file.package)]
            if self._acts(file, statement):
                names += (bound := sorted(bound_by(statement)))
                found += [] if bound else [statement]
                order += bound or ["."]
        needed += [(file.name, each) for each in names]
        return needed + self._note(file, "(top level)", found, " ".join(order))

    def _acts(self, file: File, statement: ast.stmt) -> bool:
        """Return whether a statement may have effects other than binding names."""
        match statement:
            case ast.Import() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return False
            case ast.ImportFrom(module=name, names=names):
                return name == "__future__" or names[0].name == ALL
        parts = run_by_import(statement)
        return not bound_by(statement) or any(self._does_more(file, part) for part in parts)

    def _does_more(self, file: File, part: ast.AST) -> bool:
        """Return whether a part of a statement may have other effects when it runs."""
        match part:
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                return self._is_acting(file, dotted_name(part))
            case ast.Attribute() | ast.Subscript(ctx=ast.Store() | ast.Del()):
                return True
            case ast.AugAssign() | ast.With() | ast.Import() | ast.ImportFrom():
                return True
            case ast.Call(func=ast.Name() | ast.Attribute() as func, args=args):
                return not _is_plain(file, func) or self._may_act(file, args)
            case ast.Call():
                return True
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in HOOKS:
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                used = part.decorator_list
            case ast.ClassDef(bases=bases, keywords=keywords):
                used = [base for base in bases if not self._is_own_class(file, base)]
                used += [*part.decorator_list, *(each.value for each in keywords)]
                used_in = [each.id for base in bases for each in names_in(base)]
                homes = [home for name in used_in for home, _ in file.leads_to(name)]
                if any(home.startswith("enum") for home in homes):  # it makes members at once
                    return any(getattr(each, "name", "") in OF_MEMBERS for each in part.body)
            case _:
                return False
        return not all(_is_plain(file, each) for each in used)

    def _may_act(self, file: File, args: list[ast.expr]) -> bool:
        """Return whether arguments may hold a callable, or an object of a user's file."""
        for name in {each.id for arg in args for each in names_in(arg)}:
            parts = [part for each in file.named.get(name, []) for part in ast.walk(each)]
            is_own = any(self.is_own(home) for home, _ in file.leads_to(name))
            if is_own or any(isinstance(part, CALLABLE) for part in parts):
                return True
        return False

    def _is_own_class(self, file: File, base: ast.expr) -> bool:
        """Return whether a base class is in a user's file, which shows the effects of deriving."""
        dotted = dotted_name(base)
        homes = [home for home, _ in file.leads_to(dotted)]
        is_here = dotted.partition(".")[0] in file.named
        return is_here or (bool(homes) and all(map(self.is_own, homes)))

    def _is_acting(self, file: File, dotted: str) -> bool:
        """Return whether a name is bound by a statement with effects."""
        key = file.path, dotted
        if key not in self._acting:
            self._acting[key] = False  # until known, because it may refer to itself
            named = file.named.get(dotted.partition(".")[0], [])
            found = any(self._acts(file, each) for each in named)
            for place, path in file.leads_to(dotted):
                other = self._file(place)
                found |= other is not None and path != ALL and self._is_acting(other, path)
            self._acting[key] = found
        return self._acting[key]

    def _note(
        self, file: File, name: str, found: list[ast.stmt], more: str = ""
    ) -> list[Dependency]:
        """Record the digest of a name's statements, or of a "(part)". Return their dependencies."""
        label = f"{self.label(file.name)}{' ' if name.startswith('(') else '.'}{name}"
        if label in self.parts:
            return []
        needed = list[Dependency]()
        bindings, places = dict[str, list[str]](), list[str]()
        for statement in found:
            parts = [*ast.walk(statement)]
            needed += [(target, "") for _, target in imports_in(parts, file.package)]
            for part in parts:
                if isinstance(part, ast.ClassDef):  # imports in its body are attributes of any name
                    found_in = imports_in(part.body, file.package)
                    needed += [dependency_on(target) for _, target in found_in]
            words = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            words |= LOADING.intersection(x.arg for x in parts if isinstance(x, ast.keyword))
            for use in {*uses_in(statement)}:
                name = use.partition(".")[0]
                bindings[name] = targets = file.targets.get(name, [])
                words |= {name}.union(*(target.split(".") for target in targets))
                words |= {*map(asked_for, file.leads_to(use))}
                if file.has(name):
                    needed.append((file.name, use if targets else name))
            places += _places_of(statement, file.lines)
            needed += self.note_words(words, texts)
            if not words.isdisjoint(ANYWHERE | IN_MODULE):
                needed.append((file.name, ALL))
        if found or more:
            more = f"{sorted(bindings.items())}{places or ''}{more}"
            self.parts[label] = _digest_of(found, more)
            self.lines[label] = f"{os.path.basename(file.path)}, {_lines_of(found)}"
        return needed


def _is_plain(file: File, called: ast.expr) -> bool:
    """Return whether calling an object, or deriving from it, has no effect elsewhere."""

    def is_plain(name: str) -> bool:
        is_known = name in PLAIN or name.rpartition(".")[0] in PLAIN or name.endswith(OF_PROPERTIES)
        return is_known and name not in NOT_PLAIN

    return bool(names := file.full_names(called)) and all(map(is_plain, names))


def asked_for(dependency: Dependency) -> str:
    """Return the module and the attribute of a dependency, in the form of `ANYWHERE`."""
    return f"{dependency[0]}.{dependency[1].partition('.')[0]}"
