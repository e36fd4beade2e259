"""Types of what nbshare returns and nobody makes: for annotations, `isinstance` and their docs."""

from nbshare.arrays.grid import Grid
from nbshare.arrays.ring_slots import RingStats
from nbshare.arrays.tables import Rows
from nbshare.arrays.tiles import Tiles
from nbshare.engine.stats import SlowItem, StageStats, WorkerStats
from nbshare.pipelines import PipelineResult
from nbshare.planning import Plan
from nbshare.runs.stored import Outdated, StoredRun

__all__ = [
    "Grid",
    "Outdated",
    "PipelineResult",
    "Plan",
    "RingStats",
    "Rows",
    "SlowItem",
    "StageStats",
    "StoredRun",
    "Tiles",
    "WorkerStats",
]


def __dir__() -> list[str]:
    return __all__  # for completion: the public names
