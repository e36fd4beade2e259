"""Functions that print, in all the ways there are."""

import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from tests.support.processes import kill_now


def count(i):
    print(f"worker {os.getpid()} item {i}")
    return os.getpid()


def to_both(i):
    print(f"out {i}")
    print(f"err {i}", file=sys.stderr)


def in_chinese(i):
    print("before")
    print("数", i)
    print("数", file=sys.stderr)
    print("after")


def without_end(i):
    print(i, end=" ")


def log(i):
    logging.getLogger("talkers").warning("log %d", i)
    warnings.warn(f"careful {i}", stacklevel=1)


PROGRAM = "import os; os.write(1, b'sub %s\\n'); os.write(2, b'suberr %s\\n')"


def by_descriptor(i):
    os.write(1, f"raw {i}\n".encode())
    subprocess.run([sys.executable, "-S", "-c", PROGRAM.replace("%s", str(i))], check=True)
    c_library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    c_library.puts(f"puts {i}".encode())


def in_threads(i):
    threads = [
        threading.Thread(target=lambda k=k: [print(f"{i}-{k}-{n}-") for n in range(200)])
        for k in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def then_die(i):
    print(f"last words of {i}", end="", flush=True)
    kill_now(os.getpid())


def halves(i):
    """Print a line in two writes, while another worker prints."""
    for _ in range(50):
        os.write(1, b"left-")
        time.sleep(0.0005)
        os.write(1, b"right\n")


def flood(i, n_lines):
    line = "x" * 99 + "\n"
    for _ in range(n_lines):
        sys.stdout.write(line)
    return i


def by_a_larger_pipe(i, path, nbytes):
    """Write much in one go, and wait until a file is there."""
    import fcntl

    fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(1, b"x" * (nbytes - 1) + b"\n")
    while not Path(path).exists():
        time.sleep(0.01)


def after(i, path):
    """Print now, and once a file is there."""
    print(f"before {i}")
    while not Path(path).exists():
        time.sleep(0.01)
    print(f"after {i}")


def redirect(path):
    sys.stdout = open(path, "a", buffering=1)  # noqa: SIM115


def unusual(i):
    print("grüße \udcff")
    os.write(1, b"\xff\n")


def slowly(i):
    time.sleep(0.05)
    print(f"out {i}")


def say_much(i):
    print("y" * 14_999)
