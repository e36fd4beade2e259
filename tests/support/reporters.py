"""Items that tell how far they are, and wait until a file is there."""

from __future__ import annotations

import os
import threading
import time

import nbshare


def hold(go):
    while not os.path.exists(go):
        time.sleep(0.005)


def told(x, go):
    nbshare.report(x, f"item {x}")
    hold(go)
    return x


def only_the_first_tells(x, go):
    if x == 0:
        nbshare.report(0.5, "half")
    else:
        hold(go)
    return x


def fails_first(x, folder, go):
    try:
        open(f"{folder}/tried", "x").close()
    except FileExistsError:
        hold(go)
        return x
    nbshare.report(0.5, "first try")
    raise ValueError("again")


def outer(x, go):
    nbshare.report(0.25, "outer")
    nbshare.parallel_map(inner, range(3), progress=False)
    open(f"{go}-others", "x").close()
    hold(go)
    return x


def inner(x):
    nbshare.report(0.9, "inner")
    return x


def in_a_thread(x, go):
    thread = threading.Thread(target=nbshare.report, args=(0.5, "thread"))
    thread.start()
    thread.join()
    open(f"{go}-others", "x").close()
    hold(go)
    return x
