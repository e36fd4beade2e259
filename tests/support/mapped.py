"""The view of workers on arrays that `numpy.memmap` has mapped from files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import nbshare


def file_of(array):
    """Return the file that an array is in, as the kernel sees it, or None if there is none."""
    if sys.platform == "win32":  # where the kernel has other names for files
        while not (array is None or isinstance(array, np.memmap)):
            array = array.obj if type(array) is memoryview else getattr(array, "base", None)
        return None if array is None else os.fspath(array.filename)
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_bytes().split(b"\n"):  # some names have a "\r"
        span, _, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(x, 16) for x in span.split(b"-"))
        if start <= address < end:
            return os.fsdecode(path[0]) if path and os.path.isfile(path[0]) else None
    raise AssertionError(f"{address:x} is not mapped")


def file_of_shared(_, x):
    return file_of(x)


def file_in_dict(item):
    return file_of(item["x"])


def is_in_file(block, x):
    """Whether it is, as a block."""
    return np.full_like(block, file_of(x) is not None)


def file_if_true(block, x):
    return file_of(x) if block.all() else None


def facts(_, x):
    """Tell all there is to know of a large array without reading it whole."""
    corners = x[tuple(slice(None, None, max(1, n - 1)) for n in x.shape)]
    flags = x.flags.c_contiguous, x.flags.f_contiguous
    return x.shape, x.strides, x.dtype.str, x.dtype.descr, flags, corners.tobytes()


def worker_facts(_, x):
    """Tell, too, what only a worker's view is like."""
    return *facts(_, x), file_of(x), type(x).__name__, x.flags.writeable


def peek(place, x):
    """Read one element. Tell what `largest_memfd` says, too."""
    return int(x[place]), largest_memfd()


def largest_memfd():
    """Return the size of the largest anonymous file that this process has mapped."""
    sizes = [0]
    if sys.platform == "win32":
        return 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            sizes.append(end - start)
    return max(sizes)


def first(_, x):
    return int(x.flat[0])


def spoil(way, path, x):
    """Do something to a file that the next item's array is to be mapped from."""
    if x is None:
        if way == "gone":
            path.unlink()
        elif way == "truncated":
            os.truncate(path, 1000)
        else:
            other = path.with_suffix(".other")
            other.write_bytes(bytes(path.stat().st_size))
            other.rename(path)
    return 0 if x is None else int(x[0])


def count_descriptors(_, views):
    """Tell how many descriptors this process has open, while it has so many views."""
    return len(views), len(os.listdir("/proc/self/fd"))


def nest(_, x):
    """Give an array to another run."""
    return nbshare.parallel_map(file_of_shared, [0], shared={"x": x}, out="list")[0]


def write(_, x):
    x[0] = 1


def one_block():
    yield np.zeros(1, bool)
