"""The work of processes of other people's pools with arrays that travel by reference."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

import nbshare


def facts(array: np.ndarray) -> tuple[Any, ...]:
    """Return what must survive the way."""
    return (
        type(array).__name__,
        array.shape,
        array.strides,
        array.dtype.str,
        array.flags.writeable,
        array.tolist(),
    )


def fill(array: np.ndarray, value: float) -> None:
    """Write into the sender's memory."""
    array[...] = value


def make(value: float) -> nbshare.SharedArray:
    """Return a new array, of which this process keeps nothing."""
    return nbshare.full((100, 100), value)


def put(queue: Any, value: float, received: Any) -> None:
    """Send a new array and stay until it has been received."""
    queue.put(nbshare.full(1000, value))
    received.wait(20)


def portrait(array: np.ndarray) -> dict[str, Any]:
    """Return all that must survive the way, in words that compare bit by bit."""
    dtype, flags = array.dtype, array.flags
    return {
        "class": type(array).__name__,
        "dtype": dtype,
        "record": issubclass(dtype.type, np.record),
        "fields": repr(dtype.fields and dict(dtype.fields)),  # with offsets and titles
        "is aligned": (dtype.isalignedstruct, flags.aligned),
        "shape": array.shape,
        "strides": array.strides,
        "flags": (flags.c_contiguous, flags.f_contiguous, flags.writeable),
        "bytes": raw(array).tobytes(),
    }


def raw(array: np.ndarray) -> np.ndarray:
    """View the elements as bytes without a meaning. NumPy copies no padding between fields."""
    return np.asarray(array).view(f"V{array.itemsize}") if array.itemsize else np.empty(0)


def differences(array: np.ndarray, expected: dict[str, Any]) -> dict[str, Any]:
    """Return what of an array is not as expected, and how it is."""
    found = portrait(array)
    return {name: (found[name], expected[name]) for name in found if found[name] != expected[name]}


def last_to_first(array: np.ndarray) -> None:
    """Write the last element over the first, if there are two and writing is allowed."""
    if array.flags.writeable and array.size > 1 and array.itemsize:
        first, last = ((place,) * array.ndim + (...,) for place in (0, -1))
        raw(array)[first] = raw(array)[last].copy()


def mirror(reference: bytes, expected: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """Compare what came by reference with a plain pickle, write, and send it back."""
    array = pickle.loads(reference)
    return compare_and_write(array, expected), array


def compare_and_write(array: np.ndarray, expected: bytes) -> dict[str, Any]:
    """Return what of an array is not as expected, and write into it."""
    problems = differences(array, pickle.loads(expected))
    last_to_first(array)
    return problems


def mapped(array: np.ndarray) -> tuple[int, int]:
    """Return how often this process maps the memory that an array is in, and its kB in RAM."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if "-" in line.split()[0]]
    address = array.__array_interface__["data"][0]

    def inode_of(head: int) -> str:
        return lines[head].split()[4]

    def covers(head: int) -> bool:
        start, end = (int(text, 16) for text in lines[head].split()[0].split("-"))
        return start <= address < end

    (inode,) = {inode_of(head) for head in heads if covers(head)}
    same = [head for head in heads if inode_of(head) == inode]
    resident = [next(line for line in lines[head:] if line.startswith("Rss:")) for head in same]
    return len(same), sum(int(line.split()[1]) for line in resident)


def touch_all(*arrays: np.ndarray) -> tuple[float, tuple[int, int]]:
    """Read every element. Return the sum of sums, and how the memory is mapped."""
    return float(sum(array.sum() for array in arrays)), mapped(arrays[0])
