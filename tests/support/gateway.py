"""A gateway: the one way into a network namespace, by which connections go in, and none come out.

A thread outside listens at a port, and a process inside connects to the same port there. Between
them is a socket in the file system, which both see.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading


def relay(listener, family, address):
    """Connect what comes to a listener to an address, until it is closed."""
    with contextlib.suppress(OSError):
        while True:
            outer, _ = listener.accept()
            threading.Thread(target=join, args=(outer, family, address), daemon=True).start()


def join(outer, family, address):
    """Connect a connection to an address."""
    with outer, socket.socket(family) as inner, contextlib.suppress(OSError):
        inner.connect(address)
        back = threading.Thread(target=pump, args=(inner, outer), daemon=True)
        back.start()
        pump(outer, inner)
        back.join()


def pump(source, sink):
    """Pass on bytes until an end closes."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def outside(path):
    """Listen at a free port, which is given."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way = (listener, socket.AF_UNIX, str(path))
        relaying = threading.Thread(target=relay, args=way)
        relaying.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        relaying.join()


def run_inside(path, port):
    """Let connections in."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        relay(listener, socket.AF_INET, ("127.0.0.1", port))


if __name__ == "__main__":
    run_inside(sys.argv[1], int(sys.argv[2]))
