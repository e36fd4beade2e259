"""Executor, a `concurrent.futures.Executor` on nbshare's workers."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent import futures
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar

from nbshare._core.arguments.options import MapOptions, checked_count, checked_request
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.tasks import TaskQueue
from nbshare._core.functions.reference import refuse_async
from nbshare._core.messages import counted
from nbshare._core.notebook.prints import Printer
from nbshare._core.tracebacks import no_attribute, shown_from_its_calls
from nbshare._core.wire import is_worker
from nbshare._core.wire.kept import kept_items
from nbshare._core.wire.orders import Task, run_chunk, run_task

P = ParamSpec("P")
T = TypeVar("T")

# Attributes of other executors that an `Executor` cannot have, and their replacements.
_WORKERS = (
    "its workers are shared with all other calls. terminate_workers() ends those that run tasks of "
    "this executor"
)
_QUEUE = (
    "the repr of the executor shows how many tasks are not done. future.running() returns whether "
    "a task is running"
)
_ABSENT = {
    **dict.fromkeys(("_processes", "_threads", "_executor_manager_thread"), _WORKERS),
    **dict.fromkeys(("_work_queue", "_pending_work_items", "_work_ids", "_call_queue"), _QUEUE),
}


@shown_from_its_calls
class Executor(futures.Executor):
    """A `concurrent.futures.Executor` whose arrays travel through shared memory.

    Use it with code that takes an executor, or a pool with a ``map``, such as emcee, SciPy's
    ``workers=``, dynesty and `asyncio`, or call ``submit`` yourself. For a loop over items
    `parallel_map` is faster, and shows its progress.

    Examples
    --------
    Like any executor:

    >>> import math
    >>> import nbshare
    >>> with nbshare.Executor() as executor:
    ...     future = executor.submit(math.sqrt, 2.25)
    ...     roots = list(executor.map(math.sqrt, [1.0, 4.0]))
    >>> future.result(), roots
    (1.5, [1.0, 2.0])

    Many tasks read one array, and each writes its own part of another:

    >>> import operator
    >>> squares = nbshare.zeros(5, "float16")
    >>> with nbshare.Executor() as executor:
    ...     for i in range(5):
    ...         future = executor.submit(operator.setitem, squares, i, i * i)
    >>> squares
    SharedArray([ 0.,  1.,  4.,  9., 16.], dtype=float16)

    Parameters
    ----------
    max_workers : int, optional
        Number of worker processes. Default: the CPUs that this process may use.
    mp_context : None
        Accepted for compatibility with `concurrent.futures.ProcessPoolExecutor`.
    initializer : callable, optional
        Called in each worker before its first task. If the initializer raises, the tasks fail.
        Tasks see the global variables that it sets. If it uses variables of the notebook or script,
        it sees the values that they had when the executor was created.
    initargs : sequence, optional
        Positional arguments of the initializer.
    max_tasks_per_child : int, optional
        Tasks that a worker process runs before a new one replaces it. Default: no limit.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or not supported by nbshare's workers.
    nbshare.errors.UnsendableError
        If the initializer cannot be pickled. A `TypeError`.

    See Also
    --------
    parallel_map : call a function for every item, with progress, plots and one array of results.

    Notes
    -----
    A SharedArray, or a view of one, is sent by reference, and tasks can write to it. Plain arrays
    are copied, and are read-only in the worker, so `share` arrays that many tasks need. A
    `numpy.memmap` that is open for writing is sent by its file name, and tasks can write to the
    file. Large arrays in results are returned through shared memory.

    A future raises its task's exception with its own type and the worker's traceback. If a worker
    dies, only the task that it was running fails, with `nbshare.errors.WorkerDiedError`, which is a
    `BrokenProcessPool`. The executor continues. If a task cannot be pickled, its future raises
    `nbshare.errors.UnsendableError`.

    A web server needs one executor for all requests. The package adaptive cannot read the number of
    workers, so pass it: ``adaptive.Runner(learner, executor=executor, ntasks=4)``.

    All calls of nbshare share the workers. Workers stay alive after `shutdown`, and restart when a
    file that they imported has changed. `nbshare.shutdown` makes running tasks fail, and new
    workers run the queued ones. Tasks see the environment, import path and files as they were when
    the executor was last idle.

    Use it from any thread. When the interpreter exits, it waits for queued tasks (Python 3.12.0 and
    3.12.1 cannot start workers by then, so use ``with`` in these versions). Inside a worker,
    `submit` runs the task immediately. A forked process cannot use its parent's executor.

    References
    ----------
    `concurrent.futures <https://docs.python.org/3/library/concurrent.futures.html>`_
    """

    __module__ = "nbshare"

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Sequence[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        if mp_context is not None:
            raise ValueError(
                f"mp_context={mp_context!r} is not allowed: nbshare starts its own workers, which "
                "all calls share. Leave out mp_context=."
            )
        options = MapOptions(
            max_workers=max_workers,
            chunksize=1,  # tasks may wait for each other
            out="list",
            on_error="return",
            initializer=initializer,
            initargs=initargs,
            max_tasks_per_child=max_tasks_per_child,
        )
        request, _ = checked_request(run_task, [iter(())], options)
        self._max_workers = request.max_workers  # other libraries read this and the next two
        self._initializer: Any = None
        self._initargs: tuple[Any, ...] = ()
        if request.initializer is not None:
            self._initializer, self._initargs = request.initializer
        self._pid = os.getpid()
        self._tasks = TaskQueue(
            request._replace(source=None, prints=Prints()), lambda: Prints(Printer())
        )

    def __repr__(self) -> str:
        tasks = counted(len(self._tasks), "task")
        return f"<Executor: max_workers={self._max_workers}, {tasks} not done>"

    def __reduce__(self) -> Never:
        raise TypeError(
            "an Executor cannot be sent to another process. Create one in that process. Inside a "
            "worker its tasks run immediately, one after the other."
        )

    # Attributes that other libraries read of a `ProcessPoolExecutor` or `ThreadPoolExecutor`.

    _broken = False  # a worker that dies is replaced

    @property
    def _shutdown(self) -> bool:
        return self._tasks.is_closed

    _shutdown_thread = _shutdown

    @property
    def _mp_context(self) -> Any:
        """A `multiprocessing` context, from which libraries create locks, queues and managers."""
        import multiprocessing  # late, because few programs need it

        return multiprocessing.get_context("spawn")

    if not TYPE_CHECKING:  # type checkers report any unknown attribute

        def __getattr__(self, name: str) -> Never:
            if name in _ABSENT:
                raise AttributeError(
                    f"an nbshare.Executor has no attribute {name}: {_ABSENT[name]}"
                )
            raise no_attribute("an Executor", name, dir(self))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Schedule ``fn(*args, **kwargs)`` on a worker.

        Examples
        --------
        One task:

        >>> import math
        >>> import nbshare
        >>> executor = nbshare.Executor()
        >>> executor.submit(math.pow, 2.0, 10.0).result()
        1024.0

        Results in order of completion, each with its label:

        >>> from concurrent.futures import as_completed
        >>> fluxes = {"Deneb": 0.1, "Mira": 0.01}
        >>> stars = {executor.submit(math.log10, flux): star for star, flux in fluxes.items()}
        >>> sorted((stars[future], -2.5 * future.result()) for future in as_completed(stars))
        [('Deneb', 2.5), ('Mira', 5.0)]

        Parameters
        ----------
        fn : callable
            The function, as for `parallel_map`.
        *args, **kwargs
            Arguments of `fn`. They are sent when a worker is free, so do not change them, or refill
            an array, before the task is done.

        Returns
        -------
        concurrent.futures.Future
            Future of the result. It can be cancelled until a worker starts the task.

        Raises
        ------
        RuntimeError
            If called after `shutdown`, while the interpreter exits, or in a forked process.
        TypeError
            If `fn` is asynchronous (``async def``).
        """
        return self._submit(Task(fn, args, kwargs))

    def _submit(self, task: Task, *, more: bool = False) -> futures.Future[Any]:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"process {os.getpid()} was forked from process {self._pid}, to which this "
                "Executor belongs. Create another Executor in this process."
            )
        if is_worker():  # so that max_workers= limits nested calls, too
            return self._run_here(task)
        return self._tasks.put(task, more=more)

    def _run_here(self, task: Task) -> futures.Future[Any]:
        self._tasks.check_open()
        refuse_async(task.func)
        future: futures.Future[Any] = futures.Future()
        future.set_running_or_notify_cancel()
        try:
            if self._initializer is not None:
                self._initializer(*self._initargs)
                self._initializer = None
            result = run_task(task)
        except BaseException as error:  # noqa: BLE001 - a worker would send any of them
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call a function for every item, and iterate over the results in order.

        Examples
        --------
        Like the built-in `map`:

        >>> import math
        >>> import nbshare
        >>> executor = nbshare.Executor()
        >>> list(executor.map(math.gcd, [4, 9], [6, 6]))
        [2, 3]

        Take the first result that is good enough, and cancel queued tasks:

        >>> results = executor.map(math.sqrt, range(100), buffersize=4)
        >>> next(root for root in results if root > 2)
        2.23606797749979

        Parameters
        ----------
        fn : callable
            The function, as for `parallel_map`.
        *iterables : iterable
            Items, as in the built-in `map`. Read immediately, unless `buffersize` is set.
        timeout : float, optional
            Seconds from this call to the last result. Default: no limit.
        chunksize : int, optional
            Items per task. Default 1, which is fast. Thousands of items need less memory in larger
            chunks.
        buffersize : int, optional
            Number of tasks that are queued ahead of the next result. Default: all.

        Returns
        -------
        iterator
            The results in the order of the items. Closing it early cancels queued tasks.

        Raises
        ------
        TimeoutError
            If the next result is not finished in time. Raised by the iterator.
        Exception
            If `fn` raised it. The iterator raises it again.
        """
        refuse_async(fn)
        size = checked_count("chunksize", chunksize)
        n_ahead = checked_count("buffersize", buffersize)
        until_s = None if timeout is None else time.monotonic() + timeout
        # Iterables with a length are complete, so all tasks are queued before the first one runs.
        more = all(isinstance(iterable, Sized) for iterable in iterables)
        items: Iterator[tuple[Any, ...]] = zip(*map(kept_items, iterables), strict=False)
        tasks = (Task(fn, args, {}) for args in items)
        is_chunked = size not in (None, 1)
        if is_chunked:
            chunks = iter(lambda: tuple(itertools.islice(items, size)), ())
            tasks = (Task(partial(run_chunk, fn), chunk, {}) for chunk in chunks)
        first = itertools.islice(tasks, n_ahead)
        ahead = deque(self._submit(task, more=more) for task in first)
        if ahead:
            self._tasks.wake()

        def results() -> Iterator[Any]:
            try:
                while ahead:
                    ahead.extend(self._submit(task) for task in itertools.islice(tasks, 1))
                    yield _result(ahead.popleft(), until_s)
            finally:
                for future in ahead:
                    future.cancel()

        return itertools.chain.from_iterable(results()) if is_chunked else results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new tasks. Workers stay alive for other calls.

        `nbshare.shutdown` also ends the workers, which flushes files that tasks left open.

        Examples
        --------
        Wait for all tasks, and refuse new ones:

        >>> import math
        >>> import nbshare
        >>> executor = nbshare.Executor()
        >>> future = executor.submit(math.sqrt, 9.0)
        >>> executor.shutdown()
        >>> future.done()
        True

        Cancel tasks that have not started:

        >>> import time
        >>> executor = nbshare.Executor(max_workers=1)
        >>> futures = [executor.submit(time.sleep, 0.01) for _ in range(50)]
        >>> executor.shutdown(cancel_futures=True)
        >>> futures[-1].cancelled()
        True

        Parameters
        ----------
        wait : bool, optional
            Whether to return only when all tasks are done. Default True.
        cancel_futures : bool, optional
            Whether to cancel tasks that no worker has started. Default False.
        """
        if os.getpid() != self._pid:  # forked, so the tasks belong to the parent
            return
        self._tasks.close()
        if cancel_futures:
            self._tasks.cancel_waiting()
        if wait:
            self._tasks.join()

    def terminate_workers(self) -> None:
        """Shut down immediately, cancel queued tasks, and kill workers that are running a task.

        Futures of running tasks raise `nbshare.errors.WorkerDiedError` within half a second.
        ``with`` calls this when the kernel's interrupt, or Ctrl-C, ends its block.

        Examples
        --------
        Kill a task that hangs:

        >>> import time
        >>> import nbshare
        >>> executor = nbshare.Executor()
        >>> future = executor.submit(time.sleep, 60)
        >>> executor.terminate_workers()

        Its future is cancelled if the task had not started, or else raises an error:

        >>> from concurrent.futures import wait
        >>> _ = wait([future])
        >>> future.cancelled() or type(future.exception()).__name__ == "WorkerDiedError"
        True
        """
        self.shutdown(wait=False, cancel_futures=True)
        if os.getpid() == self._pid:
            self._tasks.stop()

    kill_workers = terminate_workers  # Python 3.14 has both

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> Literal[False]:
        try:
            if exc_type is not None and issubclass(exc_type, KeyboardInterrupt):
                self.terminate_workers()
            self.shutdown()
        except KeyboardInterrupt:  # during the wait
            self.terminate_workers()
            raise
        return False


def _result(future: futures.Future[T], until_s: float | None) -> T:
    try:
        return future.result(None if until_s is None else until_s - time.monotonic())
    finally:
        future.cancel()  # if it timed out
        del future  # or the future and its error would keep each other alive
