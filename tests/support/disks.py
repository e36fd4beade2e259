"""Disks that record what is written to them, or fail, in the place of `disk.system`."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nbshare._core.memory.disk import System


class Op(NamedTuple):
    """A call that changes a disk, or waits for it."""

    kind: str
    name: str  # of the file, or "" for the folder
    offset: int = 0
    data: bytes = b""


class Recording(System):
    """Notes each call, and makes it."""

    def __init__(self):
        if sys.platform == "win32":
            pytest.skip("which file a descriptor is of, is in /proc")
        self.ops: list[Op] = []
        self._files: dict[str, str] = {}  # each new file has a name of its own, until it is renamed

    def open(self, path: Path, flags: int) -> int:  # noqa: D102
        if path.name[0] == ".":
            self._files[path.name] = f"{path.name} {len(self.ops)}"
        if not path.exists() or flags & os.O_TRUNC:
            self.ops.append(Op("create", self._files.get(path.name, path.name)))
        return super().open(path, flags)

    def _name(self, fd: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return "" if path.is_dir() else self._files.get(path.name, path.name)

    def pwrite(self, fd, data, offset):  # noqa: D102
        self.ops.append(Op("write", self._name(fd), offset, bytes(data)))
        return super().pwrite(fd, data, offset)

    def allocate(self, fd, start, stop):  # noqa: D102
        self.ops.append(Op("allocate", self._name(fd), stop))
        super().allocate(fd, start, stop)

    def truncate(self, fd, nbytes):  # noqa: D102
        self.ops.append(Op("truncate", self._name(fd), nbytes))
        super().truncate(fd, nbytes)

    def sync(self, fd):  # noqa: D102
        self.ops.append(Op("sync", self._name(fd)))
        super().sync(fd)

    def rename(self, source, target):  # noqa: D102
        self.ops.append(Op("rename", self._files[source.name], 0, target.name.encode()))
        super().rename(source, target)


def after(ops) -> dict[str, bytes]:
    """Return the files of a folder after some calls."""
    files: dict[str, bytearray] = {}
    for kind, name, offset, data in ops:
        file = files.setdefault(name, bytearray()) if kind != "sync" else bytearray()
        if kind == "write":
            if len(file) < offset:
                file.extend(bytes(offset - len(file)))
            file[offset : offset + len(data)] = data
        elif kind == "allocate":
            file.extend(bytes(max(0, offset - len(file))))
        elif kind == "truncate":
            del file[offset:]
            file.extend(bytes(offset - len(file)))
        elif kind == "create":
            file.clear()
        elif kind == "rename":
            files[data.decode()] = files.pop(name)
    return {name: bytes(file) for name, file in files.items()}


def unsynced(ops) -> list[int]:
    """Return which calls a disk may have forgotten when the power fails after the last one."""
    pending: list[int] = []
    for i, op in enumerate(ops):
        if op.kind != "sync":
            pending.append(i)
        elif op.name:
            pending = [k for k in pending if ops[k].name != op.name or ops[k].kind in NAMING]
        else:
            pending = [k for k in pending if ops[k].kind not in NAMING]
    return pending


NAMING = {"create", "rename"}  # which are changes of the folder


class Failing(System):
    """Fails once, at the n-th call, or with "short" writes less than it should."""

    def __init__(self, at: int, how: str, *, lasting: bool = False):
        self.n_calls, self.has_failed = 0, False
        self._at, self._how, self._lasting = at, how, lasting

    def _count(self) -> bool:
        self.n_calls += 1
        is_due = self.n_calls > self._at if self._lasting else self.n_calls == self._at + 1
        self.has_failed |= is_due
        if is_due and self._how != "short":
            number = getattr(errno, self._how)
            raise OSError(number, os.strerror(number))
        return is_due

    def open(self, path, flags):  # noqa: D102
        self._count()
        return super().open(path, flags)

    def pwrite(self, fd, data, offset):  # noqa: D102
        if self._count() and len(data) > 1:
            data = data[: len(data) // 2]
        return super().pwrite(fd, data, offset)

    def allocate(self, fd, start, stop):  # noqa: D102
        self._count()
        super().allocate(fd, start, stop)

    def truncate(self, fd, nbytes):  # noqa: D102
        self._count()
        super().truncate(fd, nbytes)

    def sync(self, fd):  # noqa: D102
        self._count()
        super().sync(fd)

    def rename(self, source, target):  # noqa: D102
        self._count()
        super().rename(source, target)


def subsets(pending, random, most):
    """Yield sets of calls that a disk has forgotten: all, each one alone, all but one, others."""
    seen = set()
    every = frozenset(pending)
    first = [every, *({k} for k in pending), *(every - {k} for k in pending)]
    if len(pending) <= 6:
        first += [c for n in range(len(pending) + 1) for c in itertools.combinations(pending, n)]
    more = ({k for k in pending if random.random() < 0.5} for _ in range(most))
    for lost in map(frozenset, (*first, *more)):
        if lost and lost not in seen and len(seen) < most:
            seen.add(lost)
            yield lost
