"""The cell magic ``%%workerfile``: a cell that becomes a module file, which workers can import.

Line n of the file is line n of the cell: the first one, which is the magic's in the cell, is the
mark in the file by which the magic knows what it may overwrite. A transformer of the shell's input
takes the cell as it was typed (other transformers strip blanks), and refuses what is not Python as
IPython does in any cell, before it runs. The rest is the magic's work.
"""

from __future__ import annotations

import contextlib
import functools
import keyword
import linecache
import os
import re
import shlex
import stat
import symtable
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from nbshare.functions.files import import_file, imported_files, other_module

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_MARK = b"# Written by %%workerfile"
# With the encoding: Python would otherwise take one from a comment in the cell's first line.
_FIRST_LINE = _MARK + b" (coding: utf-8): change the cell, not this file.\n"


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%workerfile`` to a shell: what ``%load_ext nbshare`` does."""
    magic = _WorkerFile(shell)
    shell.input_transformers_cleanup.insert(0, magic)
    shell.register_magic_function(magic.run, "cell", "workerfile")


def unload_ipython_extension(shell: Any) -> None:
    """Take ``%%workerfile`` away again: what ``%unload_ext nbshare`` does."""
    magic = shell.magics_manager.magics["cell"].pop("workerfile").__self__
    shell.input_transformers_cleanup.remove(magic)


class _WorkerFile:
    """The magic of one shell, and the transformer of its input that checks the cells."""

    has_side_effects = True  # IPython: not to be asked about a cell that is still being typed

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        """Turn a cell of the magic into the call of `run`, as IPython does it, if it is Python."""
        from IPython.core.inputtransformer2 import leading_empty_lines

        first, *rest = leading_empty_lines(lines) or [""]  # type: ignore[no-untyped-call]
        line = re.match(r"%%workerfile\s(.*)", first)
        if line is None:
            return lines
        cell = "".join(rest)
        self._check(line[1], cell)
        return [f"get_ipython().run_cell_magic('workerfile', {line[1]!r}, {cell!r})\n"]

    def run(self, line: str, cell: str) -> None:
        """Write the cell to a module file, import it, and bind its functions and classes here.

        ::

            %%workerfile NAME [--force]

        The workers of `parallel_map` can import functions from a file, not from a notebook. Run
        the cell again after a change: the notebook and the workers then have the new functions.

        Parameters
        ----------
        NAME
            The file, such as ``workers.py`` or ``lib/workers.py``, in or below the current
            directory or anywhere else; ``.py`` may be left out.
        --force
            Overwrite a file that was not written by ``%%workerfile``, or take a name that another
            module has already.

        Raises
        ------
        UsageError
            The name is no module's name or is taken, the cell is empty, or the file cannot be
            written. It is as it was.
        SyntaxError
            The cell is not Python. The file is as it was. What only IPython understands
            (``!ls``, ``%time``, ``await`` outside a function) belongs into another cell.
        Exception
            What the module raises while it is imported. The file is the new one; the functions
            in the notebook are still those of before.

        Notes
        -----
        Bound are the names in the file's ``__all__`` if it has one, else the functions and
        classes (anything that can be called) that it defines, without those that begin with an
        underscore. The file sees no variable of the notebook and needs its own imports. It is
        imported afresh each time the cell runs. Lines have the numbers that they have in the
        cell, where this line is the first. The file is replaced at once or not at all, and keeps
        its mode.

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
        with self._shown_from(file):
            module = import_file(file)
        names = _public_names(module, source)
        self._shell.push({name: getattr(module, name) for name in names})
        print(f"{shown}: {', '.join(names) or 'nothing public'}")  # noqa: T201  a magic's answer

    def _check(self, line: str, cell: str) -> None:
        """Raise the SyntaxError of a cell, with the place and the line in the cell."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the import warns again
                compile(_source(cell), "<cell>", "exec", dont_inherit=True)
        except SyntaxError as error:
            number = self._shell.execution_count
            error.filename = self._shell.compile.cache(f"%%workerfile {line}\n{cell}", number)
            error.text = linecache.getline(error.filename, error.lineno or 0)
            error.msg = _explained(error)
            raise

    @contextlib.contextmanager
    def _shown_from(self, file: Path) -> Iterator[None]:
        """Have an error's traceback shown from the file on, without the way there."""
        try:
            yield
        except BaseException as error:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != str(file):
                frames = frames.tb_next
            if frames is not None:
                render = self._shell.InteractiveTB.structured_traceback
                error._render_traceback_ = functools.partial(  # type: ignore[attr-defined]
                    render, type(error), error, frames
                )
            raise


def _refused(message: str) -> Exception:
    from IPython.core.error import UsageError  # shown as one line

    return UsageError(message)


def _parse(line: str) -> tuple[str, bool]:
    """Return the file, as the user names it, and whether --force is given."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation that does not end
        words = []
    names = [word for word in words if not word.startswith("-")]
    options = {word for word in words if word.startswith("-")}
    if len(names) != 1 or options - {"--force"}:
        raise _refused("usage: %%workerfile NAME [--force], such as %%workerfile workers.py")
    shown = names[0] if names[0].endswith(".py") else f"{names[0]}.py"
    stem = Path(shown).stem
    if not stem.isidentifier() or keyword.iskeyword(stem):
        better = re.sub(r"\W|^(?=\d)", "_", stem)
        better += "_" if keyword.iskeyword(better) else ""
        raise _refused(
            f"{stem!r} cannot be imported: a module's name has letters, digits and underscores, "
            f"and is no word of Python's. Call it {better}.py."
        )
    return shown, bool(options)


def _check_overwriting(file: Path, shown: str) -> None:
    """Refuse a file that the user has written, and a name that means another module."""
    if file.is_file() and not file.read_bytes().startswith(_MARK):
        raise _refused(
            f"{shown} is there already and was not written by %%workerfile. Choose another name, "
            "or add --force to overwrite it."
        )
    place = other_module(file)
    # Of modules imported by path there may be several of one name: import_file keeps them apart.
    if place is not None and place not in imported_files().values():
        raise _refused(
            f"{shown} would hide the module {file.stem!r} ({place}). Choose another name, such as "
            f"{file.stem}_workers.py, or add --force."
        )


def _source(cell: str) -> bytes:
    """Return the file of a cell."""
    return _FIRST_LINE + cell.encode()


def _explained(error: SyntaxError) -> str:
    """Say what is wrong with a line that would be right in a cell of the notebook."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager: Any = TransformerManager()  # type: ignore[no-untyped-call]
    line = (error.text or "").strip()
    with contextlib.suppress(SyntaxError):
        if "get_ipython()" in manager.transform_cell(line).replace(line, ""):
            return f"{line!r} is IPython, not Python. Put it into a cell of its own"
    if re.search(r"(await|async).* outside", error.msg):
        return f"{error.msg}. A file, unlike a cell, has 'await' only inside an async function"
    return error.msg


def _replace(file: Path, source: bytes) -> None:
    """Replace a file at once or not at all; it keeps its mode."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(source)
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(file.stat().st_mode))
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _public_names(module: ModuleType, source: bytes) -> list[str]:
    """Return ``__all__``, or else the names without underscore of what it defines and can call."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    symbols = symtable.symtable(source.decode(), "<cell>", "exec").get_symbols()
    own = {s.get_name() for s in symbols if s.is_assigned() and not s.is_imported()}
    return [k for k, v in vars(module).items() if k in own and k[0] != "_" and callable(v)]
