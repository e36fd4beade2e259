"""Whether this process has imported what is in the files now: the key is about the files.

Worker processes import files as they are. With ``backend="serial"`` or ``"threads"``, items run
what was imported here, maybe before the last edit; their results would count as the new code's.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.abc import InspectLoader
from types import CodeType
from typing import Any

from nbshare.checkpoint.code import form_of
from nbshare.checkpoint.digests import Digests
from nbshare.checkpoint.sources import Module, Sources
from nbshare.errors import CheckpointError
from nbshare.functions.definitions import changed_by, codes_in, definitions


def check_loaded(sources: Sources) -> None:
    """Raise CheckpointError if a definition of a file is not the one that was imported here."""
    if sources.older:
        raise CheckpointError(
            f"{min(sources.older)} is an older version: its module was imported "
            "again. With backend='serial' or 'threads' it would run as it was. Take it from the "
            "module again, make its objects anew, or leave out backend=."
        )
    for own, names in sources.reached().items():
        if (module := sys.modules.get(own.name)) is None:
            continue
        changed, has_code = changed_by(own.statements), _Codes(own, module.__loader__).has
        for each in definitions(own.statements, vars(module)):
            is_wanted = each.name.partition(".")[0] in names
            if not is_wanted or (found := each.is_as_written(has_code)):
                continue
            if found is False or not each.is_changed_by(changed):
                raise CheckpointError(
                    f"{own.path} was edited after this process imported it, or {each.name} was "
                    "changed here: it differs. With backend='serial' or 'threads', items run the "
                    f"imported code. Call importlib.reload({own.name}), restart the kernel, or "
                    "leave out backend=."
                )


class _Codes:
    """The code of the functions in a file, as it was read for the key."""

    def __init__(self, own: Module, loader: Any) -> None:
        self._is_known = isinstance(loader, InspectLoader)  # else it may not only compile the file
        self._forms = defaultdict[str, set[bytes]](set)  # of functions, by their qualified names
        if self._is_known:
            for code in codes_in(loader.source_to_code(own.source, own.path)):
                self._forms[code.co_qualname].add(_digest_of(code))

    def has(self, code: CodeType) -> bool | None:
        """Whether the file has a function's code; None if it has no function of that name."""
        if not self._is_known:
            return True
        known = self._forms.get(code.co_qualname)
        return None if known is None else _digest_of(code) in known


def _digest_of(code: CodeType) -> bytes:
    return Digests(str, None).of(form_of(code, []), code.co_name)
