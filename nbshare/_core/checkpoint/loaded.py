"""Checks that the imported code on which results depend is that of the files.

Worker processes import the current files. With ``backend="serial"`` or ``"threads"``, items run the
code that this process has imported, perhaps before the last edit, but their results would count as
those of the new code.
"""

from __future__ import annotations

import sys

from nbshare._core.checkpoint.sources import Sources
from nbshare._core.functions.freshness import is_as_read
from nbshare._core.source.changes import changes
from nbshare.errors import CheckpointError

INSTEAD = "With backend='serial' or 'threads', items run the code that this process imported."


def check_loaded(sources: Sources) -> None:
    """Raise CheckpointError if a file, or a definition in it, differs from the imported code."""
    if sources.older:
        raise CheckpointError(
            f"{min(sources.older)} is an older version, because its module was imported again. "
            "With backend='serial' or 'threads', the older version would run. Get it from the "
            "module again, create its objects again, or remove backend=."
        )
    reached = {own: names for own, names in sources.reached().items() if own.name in sys.modules}
    for own in reached:
        if own.stamp is None or not is_as_read(own.path, own.stamp):
            raise CheckpointError(
                f"{own.path} was edited, perhaps after this process imported it. {INSTEAD} Call "
                f"importlib.reload({own.name}), restart the kernel, or remove backend=."
            )
    found = changes(sys.modules[own.name] for own in reached)
    for own, names in reached.items():
        for change in found.get(own.name, ()):
            if change.name.partition(".")[0] in names:
                raise CheckpointError(
                    f"{change.text}. {INSTEAD} Call importlib.reload({own.name}), or remove "
                    "backend=."
                )
