"""Jobs for runs that another process drives, read from the files of their checkpoints."""

from __future__ import annotations

import _thread
import builtins
import datetime as dt
import os
import pickle
import sys
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from numbers import Real
from pathlib import Path, PurePath
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from nbshare import errors
from nbshare._core.arguments.options import MapOptions, checked_checkpoint
from nbshare._core.arrays.inputs import ArrayReference
from nbshare._core.checkpoint import writer as writers
from nbshare._core.checkpoint.directory import LOG_FILE, check_place
from nbshare._core.checkpoint.sweep import STOP
from nbshare._core.checkpoint.writer import LEASE, PARTS, check_free, is_here, writer_of
from nbshare._core.engine.collect import as_masked, collect
from nbshare._core.engine.local import refuse_frozen
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request, tiles_of
from nbshare._core.engine.results import MISSING
from nbshare._core.engine.run import EndState, Run
from nbshare._core.functions.pickling import dumps, dumps_apart
from nbshare._core.interpreter import command
from nbshare._core.jobs.job import Job
from nbshare._core.memory import file_of
from nbshare._core.memory.disk import open_own, write_all
from nbshare._core.messages import warn_at_most
from nbshare._core.notebook import check_display
from nbshare._core.notebook.environment import surroundings
from nbshare._core.notebook.live_plot import LivePlot, as_plots
from nbshare._core.notebook.prints import Printer
from nbshare._core.runs.running import in_background
from nbshare._core.runs.stored import StoredRun
from nbshare._core.shapes.grid import Grid
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.shapes.tiles import Tiles
from nbshare._core.store.apart import pickler_maker
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.files import check_folder, damaged, opened, read, replace, size_of, write
from nbshare._core.store.logs import entry_parts
from nbshare._core.system import files as system_files
from nbshare._core.system import processes, shell
from nbshare._core.tracebacks import shown_from_the_call
from nbshare._core.wire.folding import by_item, counted, items_in
from nbshare._core.wire.orders import Policy
from nbshare.errors import (
    CheckpointError,
    DisplayWarning,
    TaskError,
    UnsendableError,
    WorkerDiedError,
)

__all__ = ["CALL_FILE", "CALL_START", "AttachedRun", "attach", "begin", "check_call", "keep_plot"]

CALL_FILE = "driver/call.pickle"  # the call of `python -m nbshare resume`
CALL_START = 64  # bytes of the checksum, before the call
PLOT_FILE = "plot.pickle"
AS_READ = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}  # the log's
WRITER_CHECK_S = 0.1
LEAST = 1 << 16  # bytes from which an array is stored next to the pickle, and mapped
BEGUN_S = 0.01
_PLACES = Real, str, dt.date, dt.timedelta, PurePath  # items that have places at an axis


class Driver(Protocol):
    """The process that drives a run, as seen by the process that started it."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code of the driver, or None if it still runs."""

    def terminate(self) -> None:
        """Terminate the driver."""


_drivers: list[Driver] = []  # the drivers that this process has started


def check_call(path: Path) -> None:
    """Raise CheckpointError if a checkpoint, or its driver's folder, belongs to another user."""
    check_place(path)
    check_folder((path / CALL_FILE).parent)


@shown_from_the_call
def attach(path: str | os.PathLike[str], *, progress: Any = None, plot: Any = None) -> Job:
    """Return a job for a run with a checkpoint that another process drives.

    Examples
    --------
    The results of a detached run:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> job = nbshare.map_async(math.sqrt, [1.0, 4.0], checkpoint=folder, detach=True)
    >>> nbshare.attach(folder).result()
    array([1., 2.])

    After a restart of the kernel, how did it end, and what failed?

    >>> job = nbshare.attach(folder)
    >>> job.wait(), job.state, job.errors
    (True, 'done', {})

    Parameters
    ----------
    path : str or path-like
        The ``checkpoint=`` of the run.
    progress, plot
        The display, as for `parallel_map`, shown as `map_async` shows it. Default: the label and
        plot of the run.

    Returns
    -------
    Job
        The job shows and returns the stored results. `Job.cancel` stops a detached run. If the run
        is over, ``job.result()`` returns its results, read from the disk on access. If the run was
        killed, ``job.result()`` raises `WorkerDiedError`, which says how to continue, and
        ``job.partial()`` returns the stored results.

    Raises
    ------
    nbshare.errors.CheckpointError
        If there is no checkpoint, or it is damaged or belongs to another user.

    See Also
    --------
    map_async : ``detach=True`` starts a run that continues without this process.
    open_checkpoint : the stored run, without a job.

    Notes
    -----
    Any number of processes of one user may attach, at the same time. A run that is not detached can
    be watched in this way, but can be stopped only in its own process. If several processes share
    the run (``python -m nbshare run``), the job reports on all of them together, and `Job.cancel`
    stops all of them.

    An error that ended the run is raised with its own type if Python or nbshare defines this type,
    and otherwise as a `TaskError` with the same text.

    Except in the process that began the run, the results of a table are returned item by item, as
    are those of a `grid` with more than 10,000 values of parameters, or with values other than
    numbers and texts. The stats of workers are not stored, so ``job.stats`` is empty.
    ``open_checkpoint(path).item_stats`` contains the time of each item.
    """
    check_display(progress, plot)
    return _job_of(_run_in(Path(os.fspath(path)).expanduser().absolute()), progress, plot)


def _job_of(run: AttachedRun, progress: Any, plot: Any) -> Job:
    """Return a job for a run, and begin to show the job."""
    if plot is None and surroundings() == "kernel":
        plot = _kept_plot(run.stored.path)
    label = progress if isinstance(progress, str) else run.stored.label
    job: Job[Any] = in_background(run, label, progress, plot)
    weakref.finalize(job, run.release).atexit = False
    return job


def _run_in(path: Path) -> AttachedRun:
    check_call(path)
    stored = StoredRun(path)
    return (AttachedReduction if "reduce" in stored._writer()[1] else AttachedRun)(stored)


def keep_plot(path: Path, request: Request, plot: Any) -> None:
    """Store the plot of a run for jobs of other processes, unless this is the driver.

    A plot that cannot be pickled is not stored.
    """
    if writers.is_driver:
        return
    items = request.items if plot is not None else None
    if isinstance(items, list | tuple) and all(isinstance(item, _PLACES) for item in items):
        items = np.asarray(items)
    if not (isinstance(items, Grid | range) or getattr(items, "ndim", 0) == 1):
        items = None  # such items give no axis
    try:
        pickled = dumps((as_plots(plot), items)) if plot is not None else b""
    except Exception:  # noqa: BLE001 - whatever their code raises
        pickled = b""
    with suppress(OSError):  # a full disk is reported with the results
        if pickled or (path / PLOT_FILE).exists():
            replace(path / PLOT_FILE, pickled, is_needed=False)


def _kept_plot(path: Path) -> list[LivePlot] | None:
    """Return the plot that a run's own process has stored, or None."""
    pickled = read(path / PLOT_FILE)
    if not pickled:
        return None
    try:
        plots, items = pickle.loads(pickled)
        for plot in plots:
            plot._items = items
    except Exception as error:  # noqa: BLE001 - whatever their code raises
        warn_at_most(
            f"{path / PLOT_FILE}: the plot of this run cannot be loaded here "
            f"({type(error).__name__}: {error}). Pass plot= to attach().",
            DisplayWarning,
        )
        return None
    return cast("list[LivePlot]", plots)


def _shaped_from(writer: dict[str, Any]) -> ShapedItems | None:
    """Return the items that `ShapedItems.as_json` stored in a checkpoint, or None."""
    if writer.get("grid"):
        return Grid.from_json(writer)
    return Tiles.from_json(writer) if "tiles" in writer else None


def _error_of(told: dict[str, Any]) -> BaseException:
    """Return the error that ended a run, or a `TaskError` if its type is not built in.

    Types of Python and nbshare are kept. The error is read from a JSON file, because a pickle could
    run code.
    """
    where, _, name = told["type"].rpartition(".")
    kind = getattr({"": builtins, errors.__name__: errors}.get(where), name, None)
    error: BaseException = TaskError(f"{told['type']}: {told['text']}", type_name=told["type"])
    with suppress(Exception):  # some types need more than a text
        if issubclass(cast("Any", kind), Exception):
            error = cast("Any", kind)(told["text"])
    for note in told["notes"]:
        error.add_note(note)
    return error


class AttachedRun(Run):
    """A run that another process drives, with the interface that a job needs.

    Parameters
    ----------
    stored : StoredRun
        The contents of the run's checkpoint.
    """

    def __init__(self, stored: StoredRun) -> None:
        self.stored, self._path = stored, stored.path
        _, writer = self.stored._writer()
        request: dict[str, Any] = dict.fromkeys(Request._fields)
        request |= {"shared": {}, "iterables": (), "prints": Prints(Printer())}
        request |= {"out": writer.get("out"), "max_workers": writer.get("max_workers", 1)}
        request["policy"] = Policy(on_error=writer.get("on_error", "raise"))
        if (items := _shaped_from(writer)) is not None:
            request["iterables"] = (items,)
        super().__init__(Request(**request))
        self.stored_in = str(self._path)
        self.is_detached = writer.get("is_driver", False)
        self._is_left = False  # whether its job was deleted
        self._given = Cursor(0)  # results and errors that a loop has taken
        self._began_at: float = writer.get("began_at", 0.0)
        self._n_shown = size_of(self._path / LOG_FILE)
        self.stored.present, self.stored.errors  # noqa: B018 - raises here if they cannot be read

    # ----------------------------------------------------------------------- for the job

    @property
    def has_begun(self) -> bool:
        """Whether the number of items is known."""
        return bool(self.n_items)

    @property
    def age_s(self) -> float:
        """Seconds from the beginning of the run until its end, or until now."""
        is_running, writer = self.stored._writer()
        until = time.time() if is_running else writer.get("ended")
        if not until:  # the run was killed
            until = self.stored._whole().words["stored_at"].max(initial=0.0)
        return max(0.0, float(until - self._began_at)) if self._began_at else 0.0

    @property
    def n_items(self) -> int | None:
        """Number of items."""
        return self.stored.n_items

    @property
    def n_done(self) -> int:
        """Number of items that are finished."""
        return self.stored.n_done

    @property
    def n_restored(self) -> int:
        """Number of items that were done before the run began."""
        return int(self._restored().sum())

    def _restored(self) -> npt.NDArray[np.bool_]:
        is_old = self.stored.item_stats["stored_at"] < self._began_at
        return np.asarray(is_old & self.stored.present)

    @property
    def errors(self) -> dict[int, BaseException]:
        """Failures by item, with the texts of the exceptions, which are in another process."""
        return {**self.stored._failures(self._began_at)}

    def retried(self) -> npt.NDArray[np.int64]:
        """Return the indices of items that have a result and ran more than once."""
        return np.flatnonzero((self.stored.item_stats["attempts"] > 1) & ~self._restored())

    def present(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if the item's result is stored."""
        return self.stored.present

    def partial(self) -> Any:
        """Return the stored results, or None if there are none."""
        if not self.stored.present.any():
            return None
        results = as_masked(self.stored._rows())
        tiles = tiles_of(self.request)
        return results if tiles is None else tiles.put_together(results)

    def final(self) -> Any:
        """Return all results."""
        results, errors = self.stored._rows(), self.errors
        if not isinstance(results, list):
            return as_masked(results) if self.request.policy.returns_errors else results
        results = [errors.get(i, x) if x is MISSING else x for i, x in enumerate(results)]
        return collect(results, errors) if self.request.out is None else results

    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results since the previous call. Only one reader may call this."""
        errors, whole = self.errors, self.stored._whole(is_read=True)  # more items may follow
        new = self._given.new(whole.present)
        self._given.take(new)
        yield from whole.objects(new)
        if self.request.policy.returns_errors:
            for i in [i for i in errors if not self._given.taken[i]]:
                self._given.take(i)
                yield i, errors[i]

    def item(self, i: int) -> tuple[Any, ...]:
        """Raise LookupError, because items are not stored."""
        raise LookupError(
            f"item {i} is in another process: call the function with this item in this process"
        )

    # --------------------------------------------------------------------------- its life

    def start(self) -> None:
        """Begin to follow the run."""
        if self.stored._writer()[0]:
            _thread.start_new_thread(self._watch, ())
        else:
            self._finish()

    def stop(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - it has none
        """Interrupt the process that drives the run.

        Raises
        ------
        RuntimeError
            If the run is not detached, or its driver is on another host.
        """
        check_folder(self._path / PARTS)
        with suppress(FileNotFoundError):
            write(self._path / PARTS / STOP, b"")  # the processes that share the run check for it
            return
        is_running, writer = self.stored._writer()
        if not is_running:
            return
        if not (writer.get("is_driver") and is_here(writer)):
            raise RuntimeError(
                f"{self._path}: process {writer['pid']} on {writer['host']} runs this call, and "
                "only it can stop the call: the run is not detached, or not on this host"
            )
        with suppress(
            ProcessLookupError, PermissionError
        ):  # the driver has ended, and another process may have its id
            processes.interrupt(writer["pid"])

    def release(self) -> None:
        """Stop following the run, because the job was deleted."""
        self._is_left = True

    def _watch(self) -> None:
        try:
            while not self._is_left:
                n_printed = size_of(self._path / LOG_FILE)  # first, as the driver prints last
                if not self.stored._writer()[0]:
                    break
                self._show_prints(n_printed)
                time.sleep(WRITER_CHECK_S)
        except BaseException as error:  # noqa: BLE001 - no thread may wait forever
            self.error = error
        self._finish()

    def _show_prints(self, stop: int) -> None:
        """Show the workers' prints up to this size of the log."""
        log = opened(self._path / LOG_FILE) if stop > self._n_shown else None
        if log is not None:
            text = system_files.read_at(log.fileno(), stop - self._n_shown, self._n_shown)
            self.request.prints.is_any = True
            self.request.prints.add("stdout", text.decode("utf-8", "replace"))
            self._n_shown = stop

    def _finish(self) -> None:
        state: EndState = "failed"
        try:
            if self.error is None:
                state, self.error = self._outcome()
        except BaseException as error:  # noqa: BLE001 - as above
            self.error = error
        finally:
            self._end(state)

    def _outcome(self) -> tuple[EndState, BaseException | None]:
        """Return the state in which the run has ended, and the error, if any."""
        if not (self._path / "meta.json").exists():
            return "failed", CheckpointError(f"{self._path}: the checkpoint of this run is missing")
        _, writer = self.stored._writer()
        if not writer:
            why = "the record of how this run ended is missing"
            remedy = "Make the same call again; partial() returns the stored results."
            return "failed", damaged(self._path / LEASE, why, remedy)
        if (state := self.stored.state) == "ended":
            return "failed", self._death()
        self.is_enough = writer.get("is_enough", False)
        self._show_prints(writer.get("n_printed", 0))
        if "error" in writer:
            return "failed", _error_of(writer["error"])
        return cast("EndState", state), None

    def _death(self) -> WorkerDiedError:
        resume = f", or: python -m nbshare resume {shell.as_word(str(self._path))}"
        return WorkerDiedError(
            f"{self._path}: the process of this run was killed, or the machine restarted, after "
            f"{self.n_done} of {self.n_items} items. Their results are kept, and partial() returns "
            "them. To run the rest, make the same call again"
            f"{resume if (self._path / CALL_FILE).exists() else ''}"
        )


class AttachedReduction(AttachedRun):
    """An attached run with ``reduce=``, which stores blocks. Its job counts items."""

    @property
    def is_reduced(self) -> bool:
        """True, because ``reduce=`` combines all results into one value."""
        return True

    @property
    def n_items(self) -> int:
        """Number of items. For a generator, the number of items read so far."""
        n_items = self.stored._writer()[1].get("n_items")  # else the last block counts as whole
        blocks = np.ones(self.stored.n_items, np.bool_)
        return counted(blocks, sys.maxsize if n_items is None else n_items)

    @property
    def n_done(self) -> int:
        """Number of items in finished blocks."""
        return counted(self.stored._finished(), self.n_items)

    @property
    def n_restored(self) -> int:
        """Number of items in blocks that were done before the run began."""
        return counted(self._restored(), self.n_items)

    @property
    def errors(self) -> dict[int, BaseException]:
        """Failures by item. All items of a block that failed have its error."""
        n = self.n_items
        return {i: error for k, error in super().errors.items() for i in items_in(k, n)}

    def present(self) -> npt.NDArray[Any]:
        """Return a flag per item, True if the item's block is stored."""
        return by_item(super().present(), self.n_items)

    def partial(self) -> Any:
        """Return the value of the stored blocks."""
        return self.stored._value(self.request.reduce)

    def final(self) -> Any:
        """Return the value of all blocks."""
        return self.partial()


# ------------------------------------------------------------------ a process that drives a run


def begin(request: Request, options: MapOptions, progress: Any, plot: Any) -> Job:
    """Start a driver for a call, and return a job for its run."""
    kept = checked_checkpoint(options)
    if kept is None:
        raise ValueError("detach=True needs checkpoint=, the folder in which the run is stored")
    if request.source is not None:
        raise TypeError("detach=True requires items with a length: make a list of them")
    if isinstance(options.out, np.ndarray):
        raise TypeError("detach=True cannot fill out=, an array of this process: omit it")
    refuse_frozen("detach=True", "run it without detach=True, with backend='threads'")
    path = kept.path
    check_place(path)
    check_free(path)
    (path / CALL_FILE).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_call(path)
    _store(path / CALL_FILE, request, options._replace(checkpoint=kept))
    n_printed = size_of(path / LOG_FILE)
    _await_beginning(path, _start_driver(path), n_printed)
    keep_plot(path, request, plot)
    run = _run_in(path)
    run.request = run.request._replace(  # these define the form of the results, and their plot
        iterables=request.iterables, reduce=request.reduce, series=request.series
    )
    return _job_of(run, progress, plot)


def _store(path: Path, request: Request, options: MapOptions) -> None:
    """Store a call. An array of a mapped file is stored as a reference to the file."""
    shared = {name: _by_file(value) for name, value in request.shared.items()}
    func, columns = request.users, request.iterables
    if request.reduce is not None:  # the driver makes blocks of the items itself
        columns = columns[0].columns
    columns = [_by_file(column) for column in columns]
    try:
        label = options.progress if isinstance(options.progress, str) else None
        kept = options._replace(shared=shared, progress=label, plot=None)._asdict()
        data, buffers = dumps_apart((func, columns, kept), LEAST, pickler_maker())
    except Exception as error:
        raise UnsendableError(
            "detach=True stores the function and its arguments, and one of them cannot be pickled "
            f"({type(error).__name__}: {error})"
        ) from error
    parts, _ = entry_parts(request.context.settings, [memoryview(data), *buffers])
    file, crc, end = write(path.with_suffix(".new"), b""), 0, 0
    for offset, part in parts:
        gap = bytes(offset - end)
        end = offset + part.nbytes
        write_all(file.fileno(), part, CALL_START + offset)
        crc = zlib.crc32(part, zlib.crc32(gap, crc))
    write_all(file.fileno(), crc.to_bytes(CALL_START, "little"), 0)
    file.close()
    system_files.replace(path.with_suffix(".new"), path)


def _by_file(value: Any) -> Any:
    found = file_of(value) if isinstance(value, np.ndarray) else None
    if found is None:
        return value
    return ArrayReference(*found, value.shape, value.strides, value.dtype, False, "r")


def _start_driver(path: Path) -> Driver:
    """Start a driver that outlives this process."""
    code = f"import sys; sys.path = {[os.path.abspath(p) for p in sys.path]!r}; "
    code += f"[stream.reconfigure(**{AS_READ}) for stream in (sys.stdout, sys.stderr)]; "
    code += "from nbshare.__main__ import main; sys.exit(main())"
    driving = [*command(code), "resume", str(path)]
    _drivers[:] = [driver for driver in _drivers if driver.poll() is None]
    log = open_own(path / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.lseek(log.fileno(), 0, os.SEEK_END)  # because Windows does not pass O_APPEND to a child
    environ = {**os.environ, "MPLBACKEND": "Agg"}  # the notebook's backend needs a kernel
    _drivers.append(processes.detached(driving, environ, log))
    return _drivers[-1]


def _await_beginning(path: Path, driver: Driver, n_printed: int) -> None:
    """Wait until a driver writes to the checkpoint. If the call was refused, raise the error.

    `n_printed` is the size of the log before the driver started.
    """
    has_ended = False
    try:
        while (writer_of(path) or {}).get("pid") != driver.pid:
            if has_ended:
                said = (read(path / LOG_FILE) or b"")[n_printed:].decode("utf-8", "replace")
                said = said.strip().removeprefix("nbshare resume: ")
                raise CheckpointError(said or f"{path}: the process of the run was killed")
            has_ended = driver.poll() is not None  # check once more, because it may be quick
            time.sleep(BEGUN_S)
    except BaseException:  # an interrupt
        driver.terminate()
        raise
