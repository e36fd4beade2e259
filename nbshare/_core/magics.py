"""The cell magic ``%%workerfile`` writes a cell to a module file, which workers can import.

Line n of the file is line n of the cell. The first line of the file is a mark, and the magic
overwrites only files that have it. An input transformer of the shell keeps the cell as it was typed
(others strip blanks), and rejects invalid Python before the cell runs, as IPython does. The magic
writes and imports the file.
"""

from __future__ import annotations

import contextlib
import keyword
import linecache
import os
import re
import stat
import symtable
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from nbshare._core.functions.files import import_file, imported_files, other_module
from nbshare._core.system import files, shell
from nbshare._core.tracebacks import shown_as

_MARK = b"# Written by %%workerfile"
# It declares the encoding, because Python could find one in a comment of the cell's first line.
_FIRST_LINE = _MARK + b" (coding: utf-8): change the cell, not this file.\n"


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%workerfile`` to a shell. Called by ``%load_ext nbshare``."""
    magic = _WorkerFile(shell)
    shell.input_transformers_cleanup.insert(1, magic)  # the first one strips empty lines
    shell.register_magic_function(magic.run, "cell", "workerfile")


def unload_ipython_extension(shell: Any) -> None:
    """Remove ``%%workerfile``. Called by ``%unload_ext nbshare``."""
    magic = shell.magics_manager.magics["cell"].pop("workerfile").__self__
    shell.input_transformers_cleanup.remove(magic)


class _WorkerFile:
    """The magic of one shell, and the input transformer that checks its cells."""

    has_side_effects = True  # IPython does not call it for a cell that is still being typed

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        """Turn a cell of the magic into a call of `run`. Raise SyntaxError if it is invalid."""
        first, *rest = lines or [""]
        line = re.match(r"%%workerfile\s(.*)", first)
        if line is None:
            return lines
        cell = "".join(rest)
        self._check(line[1], cell)
        return [f"get_ipython().run_cell_magic('workerfile', {line[1]!r}, {cell!r})\n"]

    def run(self, line: str, cell: str) -> None:
        """Write the cell to a module file, import it, and add its public names to the notebook.

        ::

            %%workerfile NAME [--force]

        The workers of `parallel_map` can import functions from a file, not from a notebook. Run the
        cell again after a change. The notebook and the workers then use the new functions.

        Parameters
        ----------
        NAME
            The file, such as ``workers.py`` or ``lib/workers.py``, in or below the current
            directory or anywhere else. ``.py`` may be omitted. Quote a name with spaces.
        --force
            Overwrite a file that was not written by ``%%workerfile``, or shadow another module.

        Raises
        ------
        UsageError
            If the name is not a valid module name or is taken, the cell is empty, or the file
            cannot be written. The file is unchanged.
        SyntaxError
            If the cell is not valid Python. The file is unchanged. Put IPython syntax (``!ls``,
            ``%time``, ``await`` outside a function) into another cell.
        Exception
            If the import of the module failed. The file is new, but the notebook keeps the old
            functions.

        Notes
        -----
        The notebook receives the names in the file's ``__all__``, or without one, the functions,
        classes and other callables that the file defines, except those that begin with an
        underscore. The file cannot see notebook variables and needs its own imports. It is imported
        again each time the cell runs. Line numbers are those of the cell, whose first line is this
        one. The file is replaced in one step or not at all, and keeps its mode.

        Examples
        --------
        ::

            %load_ext nbshare

            %%workerfile workers.py
            import numpy as np

            def mean_of(path):
                return np.load(path).mean()

            parallel_map(mean_of, paths)
        """
        shown, force = _parse(line)
        self._check(line, cell)
        if not cell.strip():
            raise _refused("the cell is empty. Write the functions below the line of %%workerfile.")
        file = Path(shown).expanduser().resolve()
        if not force:
            _check_overwriting(file, shown)
        source = _source(cell)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _replace(file, source)
        except OSError as error:
            raise _refused(f"{shown} cannot be written: {error}") from None
        linecache.checkcache(str(file))
        try:
            module = import_file(file)
        except BaseException as error:
            self._show_from(file, error)
            raise
        names = _public_names(module, source)
        self._shell.push({name: getattr(module, name) for name in names})
        print(f"{shown}: {', '.join(names) or 'nothing public'}")  # noqa: T201  a magic's answer

    def _check(self, line: str, cell: str) -> None:
        """Raise SyntaxError, with the place in the cell, if the cell is not valid Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the import repeats the warning
                compile(_source(cell), "<cell>", "exec", dont_inherit=True)
        except SyntaxError as error:
            number = self._shell.execution_count
            error.filename = self._shell.compile.cache(f"%%workerfile {line}\n{cell}", number)
            error.text = linecache.getline(error.filename, error.lineno or 0)
            error.msg = _explained(error)
            raise

    def _show_from(self, file: Path, error: BaseException) -> None:
        """Show the traceback of an error only from its frame in the file on."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(file):
            frames = frames.tb_next
        if frames is not None:
            render = self._shell.InteractiveTB.structured_traceback
            shown_as(error, *render(type(error), error, frames))


def _refused(message: str) -> Exception:
    from IPython.core.error import UsageError  # shown as one line

    return UsageError(message)


def _parse(line: str) -> tuple[str, bool]:
    """Return the name of the file as the user typed it, and whether --force is given."""
    try:
        words = shell.words_in(line)
    except ValueError:  # an unclosed quotation
        words = []
    names = [word for word in words if not word.startswith("-")]
    options = {word for word in words if word.startswith("-")}
    if len(names) != 1 or options - {"--force"}:
        raise _refused(
            "usage: %%workerfile NAME [--force], such as %%workerfile workers.py. Quote a NAME "
            "that has spaces."
        )
    shown = names[0] if names[0].endswith(".py") else f"{names[0]}.py"
    stem = Path(shown).stem
    if not stem.isidentifier() or keyword.iskeyword(stem):
        better = re.sub(r"\W|^(?=\d)", "_", stem)
        better += "_" if keyword.iskeyword(better) else ""
        raise _refused(
            f"{stem!r} cannot be imported: a module's name has letters, digits and underscores, "
            f"and is not a Python keyword. Call it {better}.py."
        )
    return shown, bool(options)


def _check_overwriting(file: Path, shown: str) -> None:
    """Raise if the file is the user's own, or would shadow another module."""
    if file.is_file() and not file.read_bytes().startswith(_MARK):
        raise _refused(
            f"{shown} exists and was not written by %%workerfile. Choose another name, "
            "or add --force to overwrite it."
        )
    place = other_module(file)
    # Several modules imported by path may have one name, but import_file keeps them apart.
    if place is not None and place not in imported_files().values():
        raise _refused(
            f"{shown} would shadow the module {file.stem} ({place}). Choose another name, such as "
            f"{file.stem}_workers.py, or add --force."
        )


def _source(cell: str) -> bytes:
    """Return the contents of the file for a cell."""
    return _FIRST_LINE + cell.encode()


def _explained(error: SyntaxError) -> str:
    """Return the message of an error, with an explanation if a cell would allow the line."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager: Any = TransformerManager()  # type: ignore[no-untyped-call]
    line = (error.text or "").strip()
    with contextlib.suppress(SyntaxError):
        if "get_ipython()" in manager.transform_cell(line).replace(line, ""):
            return f"{line!r} is IPython, not Python. Put it into another cell"
    if re.search(r"(await|async).* outside", error.msg):
        return f"{error.msg}. Unlike a cell, a file allows 'await' only inside an async function"
    return error.msg


def _replace(file: Path, source: bytes) -> None:
    """Replace a file in one step or not at all, and keep its mode."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(source)
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(file.stat().st_mode))
        files.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error shows the cause
            temporary.unlink()
        raise


def _public_names(module: ModuleType, source: bytes) -> list[str]:
    """Return ``__all__``, or without it the public callables that the module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    symbols = symtable.symtable(source.decode(), "<cell>", "exec").get_symbols()
    own = {s.get_name() for s in symbols if s.is_assigned() and not s.is_imported()}
    return [k for k, v in vars(module).items() if k in own and k[0] != "_" and callable(v)]
