"""Parallel maps for notebooks, on NumPy arrays in shared memory.

Write a function in a module file and call it for many items, on all CPUs::

    from nbshare import parallel_map
    from workers import horizon

    maps = parallel_map(horizon, azimuths, shared={"elevation": dem}, plot="image")

``elevation`` is copied to shared memory once and is read-only in the workers. ``maps`` is an array
in shared memory with one row per item. A progress display and a plot show the results while they
arrive. Stop the call at any time. ``last_job().partial()`` has the finished results.

=================================  ================================================================
`parallel_map`, `map_async`        call a function for every item; wait, or get a `Job` to watch
`plan`                             bytes, time and workers of a run, from one or two of its items
`grid`, `rows`, `tiles`            items: all combinations of parameters; the rows of a table; the
                                   tiles of an image or volume
`share`, `empty`, `zeros`, `full`  arrays in shared memory; every view of them is sent by reference
`register_type`                    send objects of a type so that their memory is held once
`SharedBuffer`, `SharedLock`       one block laid out as different arrays in turn; a lock
`RingBuffer`, `pipeline`           a queue of array slots between processes; stages joined by them
`Executor`, `register_joblib`      a `concurrent.futures.Executor` on the same workers; for joblib
`Checkpoint`, `open_checkpoint`    options of a run on disk; the progress of a stored run
`attach`                           the job of a run that another process drives
`explore`                          a panel with sliders that shows one result at a time
`report`, `LivePlot`               progress of a long item; plots with labels and units
`worker_index`                     the number of this worker, to choose its GPU, port or licence
`last_job`, `jobs`, `shutdown`     the newest unsuccessful job; all running jobs; end workers
`doctor`                           the machine's resources, and a self-test
`errors`, `types`                  all exceptions and warnings; types of results
=================================  ================================================================

In a notebook, ``%load_ext nbshare`` adds ``%%workerfile workers.py``, which writes a cell to a
module file and imports it. ``python -m nbshare demo`` runs an example without a notebook, and
``python -m nbshare doctor`` tests whether nbshare works on this machine.

Set these environment variables before a call to change its behaviour:

==============================  ===================================================================
``NBSHARE_MEMORY``              on Linux, where arrays are: ``memfd`` (memory, the default),
                                ``named`` (files in ``/dev/shm``), ``file`` (files in the directory
                                for temporary files) or ``file:/some/directory``, for data larger
                                than memory
``NBSHARE_STATIC=1``            for documents that are rebuilt: last frames only, no button or time
``NBSHARE_HOST=a``              on a machine of a cluster: processes with other values count as
                                other machines
==============================  ===================================================================
"""

from nbshare import errors as errors
from nbshare._core import public_names as __all__

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    from nbshare._core import HOME_OF  # here, because completion would offer it

    if name != "types" and name not in HOME_OF:
        if name[0] == "_":  # maybe a module
            raise AttributeError(name)
        import sys

        from nbshare._core.tracebacks import no_attribute

        # The import of a name would lose the message of an AttributeError.
        is_import = "importlib" in sys._getframe(1).f_globals.get("__name__", "")
        kind = ImportError if is_import else AttributeError
        raise no_attribute(__name__, name, __all__, kind=kind)
    try:
        import importlib

        if name == "types":  # it imports parts of most modules
            return importlib.import_module("nbshare.types")
        # The package first, because two threads that import two of its modules at the same time
        # would wait for each other.
        importlib.import_module(HOME_OF[name].rpartition(".")[0])
        value = getattr(importlib.import_module(HOME_OF[name]), name)
    except AttributeError as error:  # Python would report a missing name
        raise ImportError(f"nbshare.{name} cannot be imported: {error}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # for completion, the public names, imported yet or not
