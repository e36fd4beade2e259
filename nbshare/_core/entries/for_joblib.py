"""Registers nbshare as a backend of joblib. Only this imports joblib."""

from nbshare._core.tracebacks import shown_from_the_call


@shown_from_the_call
def register_joblib() -> None:
    """Register the joblib backend ``"nbshare"``, for `joblib.parallel_config`.

    Examples
    --------
    Run the tasks of joblib on nbshare's workers:

    >>> import math
    >>> import joblib
    >>> import nbshare
    >>> nbshare.register_joblib()
    >>> with joblib.parallel_config("nbshare", n_jobs=2):
    ...     joblib.Parallel()(joblib.delayed(math.sqrt)(i) for i in [1, 4, 9])
    [1.0, 2.0, 3.0]

    Run the tasks of a library that uses joblib, such as scikit-learn:

    >>> search = GridSearchCV(SVC(), {"C": [1, 10, 100]})  # doctest: +SKIP
    >>> with joblib.parallel_config("nbshare"):  # doctest: +SKIP
    ...     search.fit(images, digits)

    Raises
    ------
    ImportError
        If joblib is not installed.

    Notes
    -----
    Array arguments of 1 MiB and more are copied to shared memory once per `joblib.Parallel` call.
    Arrays are read-only in the workers, whatever their size. joblib's own processes receive
    writable copies of small ones. A `numpy.memmap` that is open for writing stays writable. Nested
    calls of Parallel run their tasks one after the other. Without ``n_jobs=`` all CPUs are used, as
    with joblib's Dask backend. ``initializer=``, ``initargs=`` and ``inner_max_num_threads=`` work
    as with joblib's own processes.

    References
    ----------
    `Custom backends <https://joblib.readthedocs.io/en/stable/custom_parallel_backend.html>`_
    """
    from nbshare._core.entries.joblib_backend import register  # late, because it needs joblib

    register()
