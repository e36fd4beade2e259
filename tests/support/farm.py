"""Several hosts on one machine, as an executor, and what items do there."""

from __future__ import annotations

import functools
import os
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil

import nbshare
from nbshare._core.hosts import carrier, cluster, travel
from nbshare._core.hosts.dask import DaskHosts
from nbshare._core.hosts.executor import ExecutorHosts
from nbshare._core.hosts.ray import RayHosts
from tests.support import duties
from tests.support.faultlab import SIGKILL, wait_until


def be_host(name):
    """Make this process one of a host of its own, and it has the client's memory by copies only."""
    os.environ["NBSHARE_HOST"] = name
    os.environ["FARM_PROCESS"] = str(os.getpid())


class Farm(Executor):
    """An executor over hosts, of one process each, that knows which of them are alive."""

    def __init__(self, n):
        context = get_context("forkserver")
        self._pools = [ProcessPoolExecutor(1, context, be_host, (f"host-{k}",)) for k in range(n)]
        self._busy = dict.fromkeys(self._pools, 0)
        self.before_submit = lambda: None

    def submit(self, fn, /, *args, **kwargs) -> Future:
        """Run a function on the host that has least to do."""
        self.before_submit()
        while self._busy:
            pool = min(self._busy, key=self._busy.get)
            try:
                future = pool.submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                del self._busy[pool]
                continue
            self._busy[pool] += 1
            future.add_done_callback(functools.partial(self._note_done, pool))
            return future
        raise BrokenProcessPool("no host is left")

    @property
    def n_busy(self):
        """Tasks that are not done."""
        return sum(self._busy.values())

    def _note_done(self, pool, _future):
        if pool in self._busy:
            self._busy[pool] -= 1

    def shutdown(self, wait=True, *, cancel_futures=False) -> None:
        """End all hosts."""
        for pool in self._pools:
            pool.shutdown(wait, cancel_futures=cancel_futures)


class Given(list):
    """The sizes of inputs, for each time that this process gives them to a host or cluster."""

    def __init__(self, monkeypatch):
        start, offers = ExecutorHosts.submit, (DaskHosts, RayHosts)

        def note_submit(hosts, number, task, *args):
            inputs = args[4]
            if hosts.kind == "executor" and inputs is not None:
                self.append(len(inputs))
            start(hosts, number, task, *args)

        def noted(offer):
            def note_offer(hosts, data, is_stopped):
                if not hosts._inputs:
                    self.append(len(data))
                return offer(hosts, data, is_stopped)

            return note_offer

        monkeypatch.setattr(ExecutorHosts, "submit", note_submit)
        for kind in offers:
            monkeypatch.setattr(kind, "offer", noted(kind.offer))


class Asked:
    """The hosts that ask their cluster for the inputs of a call, once each time that they do.

    Parameters
    ----------
    monkeypatch : fixture
        For tasks of clusters, which note what they ask.
    path : path
        A file for these notes.
    """

    def __init__(self, monkeypatch, path):
        self._path, task = path, travel.traveller()
        sources = dict(task._names["sources"])
        sources["carrier"] += NOTE.format(path=str(path))
        noting = carrier.Carry(f"nbshare_noting_{os.getpid()}_{time.time_ns()}", [*sources.items()])
        monkeypatch.setattr(cluster, "traveller", lambda: noting)

    @property
    def hosts(self):
        """Their names, sorted."""
        return duties.noted(self._path)


NOTE = """

_give_piece = _give


def _give(sock, place, inputs, start):
    if inputs is not None and start == 0:
        with open({path!r}, "a") as file:
            file.write(os.environ["NBSHARE_HOST"] + "\\n")
    return _give_piece(sock, place, inputs, start)
"""


class Late:
    """A task of a cluster that waits for a file first.

    Parameters
    ----------
    task : callable
        The task.
    path : str
        The file.
    """

    def __init__(self, task, path):
        self._task, self._path = task, path

    def __call__(self, *args):
        """Wait, and run it."""
        wait_until(Path(self._path).exists, duties.ENOUGH_S)
        return self._task(*args)


def agent():
    """Return the agent of the worker process that this is."""
    return psutil.Process().parent().parent()


def agent_pid(_):
    """Return the process that runs the items of this host."""
    return agent().pid


def lose_host_at(i, bad, folder):
    """Kill the agent of this host in some items, once each."""
    duties.note(f"{folder}/ran", str(i))
    if i in bad and not (marker := Path(folder, f"lost-{i}")).exists():
        marker.touch()
        agent().send_signal(SIGKILL)
        time.sleep(duties.ENOUGH_S)
    return float(i)


def lose_machine_at(i, bad, folder):
    """Kill all of this host in some items, once each: the cluster's process, and the agent."""
    duties.note(f"{folder}/ran", str(i))
    if i in bad and not (marker := Path(folder, f"lost-{i}")).exists():
        marker.touch()
        cluster = psutil.Process(int(os.environ["FARM_PROCESS"]))
        for process in (cluster, agent()):
            process.kill()
        time.sleep(duties.ENOUGH_S)
    return float(i)


def die_at(i, bad):
    """End the worker process in some items."""
    if i in bad:
        os.kill(os.getpid(), SIGKILL)
    return float(i)


def linger(i, folder):
    """Say which process runs it, and take long."""
    duties.note(f"{folder}/worker-{i}", f"{os.getpid()} {network()}")
    time.sleep(duties.ENOUGH_S)


def network():
    """Return what tells machines apart."""
    return os.readlink("/proc/self/ns/net")


def worker_of(folder, i):
    """Return the worker that runs such an item, and its network, or "" if there is none yet."""
    path = Path(folder, f"worker-{i}")
    return path.read_text().strip() if path.exists() else ""


def total(i, table):
    """Use an array."""
    return float(table.sum()) + i


def total_slowly(i, table):
    """Use an array, and take a while."""
    time.sleep(0.05)
    return total(i, table)


def total_with_others(i, table, folder, n):
    """Use an array, and wait until so many hosts do."""
    duties.note(f"{folder}/met", network() + os.environ.get("NBSHARE_HOST", ""))
    wait_until(lambda: len(set(duties.noted(f"{folder}/met"))) == n, 60)
    return total(i, table)


def total_with_noise(i, table, folder, n, rng):
    """Use an array and random numbers, and wait until so many hosts do."""
    return total_with_others(i, table, folder, n) + rng.random()


def total_and_wait(i, table, folder):
    """Use an array, say on which machine, and wait until all may end."""
    found = total(i, table)
    duties.note(f"{folder}/read-{i}", network())
    duties.wait_for(folder, "go")
    return found


def where(i):
    """Return the host that an item runs on."""
    time.sleep(0.02)
    return os.environ["NBSHARE_HOST"]


def agent_of(i, table):
    """Return an item, and the host and the agent that ran it."""
    time.sleep(0.05)
    assert table.all()
    return i, os.environ["NBSHARE_HOST"], agent().pid


def stay_on(i, host, folder):
    """Take long in the first item on a host, and say which process runs it. Others wait for it."""
    duties.note(f"{folder}/ran", str(i))
    marker = Path(folder, host)
    if os.environ["NBSHARE_HOST"] != host:
        wait_until(marker.exists, 60)
    elif not marker.exists():
        duties.note(f"{folder}/worker-{host}", str(os.getpid()))
        marker.write_text(str(i))
        time.sleep(duties.ENOUGH_S)
    return float(i)


def row_of(i, nbytes, folder):
    """Return so many bytes. Item 6 reports, and waits until it may end."""
    if i == 6:
        nbshare.report(0.5)
        duties.wait_for(folder, "go")
    return np.full(nbytes, i, np.uint8)


def stay_once(i, folder):
    """Take long in item 7, the first time, and say which process runs it."""
    duties.note(f"{folder}/ran", str(i))
    if i == 7 and not (marker := Path(folder, "stays")).exists():
        marker.write_text(str(os.getpid()))
        time.sleep(10 * duties.ENOUGH_S)
    time.sleep(0.002)  # otherwise item 7 could run in one batch with items before it
    return float(i)


def kept_back(i, kind, at, path):
    """Return a result, of the later items when there is a file."""
    if i >= at:
        wait_until(Path(path).exists)
    return {"number": i / 2, "array": np.full(4, i), "dict": {"i": i}}[kind]
