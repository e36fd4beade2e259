"""What items see of their process, by `multiprocessing` and `logging`."""

from __future__ import annotations

import logging
import os
import sys

from nbshare import parallel_map


def who(_):
    import multiprocessing

    here, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    record = logging.LogRecord("name", logging.INFO, __file__, 1, "", None, None)
    return {
        "name": here.name,
        "in logs": record.processName,
        "identity": here._identity,
        "pid": here.pid == os.getpid(),
        "is alive": here.is_alive(),
        "daemon": here.daemon,
        "parent": (parent.pid, parent.name, parent.is_alive()),
    }


def has_imported(name):
    return name in sys.modules


def in_a_pool(i):
    from multiprocessing import get_context

    with get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-i, i]), pool.map(identity, [0])[0]


def identity(_):
    from multiprocessing import current_process

    return current_process()._identity[0], current_process().daemon


def nested(i):
    return parallel_map(abs, [-i, i], out="list")
