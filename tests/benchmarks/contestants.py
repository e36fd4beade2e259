"""The libraries that take part, one class each, used as its documentation says.

A contestant is made with the number of workers and, where every item reads one large array, with
that array. Making it imports the library and starts the workers. Its ``map`` returns the results in
the order of the items. ``func`` gets the array as ``data=``.

Libraries that want a chunk size get one that suits the items, 1 for a few long items, a quarter of
a worker's share for many short ones. nbshare chooses by itself.
"""

from __future__ import annotations

import importlib.metadata

DATA = None  # the large array, in the workers of pools


def keep(data):
    """Keep the large array in a worker, as the initializer of pools."""
    global DATA
    DATA = data


class WithData:
    """Call a function with the array that ``keep`` has kept."""

    def __init__(self, func):
        self.func = func

    def __call__(self, item):
        """Pass the array by name, as all contestants do."""
        return self.func(item, data=DATA)


class WithSharedObject(WithData):
    """The same for mpire, which passes shared objects first."""

    def __call__(self, data, item):
        """Swap the two."""
        return self.func(item, data=data)


def run_chunk(func, items, **data):
    """Run several items as one task, for libraries whose tasks cost much."""
    return [func(item, **data) for item in items]


class Contestant:
    """The base of all, with their common part."""

    name = ""
    package: str | None = None  # the distribution that has to be installed
    module = "contestants"  # where a new process finds the class
    lasting = False  # whether workers usually stay for the whole session, not for a ``with`` block

    def __init__(self, workers, data=None):
        self.workers, self.data = workers, data
        self.by_name = {} if data is None else {"data": data}
        self.open()

    def open(self):
        """Import what is needed and start the workers."""

    def map(self, func, items):
        """Return the results in the order of the items."""
        raise NotImplementedError

    def close(self):
        """End the workers."""

    def bound(self, func):
        """Return the function that pools with an initializer call."""
        return func if self.data is None else WithData(func)

    def chunk(self, items):
        """Return how many items make one task."""
        return 1 if len(items) < 1000 else -(-len(items) // (4 * self.workers))

    def chunks(self, items):
        """Return the items in chunks."""
        step = self.chunk(items)
        return [items[i : i + step] for i in range(0, len(items), step)]


class Loop(Contestant):
    """The limit from below, with no library, no workers."""

    name = "loop"

    def map(self, func, items):
        """Call one after the other."""
        return [func(item, **self.by_name) for item in items]


class Nbshare(Contestant):
    """The library of this project."""

    name = package = "nbshare"
    lasting = True

    def open(self):
        """Share the array once."""
        import nbshare

        self.nbshare = nbshare
        self.shared = {name: nbshare.share(array) for name, array in self.by_name.items()}

    def map(self, func, items):
        """Map without a progress display, as the others."""
        return self.nbshare.parallel_map(
            func, items, shared=self.shared, max_workers=self.workers, progress=False
        )

    def close(self):
        """End workers and give back memory."""
        self.nbshare.shutdown()


class Threads(Contestant):
    """Threads of this process, which share all memory, and one runs Python code at a time."""

    name = "ThreadPoolExecutor"

    def open(self):
        """Start no thread yet, as the executor does so by itself."""
        from concurrent.futures import ThreadPoolExecutor

        self.executor = ThreadPoolExecutor(self.workers)

    def map(self, func, items):
        """Run chunks, where there are many items."""
        tasks = self.executor.map(
            lambda chunk: run_chunk(func, chunk, **self.by_name), self.chunks(items)
        )
        return [result for task in tasks for result in task]

    def close(self):
        """Wait for the threads."""
        self.executor.shutdown()


class PoolFork(Contestant):
    """``multiprocessing.Pool`` whose workers inherit the array."""

    name = "Pool (fork)"
    method = "fork"

    def open(self):
        """Hand the array to each worker by the initializer."""
        import multiprocessing

        context = multiprocessing.get_context(self.method)
        self.pool = context.Pool(self.workers, keep, (self.data,))

    def map(self, func, items):
        """Map with the chunk size that suits the items."""
        return self.pool.map(self.bound(func), items, self.chunk(items))

    def close(self):
        """End the workers."""
        self.pool.terminate()


class PoolSpawn(PoolFork):
    """``multiprocessing.Pool`` whose workers are new processes, to which the array is sent."""

    name = "Pool (spawn)"
    method = "spawn"


class Processes(Contestant):
    """``concurrent.futures.ProcessPoolExecutor``, forked."""

    name = "ProcessPoolExecutor"

    def open(self):
        """Hand the array to each worker by the initializer."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("fork")
        self.executor = ProcessPoolExecutor(self.workers, context, keep, (self.data,))

    def map(self, func, items):
        """Map with the chunk size that suits the items."""
        return list(self.executor.map(self.bound(func), items, chunksize=self.chunk(items)))

    def close(self):
        """End the workers."""
        self.executor.shutdown()


class ProcessMap(Contestant):
    """``tqdm.contrib.concurrent.process_map``, a new pool for each call, forked."""

    name = "process_map"
    package = "tqdm"

    def open(self):
        """Keep the array here, from where the workers inherit it."""
        import multiprocessing

        from tqdm.contrib.concurrent import process_map

        multiprocessing.set_start_method("fork", force=True)
        keep(self.data)
        self.process_map = process_map

    def map(self, func, items):
        """Map with the chunk size that suits the items."""
        return self.process_map(
            self.bound(func),
            items,
            max_workers=self.workers,
            chunksize=self.chunk(items),
            disable=True,
        )


class Joblib(Contestant):
    """``joblib.Parallel`` with its loky workers. It maps large arrays into memory by itself."""

    name = package = "joblib"
    lasting = True

    def open(self):
        """Keep the workers from call to call."""
        import joblib

        self.delayed = joblib.delayed
        self.parallel = joblib.Parallel(self.workers).__enter__()

    def map(self, func, items):
        """Set the batch size only where many items want a large one."""
        chunk = self.chunk(items)
        self.parallel.batch_size = "auto" if chunk == 1 else chunk
        func = self.delayed(func)
        return self.parallel(func(item, **self.by_name) for item in items)

    def close(self):
        """End the workers, because leaving the context would keep them for five minutes."""
        from joblib.externals.loky import get_reusable_executor

        self.parallel.__exit__(None, None, None)
        get_reusable_executor().shutdown(wait=True)


class Mpire(Contestant):
    """``mpire.WorkerPool``, forked, with shared objects."""

    name = package = "mpire"

    def open(self):
        """Keep the workers from call to call."""
        from mpire import WorkerPool

        self.pool = WorkerPool(
            self.workers, shared_objects=self.data, start_method="fork", keep_alive=True
        )

    def map(self, func, items):
        """Map with the chunk size that suits the items, while arrays among results stay apart."""
        return self.pool.map(
            func if self.data is None else WithSharedObject(func),
            items,
            chunk_size=self.chunk(items),
            concatenate_numpy_output=False,
        )

    def close(self):
        """End the workers."""
        self.pool.stop_and_join()


class Dask(Contestant):
    """``dask.distributed`` with a local cluster of processes."""

    name = "Dask"
    package = "distributed"
    lasting = True

    def open(self):
        """Start a cluster without a dashboard, and send the array to every worker."""
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(
            n_workers=self.workers, threads_per_worker=1, dashboard_address=None, memory_limit=0
        )
        self.client = Client(self.cluster)
        self.by_name = {
            name: self.client.scatter(array, broadcast=True) for name, array in self.by_name.items()
        }

    def map(self, func, items):
        """Run chunks, where there are many items."""
        chunks = self.chunks(items)
        tasks = self.client.map(run_chunk, [func] * len(chunks), chunks, pure=False, **self.by_name)
        return [result for task in self.client.gather(tasks) for result in task]

    def close(self):
        """End the cluster."""
        self.client.close()
        self.cluster.close()


class Ray(Contestant):
    """``ray`` on this computer, with the array in its object store."""

    name = "Ray"
    package = "ray"
    lasting = True

    def open(self):
        """Start Ray without a dashboard."""
        import ray

        ray.init(
            num_cpus=self.workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=1_500_000_000,
        )
        self.ray = ray
        self.run_chunk = ray.remote(run_chunk)
        self.by_name = {name: ray.put(array) for name, array in self.by_name.items()}

    def map(self, func, items):
        """Run chunks, where there are many items."""
        func = self.ray.put(func)
        tasks = [self.run_chunk.remote(func, chunk, **self.by_name) for chunk in self.chunks(items)]
        return [result for task in self.ray.get(tasks) for result in task]

    def close(self):
        """End Ray."""
        self.ray.shutdown()


CONTESTANTS = (
    Loop,
    Nbshare,
    Threads,
    PoolFork,
    PoolSpawn,
    Processes,
    ProcessMap,
    Joblib,
    Mpire,
    Dask,
    Ray,
)


def version(cls: type[Contestant]) -> str | None:
    """Return the installed version, or None, and then the contestant takes no part."""
    if cls.package is None:
        return "with Python"
    try:
        return importlib.metadata.version(cls.package)
    except importlib.metadata.PackageNotFoundError:
        return None
