"""Parallel maps for notebooks, on NumPy arrays in shared memory.

The layers; imports point down only::

    __main__, demo     the main job, headless
    magics             %%workerfile: a cell that becomes a module file
    pipeline           load, process, store: stages joined by ring buffers
    mapping            parallel_map: a request, checked once, handed down
    arguments          what a user gives, checked before anything starts
    notebook           what draws: the bar and the live picture
    job                one running map: partial results, stop
    engine             local workers: start, schedule, run, store, recover
    arrays             arrays and objects in shared memory, and how they travel
    functions          the function a worker can import, and whether it is fresh
    memory             bytes that several processes map
    errors             every exception and warning
"""

from nbshare import errors
from nbshare.arrays import (
    RingBuffer,
    SharedArray,
    SharedBuffer,
    SharedLock,
    SharedObject,
    empty,
    empty_like,
    full,
    share,
    zeros,
    zeros_like,
)
from nbshare.engine.local import shutdown
from nbshare.engine.results import MISSING
from nbshare.errors import MapInterrupted
from nbshare.functions import import_file
from nbshare.job import Job, last_job
from nbshare.mapping import map_async, parallel_map
from nbshare.notebook import LivePlot
from nbshare.pipeline import PipelineResult, pipeline

__version__ = "0.1.0"

__all__ = [
    "MISSING",
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
    "share",
    "shutdown",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> object:
    # IPython's hooks for %load_ext and %unload_ext; late, as most programs need none.
    if name not in ("load_ipython_extension", "unload_ipython_extension"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nbshare import magics

    return getattr(magics, name)
