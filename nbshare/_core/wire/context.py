"""The settings and the environment that workers copy from the caller."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, NamedTuple

from nbshare._core.functions.files import imported_files, origins
from nbshare._core.functions.imports import overridden_names
from nbshare._core.wire.settings import carried


class Context(NamedTuple):
    """The settings that a worker copies from its caller."""

    # Fixed for a worker, because modules depend on them when imported. A change needs new workers.
    environ: dict[str, str]
    path: list[str]
    files: dict[str, str]  # see `functions.files.Origins`
    argv: list[str]
    # For each call: the settings of `wire.settings`, pickled.
    settings: bytes
    sources: bytes | None = None  # the files of another machine, see `functions.freshness`


_last: tuple[Any, Context] = (
    None,
    Context({}, [], {}, [], b""),
)  # the settings, raw and as a Context


def current_context() -> Context:
    """Return the current context of the caller."""
    global _last
    managers: Any = sys.modules.get("multiprocessing.managers")  # its proxies need the key
    environ = encoded_environ()
    settings = carried()
    path, files = origins(settings["path"], settings["cwd"])
    found = {
        **settings,
        "path": path,
        "files": {**imported_files(), **files},
        "overridden": overridden_names(),
        "authkey": managers and bytes(managers.process.current_process().authkey),
    }
    before, context = _last
    if (environ, found) != before:
        context = Context(dict(os.environ), path, files, found["argv"], pickle.dumps(found))
        _last = (environ, found), context
    return context


def encoded_environ() -> dict[Any, Any]:
    """Return a copy of the encoded environment, because decoding takes 30 µs."""
    return dict(getattr(os.environ, "_data", os.environ))
