"""Any `concurrent.futures.Executor` as hosts: it says nothing of itself, and runs functions."""

from __future__ import annotations

import socket
from concurrent.futures import Executor
from contextlib import closing

from nbshare.hosts.carrier import Boot
from nbshare.hosts.protocol import Future
from nbshare.hosts.travel import traveller
from nbshare.memory import usable_cpus

# Executors whose processes or threads are on this machine.
NEAR = ("concurrent.futures", "loky", "joblib", "nbshare")


class ExecutorHosts:
    """The machines behind an executor, one or several.

    Parameters
    ----------
    executor : Executor
        The executor.
    """

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

    def submit(self, boot: Boot, call: str, number: int) -> Future:
        """Run `carry` somewhere."""
        return self._executor.submit(traveller(), tuple(boot), call, number)


def outward_address(towards: str = "192.0.2.1") -> str:
    """Return the address of this machine that another one sees; default: one far away."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((towards, 9))  # nothing is sent; the system chooses the interface
        except OSError:  # no network
            return "127.0.0.1"
        return str(sock.getsockname()[0])
