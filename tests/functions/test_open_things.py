"""What is open belongs to the process that has opened it, and is refused by name."""

# ruff: noqa: SIM115 - files that stay open are what this is about

from __future__ import annotations

import csv
import dbm.dumb
import gc
import gzip
import io
import logging
import mmap
import multiprocessing
import os
import shelve
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import partial

import pytest

import nbshare
from nbshare import Executor, parallel_map
from nbshare.errors import UnsendableError
from tests.support import tasks

pytestmark = pytest.mark.filterwarnings(  # of files that are opened by the way, and kept by none
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def _closed_here():
    """Let go of what stays open while the filters above count, or another test would be blamed."""
    yield
    gc.collect()


def ended_program(_):
    with subprocess.Popen(["true"]) as program:
        return program


# What opens a file of this name, by what the error says to do.
OPENERS = {
    "Pass the path, and": {
        **{mode: partial(open, mode=mode) for mode in ("r", "r+", "w", "a+", "rb", "wb", "r+b")},
        "raw": partial(open, mode="rb", buffering=0),
        "pipe": lambda _: os.fdopen(os.pipe()[0]),
        "program": lambda _: os.popen("true"),
        "temporary": lambda _: tempfile.NamedTemporaryFile(),
        "temporary text": lambda _: tempfile.NamedTemporaryFile("w+"),
        "unnamed text": lambda _: tempfile.TemporaryFile("w+"),
        "gzip": partial(gzip.open, mode="wt"),
        "zip": partial(zipfile.ZipFile, mode="w"),
        "tar": partial(tarfile.open, mode="w"),
        "rows": lambda path: csv.reader(open(path)),
        "writer": lambda path: csv.writer(open(path, "w")),
        "shelf": lambda path: shelve.Shelf(dbm.dumb.open(path)),
        "database": sqlite3.connect,
    },
    "Pass the address, and": {
        "socket": lambda _: socket.socket(),
    },
    "nbshare.RingBuffer as a queue": {
        "connection": lambda _: multiprocessing.Pipe()[0],
        "queue": lambda _: multiprocessing.Queue(),
    },
    "Pass list(...)": {"generator": lambda _: (i for i in range(3))},
    "Pass a numpy.memmap": {"map": lambda _: mmap.mmap(-1, 100)},
    "Get the logger": {"log": logging.FileHandler},
    "Start the program": {"process": ended_program},
}
CASES = [(kind, cure) for cure, kinds in OPENERS.items() for kind in kinds]


@pytest.fixture
def path(tmp_path):
    """Give a file with some lines."""
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n" * 5)
    return str(path)


@pytest.mark.parametrize(("kind", "cure"), CASES, ids=[kind for kind, _ in CASES])
def test_an_open_thing_is_refused_by_name(kind, cure, path):
    """With what to do, and before a copy of it could lose or repeat anything."""
    opened = OPENERS[cure][kind](path)
    try:
        with pytest.raises(UnsendableError, match="its variable 'opened") as caught:
            parallel_map(lambda i: opened and i, range(4))
        assert cure in str(caught.value)
    finally:
        if hasattr(opened, "close"):
            opened.close()


class Reader:
    """Keeps its file."""

    def __init__(self, file):
        self.file = file

    def line(self, _):
        """Return the next line."""
        return self.file.readline()


def write_to(x, file):
    file.write(str(x))


PLACES = {
    "argument": lambda file: parallel_map(partial(write_to, file=file), [1, 2]),
    "object": lambda file: parallel_map(Reader(file).line, [1, 2]),
    "shared": lambda file: parallel_map(write_to, [1, 2], shared={"file": file}),
    "item": lambda file: parallel_map(write_to, [1, 2], [file, file]),
    "deep in an item": lambda file: parallel_map(len, [[{"a": (1, file)}]]),
    "generator": lambda file: parallel_map(write_to, iter([1, 2]), iter([file, file])),
    "initializer": lambda file: parallel_map(abs, [1], initializer=len, initargs=([file],)),
    "task": lambda file: Executor().submit(write_to, 1, file).result(),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_open_file_is_refused_wherever_it_is(place, path):
    """Also one that is only read, as each worker would have a position of its own."""
    with open(path) as file, pytest.raises(UnsendableError, match="Pass the path"):
        PLACES[place](file)
    assert file.closed


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_the_standard_streams_stay_the_workers(name, capsys):
    """Whatever they are, as in a kernel or under pytest."""
    parallel_map(partial(tasks.write_to, getattr(sys, name)), range(3), max_workers=1)
    assert getattr(capsys.readouterr(), name[3:]) == "0\n1\n2\n"
    buffer = io.StringIO("in memory, so a copy")
    assert parallel_map(lambda _: buffer.read(), [0], out="list") == ["in memory, so a copy"]


def test_the_file_of_the_caller_is_left_alone(path):
    """It is not read to its end, nor removed, when it is refused."""
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("one\ntwo\n")
        file.seek(4)
        with pytest.raises(UnsendableError):
            parallel_map(lambda _: file.read(), [0])
        nbshare.shutdown()
        assert os.path.exists(file.name)
        assert file.read() == "two\n"
