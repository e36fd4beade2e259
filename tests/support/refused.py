"""System calls that the kernel refuses, as in a container with a seccomp profile."""

from __future__ import annotations

import ctypes
import errno
import struct

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2  # linux/prctl.h, seccomp.h
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
ARGUMENTS = 16  # where they begin in what a filter sees, 8 bytes each


def refuse(number: int, code: int = errno.EPERM, argument: int = 0, value: int = -1) -> None:
    """Have a call fail in this process and its children, if an argument has a value, or always."""
    lines = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1 if value < 0 else 3, number)]
    if value >= 0:
        lines += [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_IF_EQUAL, 0, 1, value)]
    lines += [(RETURN, 0, 0, ERRNO | code), (RETURN, 0, 0, ALLOW)]
    text = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(text)
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert (
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(program)) == 0
    )
