"""Advice for objects that cannot be sent to another process, by their class."""

from __future__ import annotations

_BETWEEN_PROCESSES = (
    "Use nbshare.SharedLock as a lock, nbshare.zeros for values and flags, nbshare.RingBuffer as "
    "a queue, or return results instead."
)
_SYNCHRONIZED = "threading", "_thread", "multiprocessing", "queue", "_queue"
_FILES = (
    "_io",
    "_csv",
    "tempfile",
    "gzip",
    "zipfile",
    "tarfile",
    "shelve",
    "dbm",
    "h5py",
    "netCDF4",
    "tables",
)
_OPEN_IT = "Pass the path, and open the file inside the function or in initializer=."
IN_SHELL = (
    "Lines that begin with ! or %, and get_ipython(), work in the notebook's process only: use "
    "subprocess.run for a command, and Python for a magic."
)
# Advice, by the module of an object's class. The parts of these objects are not searched.
_REMEDIES = {
    **dict.fromkeys(_SYNCHRONIZED, _BETWEEN_PROCESSES),
    "loguru": "Write `from loguru import logger` inside the function.",
    "tqdm": "Remove the bar: nbshare shows the progress, and nbshare.report that of an item.",
    "sqlite3": "Pass the path, and connect inside the function or in initializer=.",
    **dict.fromkeys(_FILES, _OPEN_IT),
    "mmap": "Pass a numpy.memmap, which workers map themselves.",
    "subprocess": "Start the program inside the function.",
    "socket": "Pass the address, and connect inside the function or in initializer=.",
    "IPython": IN_SHELL,
    "logging": "Get the logger and add its handlers inside the function or in initializer=.",
    "_contextvars": "Pass its value as an argument: the result of get().",
    "weakref": "Refer to the object itself, or create the weak reference inside the function.",
    "nbshare": "",  # its errors say what to do
}
OF_NOTEBOOK = (
    "Define its class in a .py file, and import that. Or pass plain data, and create the object "
    "inside the function."
)
OTHERS = "Pass plain data instead, and create the object inside the function."
IN_FILE = " Or define both in a .py file, and import the function."


def remedy_for(kind: type) -> str | None:
    """Return the advice for objects of a class, or None."""
    for base in kind.__mro__[:-1]:
        module = base.__module__.partition(".")[0]
        if module in _REMEDIES:
            return _REMEDIES[module]
    return None
