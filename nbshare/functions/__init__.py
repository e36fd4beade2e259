"""The function that a worker can import: where it comes from, and whether it is fresh."""

from nbshare.functions.files import import_file, imported_files, register_files
from nbshare.functions.freshness import Stamp, module_stamps, stamp_of
from nbshare.functions.reference import bind_arguments, label_of, resolve

__all__ = [
    "Stamp",
    "bind_arguments",
    "import_file",
    "imported_files",
    "label_of",
    "module_stamps",
    "register_files",
    "resolve",
    "stamp_of",
]
