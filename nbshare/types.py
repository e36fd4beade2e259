"""Types of what nbshare returns and nobody makes: for annotations, `isinstance` and their docs."""

from nbshare.arrays.ring_slots import RingStats
from nbshare.engine.stats import SlowItem, StageStats, WorkerStats
from nbshare.pipelines import PipelineResult
from nbshare.runs.stored import Outdated, StoredRun

__all__ = [
    "Outdated",
    "PipelineResult",
    "RingStats",
    "SlowItem",
    "StageStats",
    "StoredRun",
    "WorkerStats",
]


def __dir__() -> list[str]:
    return __all__  # for completion: the public names
