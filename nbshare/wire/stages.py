"""What a pipeline and the workers of its stages share."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BLOCK",
    "BLOCK_SINCE",
    "FRAME_NBYTES",
    "HEADER_NBYTES",
    "NO_BLOCK",
    "STAGE_BEGUN",
    "STAGE_ENDED",
    "Place",
]

FRAME_NBYTES = 1 << 18  # of a result, in one slot
HEADER_NBYTES = 24  # block, size of the whole, offset

BLOCK, BLOCK_SINCE, STAGE_BEGUN, STAGE_ENDED = range(4)  # places in a row, which is a worker's
NO_BLOCK = -1


class Place(NamedTuple):
    """The item of a stage's map: a worker for as long as the pipeline runs."""

    stage: str
    worker: int

    def __repr__(self) -> str:
        return f"worker {self.worker} of stage {self.stage!r}"
