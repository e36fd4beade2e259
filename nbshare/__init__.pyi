from nbshare import errors as errors
from nbshare import types as types
from nbshare.arrays.buffer import SharedBuffer as SharedBuffer
from nbshare.arrays.create import empty as empty
from nbshare.arrays.create import empty_like as empty_like
from nbshare.arrays.create import full as full
from nbshare.arrays.create import full_like as full_like
from nbshare.arrays.create import ones as ones
from nbshare.arrays.create import ones_like as ones_like
from nbshare.arrays.create import zeros as zeros
from nbshare.arrays.create import zeros_like as zeros_like
from nbshare.arrays.lock import SharedLock as SharedLock
from nbshare.arrays.ring import RingBuffer as RingBuffer
from nbshare.arrays.share import SharedObject as SharedObject
from nbshare.arrays.share import share as share
from nbshare.arrays.shared_array import SharedArray as SharedArray
from nbshare.checkpoint.options import Checkpoint as Checkpoint
from nbshare.checkup import doctor as doctor
from nbshare.engine.local import shutdown as shutdown
from nbshare.engine.results import MISSING as MISSING
from nbshare.errors import MapInterrupted as MapInterrupted
from nbshare.executor import Executor as Executor
from nbshare.for_joblib import register_joblib as register_joblib
from nbshare.functions.files import import_file as import_file
from nbshare.job import Job as Job
from nbshare.job import jobs as jobs
from nbshare.job import last_job as last_job
from nbshare.mapping import map_async as map_async
from nbshare.mapping import parallel_map as parallel_map
from nbshare.notebook.explore import explore as explore
from nbshare.notebook.live_plot import LivePlot as LivePlot
from nbshare.pipelines import pipeline as pipeline
from nbshare.runs.attached import attach as attach
from nbshare.runs.stored import open_checkpoint as open_checkpoint
from nbshare.worker.reports import report as report

__all__: list[str]
__version__: str
