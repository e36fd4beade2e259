"""Any `concurrent.futures.Executor` as hosts: it says nothing of itself, and runs functions."""

from __future__ import annotations

import socket
from concurrent.futures import Executor
from contextlib import closing
from typing import Any

from nbshare.hosts.carrier import carry
from nbshare.hosts.protocol import Boot, Future
from nbshare.memory import usable_cpus

__all__ = ["ExecutorHosts", "outward_address"]

# Executors whose processes or threads are on this machine.
NEAR = ("concurrent.futures", "loky", "joblib", "nbshare")


class ExecutorHosts:
    """The machines behind an executor, one or several.

    Parameters
    ----------
    executor : Executor
        The executor.
    """

    is_anonymous = True

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def n_workers(self) -> int:
        """Nobody knows: as many tasks as this machine has CPUs."""
        return usable_cpus()

    @property
    def address(self) -> str:
        """The address of this machine."""
        is_near = type(self._executor).__module__.startswith(NEAR)
        return "127.0.0.1" if is_near else outward_address()

    def submit(self, boot: Boot, message: bytes) -> Future:
        """Run `carry` somewhere."""
        return self._executor.submit(carry, boot, message)

    def put(self, data: bytes) -> Any:
        """Agents fetch what they lack."""
        raise NotImplementedError

    def give(self, boot: Boot, message: bytes, content: Any, place: Any) -> Future:
        """Nobody can say where a task runs."""
        raise NotImplementedError


def outward_address(towards: str = "192.0.2.1") -> str:
    """Return the address of this machine that another one sees; default: one far away."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((towards, 9))  # nothing is sent; the system chooses the interface
        except OSError:  # no network
            return "127.0.0.1"
        return str(sock.getsockname()[0])
