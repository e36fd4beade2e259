"""Types that nbshare returns and users do not create, for annotations and `isinstance`."""

from nbshare._core.arrays.ring_slots import RingStats
from nbshare._core.engine.stats import SlowItem, StageStats, WorkerStats
from nbshare._core.entries.pipelines import PipelineResult
from nbshare._core.entries.planning import Plan
from nbshare._core.runs.stored import Outdated, StoredRun
from nbshare._core.shapes.grid import Grid
from nbshare._core.shapes.tables import Rows
from nbshare._core.shapes.tiles import Tiles

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


def __getattr__(name: str) -> object:
    if name[0] == "_":
        raise AttributeError(name)
    from nbshare._core.tracebacks import no_attribute  # late, because few calls need it

    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    return __all__  # for completion, the public names
