"""The function that a worker can import: where it comes from, and whether it is fresh."""

from nbshare.functions.files import import_file, imported_files, other_module, register_files
from nbshare.functions.freshness import ImportLog, Stamp, is_installed, stamp_of
from nbshare.functions.imports import import_as_the_caller, overridden_names
from nbshare.functions.pickling import MAIN_PART, dumps, dumps_apart
from nbshare.functions.reference import bind_arguments, label_of, resolve
from nbshare.functions.sources import Snapshot, own_files, use_snapshot

__all__ = [
    "MAIN_PART",
    "ImportLog",
    "Snapshot",
    "Stamp",
    "bind_arguments",
    "dumps",
    "dumps_apart",
    "import_as_the_caller",
    "import_file",
    "imported_files",
    "is_installed",
    "label_of",
    "other_module",
    "overridden_names",
    "own_files",
    "register_files",
    "resolve",
    "stamp_of",
    "use_snapshot",
]
