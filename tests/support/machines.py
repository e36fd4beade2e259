"""Executors whose process has less in common with this one than that of a pool.

For a machine, its name, networks, processes, mounts and shared memory are its own. It has a cable
to a switch, as this machine has, and nothing else in common with it but the disk. All tasks go
through the cables.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor

# Each process has its own, because tests may run in several.
ADDRESS = f"10.77.{os.getpid() % 250}.{{}}"  # 1 is this machine
SWITCH = f"nbs{os.getpid()}"
SLOW = "tbf rate 200mbit burst 256kb latency 400ms"
# One processor takes all packets of a cable, because with two they overtake each other, and TCP
# takes them for lost and sends them again, up to 2 MB in 32.
QUEUES = "/sys/class/net/{}/queues/rx-0/rps_cpus"
PREPARE = """
mount -t tmpfs tmpfs /dev/shm
read go
mount -t sysfs sysfs /sys
echo {} >/proc/sys/kernel/hostname
echo 1 >{}
exec "$@"
"""
LENGTH = struct.Struct("q")
OWN = "unshare", "-n", "-p", "-m", "-i", "-u", "-f"


def why_not():
    """Return why there can be no machines, or None if there can."""
    if (
        sys.platform == "win32"
        or os.getuid()
        or not (shutil.which("ip") and shutil.which("unshare"))
    ):
        return "needs root, ip and unshare"
    tried = subprocess.run([*OWN, "true"], capture_output=True)
    return None if tried.returncode == 0 else "this system allows no new namespaces"


def n_bytes_sent(link=SWITCH):
    """Return how many bytes have left a link, by default this machine."""
    with open(f"/sys/class/net/{link}/statistics/tx_bytes") as file:
        return int(file.read())


def send(file, *parts):
    """Write an object to a pipe."""
    data = pickle.dumps(parts, 5)
    file.write(LENGTH.pack(len(data)) + data)
    file.flush()


def receive(file):
    """Read an object from a pipe, or None at its end."""
    head = file.read(LENGTH.size)
    return pickle.loads(file.read(*LENGTH.unpack(head))) if head else None


def files_of(sock):
    """Return a file to read from a connection, and one to write to it."""
    return sock.makefile("rb"), sock.makefile("wb")


def serve(n, address=None):
    """Run `n` tasks at the same time, which come from an address, or a pipe."""
    if address is None:
        inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
    else:
        inbox, outbox = files_of(socket.create_connection(address))
    lock = threading.Lock()

    def run(number, fn, args):
        try:
            value = fn(*args), None
        except BaseException as error:
            value = None, error
        with lock:
            send(outbox, number, *value)

    with ThreadPoolExecutor(n) as pool:
        while (message := receive(inbox)) is not None:
            pool.submit(run, *message)
    os._exit(0)


class Interpreter(Executor):
    """A new Python process as an executor.

    Parameters
    ----------
    n : int
        Tasks that it runs at the same time.
    python : path, optional
        The interpreter. Default: this one.
    path : list of str, optional
        The places of modules, besides its own. Default: those of this one.
    prefix : list of str, optional
        The command that starts it.
    address : tuple, optional
        Where it has its tasks from. Default: a pipe.
    **environ : str
        The differences in its environment.
    """

    def __init__(self, n, python=sys.executable, path=None, prefix=(), address=None, **environ):
        self._numbers, self._futures = itertools.count(), {}
        self._lock = threading.Lock()
        path = os.pathsep.join(filter(None, sys.path) if path is None else path)
        self._popen = subprocess.Popen(
            [
                *prefix,
                str(python),
                "-c",
                f"from tests.support import machines; machines.serve({n}, {address})",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **environ},
            cwd="/",  # it is on its path, too
        )
        self._inbox, self._outbox = self._connect()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def submit(self, fn, /, *args) -> Future:
        """Run a function there."""
        future, number = Future(), next(self._numbers)
        future.set_running_or_notify_cancel()
        with self._lock:
            self._futures[number] = future
            send(self._outbox, number, fn, args)
        return future

    def _connect(self):
        """Return a file to read from it, and one to write to it."""
        return self._popen.stdout, self._popen.stdin

    def _read(self):
        while (message := receive(self._inbox)) is not None:
            number, value, error = message
            future = self._futures.pop(number)
            future.set_result(value) if error is None else future.set_exception(error)
        for future in self._futures.values():
            future.set_exception(ConnectionError("the machine is gone"))

    @property
    def load(self):
        """Tasks that are not done."""
        return len(self._futures)

    def shutdown(self, wait=True, *, cancel_futures=False) -> None:
        """End it."""
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        self._popen.stdin.close()
        self._popen.stdout.close()


class Machine(Interpreter):
    """One machine as an executor.

    Parameters
    ----------
    k : int
        Its number, from 1.
    n : int
        Tasks that it runs at the same time.
    """

    def __init__(self, k, n):
        prefix = (
            *(*OWN, "--mount-proc", "--kill-child"),
            *("sh", "-c", PREPARE.format(f"machine-{k}", QUEUES.format(f"nbt{k}")), "sh"),
        )
        self._k, self._cable, self._there = k, f"{SWITCH}-{k}", f"nbt{k}"
        with socket.create_server((ADDRESS.format(1), 0)) as self._listener:
            self._listener.settimeout(120)
            super().__init__(n, prefix=prefix, address=self._listener.getsockname())

    def _connect(self):
        self._lay_cable()
        self._popen.stdin.write(b"go\n")
        self._popen.stdin.flush()
        self._socket, _ = self._listener.accept()
        return files_of(self._socket)

    def _lay_cable(self):
        k, here, there, pid = self._k, self._cable, self._there, self._popen.pid
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            pass
        inside = f"nsenter -t {pid} -n ip"
        for command in (
            f"ip link add {here} type veth peer name {there} netns {pid}",
            f"ip link set {here} master {SWITCH} up",
            f"{inside} addr add {ADDRESS.format(k + 1)}/24 dev {there}",
            f"{inside} link set {there} up",
            f"{inside} link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        with contextlib.suppress(OSError), open(QUEUES.format(here), "w") as file:
            file.write("1")

    def part_from_others(self):
        """Have the switch pass on nothing between this machine and others that are parted."""
        command = f"ip link set {self._cable} type bridge_slave isolated on"
        subprocess.run(command.split(), check=True)

    def send_slowly(self):
        """Limit what it sends to 25 MB/s."""
        command = f"nsenter -t {self._popen.pid} -n tc qdisc add dev {self._there} root"
        subprocess.run([*command.split(), *SLOW.split()], check=True)

    @property
    def n_bytes_received(self):
        """Bytes that have gone to it through its cable."""
        return n_bytes_sent(self._cable)

    @property
    def n_bytes_in_memory(self):
        """Bytes that its processes have in memory. Memory that several of them map counts once."""
        import psutil  # late, as no machine needs it

        processes = psutil.Process(self._popen.pid).children(recursive=True)
        return sum(process.memory_full_info().pss for process in processes)

    def shutdown(self, wait=True, *, cancel_futures=False) -> None:
        """Switch it off."""
        if self._cable:
            subprocess.run(["ip", "link", "del", self._cable], check=True)
            self._cable = ""
            self._socket.shutdown(socket.SHUT_RDWR)
            super().shutdown()
            for file in (self._inbox, self._outbox, self._socket):
                file.close()


class Machines(Executor):
    """Several machines as one executor, which gives each task to the one with least to do."""

    def __init__(self, n, n_each):
        _remove_left_switches()
        for command in (
            f"ip link add {SWITCH} type bridge",
            f"ip addr add {ADDRESS.format(1)}/24 dev {SWITCH}",
            f"ip link set {SWITCH} up",
        ):
            subprocess.run(command.split(), check=True)
        self.machines = [Machine(k, n_each) for k in range(1, n + 1)]
        self.in_use = list(self.machines)
        self.n_workers = n * n_each

    def submit(self, fn, /, *args) -> Future:
        """Run a function on a machine."""
        return min(self.in_use, key=lambda machine: machine.load).submit(fn, *args)

    def shutdown(self, wait=True, *, cancel_futures=False) -> None:
        """Switch all off."""
        for machine in self.machines:
            machine.shutdown()
        subprocess.run(["ip", "link", "del", SWITCH], check=True)


def _remove_left_switches():
    """Remove those of runs that were killed, and of a test that failed while it began.

    Another one may have the same addresses.
    """
    for link in os.listdir("/sys/class/net"):
        pid = link.removeprefix("nbs")
        if link == SWITCH or (pid != link and pid.isdigit() and not os.path.exists(f"/proc/{pid}")):
            subprocess.run(["ip", "link", "del", link], check=True)


def serve_dask(address, n, folder):
    """Start Dask workers on a machine."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard"]
    command += ["--nworkers", str(n), "--nthreads", "1", "--local-directory", folder]
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)


class DaskMachines:
    """Several machines as a Dask cluster, whose scheduler is on this one.

    Parameters
    ----------
    n, n_each : int
        Machines, and workers on each of them.
    folder : path
        A place for files.
    """

    def __init__(self, n, n_each, folder):
        import distributed  # late, as other executors have none

        self._folder, self._stack = folder, contextlib.ExitStack()
        self.machines = self._stack.enter_context(Machines(n, 1)).machines
        self._local = self._stack.enter_context(
            distributed.LocalCluster(n_workers=0, host=ADDRESS.format(1), dashboard_address=":0")
        )
        self.client = self._stack.enter_context(distributed.Client(self._local))
        if n_each:
            for machine in self.machines:
                self.start(machine, n_each)
            self.client.wait_for_workers(n * n_each, timeout=120)

    def start(self, machine, n_each=1):
        """Start workers on a machine."""
        folder = f"{self._folder}/{id(machine)}"
        machine.submit(serve_dask, self._local.scheduler_address, n_each, folder).result()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()
