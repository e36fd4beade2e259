"""What items see of the threads of libraries, and change of them."""

from __future__ import annotations

import os
from importlib import import_module

from threadpoolctl import threadpool_info, threadpool_limits

from nbshare._core.wire.threads import VARIABLES


def variables(_):
    return {name: os.environ[name] for name in VARIABLES}


def number(_, name="torch"):
    return import_module(name).get_num_threads()


def both(i):
    return number(i), number(i, "numba"), number(i)


def spoil(_):
    import_module("torch").set_num_threads(7)
    threadpool_limits(7)
    return True


def prepare():
    import_module("torch").set_num_threads(3)
    threadpool_limits(3, user_api="blas")


def of_blas(_):
    return {library["num_threads"] for library in threadpool_info()}
