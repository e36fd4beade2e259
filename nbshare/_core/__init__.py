"""All modules behind the public names, and which module defines which name."""

import os

PACKAGE = os.path.dirname(os.path.dirname(__file__))  # the folder of nbshare

# The modules that define public names, as in the stub of nbshare for type checkers. They are
# imported on first access: a worker process needs a quarter of the package, and starts sooner.
_NAMES = {
    "arrays.buffer": "SharedBuffer",
    "arrays.create": "empty empty_like full full_like ones ones_like zeros zeros_like",
    "arrays.lock": "SharedLock",
    "arrays.reducers": "register_type",
    "arrays.ring": "RingBuffer",
    "arrays.share": "SharedObject share",
    "arrays.shared_array": "SharedArray",
    "checkpoint.options": "Checkpoint",
    "engine.local": "shutdown",
    "engine.results": "MISSING",
    "entries.checkup": "doctor",
    "entries.executor": "Executor",
    "entries.for_joblib": "register_joblib",
    "entries.mapping": "map_async parallel_map",
    "entries.pipelines": "pipeline",
    "entries.planning": "plan",
    "functions.files": "import_file",
    "jobs.job": "Job jobs last_job",
    "notebook.explore": "explore",
    "notebook.live_plot": "LivePlot",
    "runs.attached": "attach",
    "runs.stored": "open_checkpoint",
    "shapes.grid": "grid",
    "shapes.tables": "rows",
    "shapes.tiles": "tiles",
    "worker.reports": "report worker_index",
}
HOME_OF = {
    name: f"nbshare._core.{home}" for home, names in _NAMES.items() for name in names.split()
}
HOME_OF["MapInterrupted"] = "nbshare.errors"

# Constants first, then classes, then functions.
public_names = sorted(
    ["errors", "types", *HOME_OF], key=lambda name: (not name.isupper(), name[0].islower(), name)
)

# IPython's hooks.
HOME_OF |= dict.fromkeys(
    ("load_ipython_extension", "unload_ipython_extension"), "nbshare._core.magics"
)
