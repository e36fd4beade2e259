"""Parallel maps for notebooks, on NumPy arrays in shared memory.

The layers; imports point down only::

    __main__, demo     the main job, headless
    magics             %%workerfile: a cell that becomes a module file
    joblib_backend     joblib's Parallel on an Executor
    mapping, executor  parallel_map: a request, checked once, handed down; the face of an executor
    pipelines          load, process, store: stages joined by ring buffers
    running            a map from its request to its result, drawn meanwhile
    arguments          what a user gives, checked before anything starts
    notebook           what draws: the bar and the live picture
    job                one running map: partial results, stop
    latest             the newest job that did not simply succeed
    engine             the owner of workers: start, place, assign, collect, recover
    worker             a worker process: claim, run, store; the board that it shares with its owner
    arrays             arrays and objects in shared memory, and how they travel
    functions          the function a worker can import, and whether it is fresh
    memory             bytes that several processes map
    tracebacks         what a notebook shows of a failure
    errors             every exception and warning
"""

import typing

from nbshare import errors

if typing.TYPE_CHECKING:
    from nbshare.arrays.buffer import SharedBuffer
    from nbshare.arrays.create import empty, empty_like, full, zeros, zeros_like
    from nbshare.arrays.lock import SharedLock
    from nbshare.arrays.objects import SharedObject
    from nbshare.arrays.ring import RingBuffer
    from nbshare.arrays.share import share
    from nbshare.arrays.shared_array import SharedArray
    from nbshare.engine.local import shutdown
    from nbshare.engine.results import MISSING
    from nbshare.errors import MapInterrupted
    from nbshare.executor import Executor
    from nbshare.functions import import_file
    from nbshare.job import Job
    from nbshare.latest import last_job
    from nbshare.mapping import map_async, parallel_map
    from nbshare.notebook import LivePlot
    from nbshare.pipelines import PipelineResult, pipeline
    from nbshare.worker.reports import report

__version__ = "0.1.0"

__all__ = [
    "MISSING",
    "Executor",
    "Job",
    "LivePlot",
    "MapInterrupted",
    "PipelineResult",
    "RingBuffer",
    "SharedArray",
    "SharedBuffer",
    "SharedLock",
    "SharedObject",
    "empty",
    "empty_like",
    "errors",
    "full",
    "import_file",
    "last_job",
    "map_async",
    "parallel_map",
    "pipeline",
    "report",
    "share",
    "shutdown",
    "zeros",
    "zeros_like",
]


# Where names come from, imported when they are first asked for: a worker process needs a quarter of
# the package, and starts that much sooner.
_HOMES = {
    "arrays.buffer": ["SharedBuffer"],
    "arrays.create": ["empty", "empty_like", "full", "zeros", "zeros_like"],
    "arrays.lock": ["SharedLock"],
    "arrays.objects": ["SharedObject"],
    "arrays.ring": ["RingBuffer"],
    "arrays.share": ["share"],
    "arrays.shared_array": ["SharedArray"],
    "engine.local": ["shutdown"],
    "engine.results": ["MISSING"],
    "errors": ["MapInterrupted"],
    "executor": ["Executor"],
    "functions": ["import_file"],
    "job": ["Job"],
    "latest": ["last_job"],
    "magics": ["load_ipython_extension", "unload_ipython_extension"],
    "mapping": ["map_async", "parallel_map"],
    "notebook": ["LivePlot"],
    "pipelines": ["PipelineResult", "pipeline"],
    "worker.reports": ["report"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The package first: two threads that import two of its modules at once would each hold the lock
    # that the other one waits for.
    importlib.import_module(f"{__name__}.{_HOME_OF[name].partition('.')[0]}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # for completion, what has not come yet as well
