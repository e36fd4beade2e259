"""Modules imported by the path of their file, under names that workers know, too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbshare._core.functions.freshness import Stamp, is_as_read, source_of, stamp_of
from nbshare._core.functions.imports import FreshLoader
from nbshare._core.functions.modules import MAINS, file_of, loaded, variables_of
from nbshare._core.tracebacks import shown_from_the_call

if TYPE_CHECKING:
    from pathlib import Path

_paths: dict[str, str] = {}  # module name -> path of its file
_stamps: dict[str, Stamp | None] = {}  # module name -> stamp of its file when it was executed
_importing = threading.RLock()  # so that no thread uses a half-executed module


class _FileFinder:
    """Finds registered modules, so that ``import workers`` and pickle find them, too."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        file = _paths.get(name)
        if file is None or not (os.path.exists(file) or source_of(file)):
            return None
        # Type stubs require load_module, missing in 3.15.
        loader: Any = FreshLoader(name, file) if file.endswith(".py") else None
        return spec_from_file_location(name, file, loader=loader)


class _FolderFinder:
    """Finds packages of registered modules that have no file and that nothing else finds."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        if not any(module.startswith(name + ".") for module in list(_paths)):
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = _folders_of(name + ".")
        return spec


def _folders_of(package: str) -> list[str]:
    """Return the folders of a package without a file, given the registered modules in it."""
    folders = set()
    for name, file in _paths.copy().items():
        below = os.sep + name.removeprefix(package).replace(".", os.sep)
        if name.startswith(package) and below in file:
            folders.add(file[: file.rindex(below)])
    return [*folders]


@shown_from_the_call
def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a module by the path of its file, again if the file has changed.

    Examples
    --------
    A file in any folder:

    >>> import pathlib, tempfile
    >>> from nbshare import import_file
    >>> file = pathlib.Path(tempfile.mkdtemp(), "powers.py")
    >>> _ = file.write_text("def power(x): return x**2")
    >>> import_file(file).power(3)
    9

    Edit it, import it again, and pass its function to the workers:

    >>> import nbshare
    >>> _ = file.write_text("def power(x): return x**3.0")
    >>> nbshare.parallel_map(import_file(file).power, [1, 2, 3])
    SharedArray([ 1.,  8., 27.])

    Parameters
    ----------
    path : str or path-like
        A Python source file, absolute or relative to the current directory. Its folder need not be
        on ``sys.path``.

    Returns
    -------
    module
        The module, named like the file (with a suffix if another module has that name). Pass its
        functions to `parallel_map`, because workers import the same file. The module is the same
        object each time, as with `importlib.reload`, but names that the file no longer defines are
        removed. If this process has imported the file by that name, and the file is known to be
        unchanged since then, that module is returned unchanged. The file is known to be unchanged
        only if nbshare was in use before that import, or if the file is older than the process.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ValueError
        If the file is not a ``.py`` file.
    Exception
        If the import of the module fails, with the same error. The previous module then stays.

    Notes
    -----
    Not safe while other threads run functions of the module, because its names are missing while a
    changed file is imported again.
    """
    from pathlib import Path  # imported late: it takes 6 ms, and workers do not need it

    file = Path(path).expanduser().resolve()
    if file.suffix != ".py":
        raise ValueError(f"{str(path)!r} is not a Python file: its name must end with .py")
    if not file.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r} (looked for {str(file)!r}). Write the module first, "
            "or give a path relative to the notebook's folder."
        )
    with _importing:
        name = _name_for(file)
        stamp = stamp_of(str(file))
        known = sys.modules.get(name)
        if known is not None and stamp is not None and _is_current(known, name, stamp):
            return known
        register_files({name: str(file)})
        _stamps[name] = None  # if this fails, the file is executed again next time
        module = _execute(name)
        _stamps[name] = stamp
        return module


def imported_files() -> dict[str, str]:
    """Return the names and paths of the modules imported by path, for the workers."""
    return dict(_paths)


def register_files(paths: Mapping[str, str]) -> None:
    """Register modules by name and file, so that they can be imported by name."""
    if not any(finder is _FileFinder for finder in sys.meta_path):
        # First, so that no other module can replace one of the same name.
        sys.meta_path.insert(0, _FileFinder)
        # Last, because packages that are installed, or on the path, take precedence.
        sys.meta_path.append(_FolderFinder)
    _paths.update(paths)


class Origins(NamedTuple):
    """The places that this process's modules come from.

    Attributes
    ----------
    path : list of str
        The import path, with relative folders made absolute, as this process searched them.
    files : dict
        The files of imported modules that are not found on this path, by the modules' names: the
        working directory or the path has changed since, or they were loaded by their file.
    """

    path: list[str]
    files: dict[str, str]


_looked_at: tuple[Any, Origins] = None, Origins([], {})


def origins(path: list[str], cwd: str | None) -> Origins:
    """Return the origins of modules, given the import path and the working directory.

    Modules of `import_file` are omitted.
    """
    global _looked_at
    modules = loaded()
    before, found = _looked_at
    state = modules.own, modules.elsewhere, path, cwd
    if state != before:
        folders = _absolute(path, cwd)
        tops = _top_files(modules.own)
        lost = {name: file for name, file in tops.items() if _is_lost(name, file, folders)}
        lost |= {
            name: file
            for name, file in modules.elsewhere.items()
            if os.path.dirname(_place_of(file)) not in folders and not _file_of(name, folders)
        }
        # Pickle imports the package of a module that it names, even if the module is loaded.
        packages = {name: _package_of(name) for name in lost}
        register_files({n: lost[n] for n, p in packages.items() if p and p not in sys.modules})
        found = Origins(folders, lost)
        _looked_at = state, found
    return found


def _absolute(path: list[str], cwd: str | None) -> list[str]:
    folders = []
    for folder in path:
        if isinstance(folder, str):  # Python skips entries of other types
            # Python searches a relative folder where that was at the first search. But '' is the
            # current working directory.
            finder = sys.path_importer_cache.get(folder) if folder else None
            place = getattr(finder, "path", folder)
            if not os.path.isabs(place):
                if cwd is None:  # the directory was removed, so no module is found there
                    continue
                place = os.path.normpath(os.path.join(cwd, place))
            folders.append(place)
    return folders


def _top_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of users' modules, except those inside the folder of a regular package.

    A program may add other folders to the path of a package. `__main__` and modules of
    `import_file` are omitted.
    """
    left_out = {*MAINS, *_stamps}

    def is_inside(name: str, file: str) -> bool:
        package = files.get(_package_of(name))
        if package is None or package == file:  # a package may make modules with its own file
            return package is not None
        return os.path.dirname(_place_of(file)) == os.path.dirname(package)

    return {n: f for n, f in files.items() if n not in left_out and not is_inside(n, f)}


def _is_lost(name: str, file: str, path: Sequence[str]) -> bool:
    """Return whether a search of a path no longer finds the file of a module."""
    found = _file_of(name, path)
    if file.endswith(".py"):
        return found != file
    # A package may have replaced the file by a compiled module.
    return found is None and file.endswith(tuple(EXTENSION_SUFFIXES))


def _place_of(file: str) -> str:
    """Return a module's file, or a package's folder."""
    folder, name = os.path.split(file)
    return folder if name == "__init__.py" else file


def _package_of(name: str) -> str:
    return name.rpartition(".")[0]


def _file_of(name: str, path: Sequence[str]) -> str | None:
    """Return the file that a search of a path finds for a module."""
    spec = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = [*(spec.submodule_search_locations or ())]
    return None if spec is None else spec.origin


def other_module(file: Path) -> str | None:
    """Return the place of a different module that has the plain name of a file, or None."""
    known = sys.modules.get(file.stem)
    try:
        # A loaded module needs no search, and may be of any kind.
        spec = find_spec(file.stem) if known is None else variables_of(known).get("__spec__")
    except (ImportError, ValueError):
        spec = None
    if known is None and spec is None:
        return None
    places = [file_of(known)]
    if type(spec) is ModuleSpec:  # includes the folders of a package without __init__.py
        places += [spec.origin, *(spec.submodule_search_locations or ())]
    place = next(filter(None, places), "a module without a file")
    # Python prefers the file to a folder of that name next to it.
    return None if os.path.realpath(place) in (str(file), str(file.with_suffix(""))) else place


def _name_for(file: Path) -> str:
    for name, path in _paths.copy().items():
        if path == str(file):
            return name
    if file.stem.isidentifier() and other_module(file) is None:
        return file.stem
    import zlib  # late, too

    digest = f"{zlib.crc32(str(file).encode()):08x}"
    return f"{''.join(c if c.isalnum() else '_' for c in file.stem)}_{digest}"


def _is_current(module: ModuleType, name: str, stamp: Stamp) -> bool:
    """Return whether a module is known to be this version of its file.

    A module that the caller imported stays, so that its classes remain the caller's.
    """
    if name in _stamps:
        return _stamps[name] == stamp
    path = file_of(module)  # None if the module is a folder of that name
    return path is not None and is_as_read(path, stamp)


def _execute(name: str) -> ModuleType:
    spec = _FileFinder.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    new = module_from_spec(spec)
    # In the same module object, as with importlib.reload, so that all modules that imported it see
    # the new functions.
    module = sys.modules.setdefault(name, new)
    names, before, fresh = vars(module), dict(vars(module)), dict(vars(new))
    try:
        names.clear()
        names.update(fresh)
        spec.loader.exec_module(module)
    except BaseException as error:
        names.clear()
        names.update(before)
        if module is new:
            del sys.modules[name]
        if isinstance(error, SystemExit):
            raise ImportError(  # noqa: TRY004
                f"{spec.origin} ends the program as soon as it is imported ({error!r}); put the "
                'code of a script below: if __name__ == "__main__":'
            ) from error
        raise
    return module
