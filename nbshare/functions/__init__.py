"""The function that a worker can import: where it comes from, and whether it is fresh."""

from nbshare.functions.files import (
    import_file,
    import_without_cache,
    imported_files,
    register_files,
)
from nbshare.functions.freshness import ImportLog, Stamp, stamp_of
from nbshare.functions.reference import bind_arguments, label_of, resolve

__all__ = [
    "ImportLog",
    "Stamp",
    "bind_arguments",
    "import_file",
    "import_without_cache",
    "imported_files",
    "label_of",
    "register_files",
    "resolve",
    "stamp_of",
]
