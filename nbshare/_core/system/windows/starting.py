"""The start of a process in a job, for which `subprocess` would need two steps.

A process that is created suspended and assigned to a job later would wait forever if its owner were
killed in between.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, sizeof, wintypes
from typing import Any

from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import BOOL, DWORD, HANDLE, POINTER, SIZE

QUIET = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
UNICODE, EXTENDED = 0x400, 0x80000  # CREATE_UNICODE_ENVIRONMENT, EXTENDED_STARTUPINFO_PRESENT
HANDLE_LIST, JOB_LIST = 0x20002, 0x2000D  # PROC_THREAD_ATTRIBUTE_HANDLE_LIST, _JOB_LIST


class _Startup(ctypes.Structure):  # STARTUPINFOEXW
    _fields_ = (
        ("size", DWORD),
        ("texts", POINTER * 3),
        ("window", DWORD * 7),
        ("flags", DWORD),
        ("more", wintypes.WORD * 2),
        ("reserved", POINTER),
        ("streams", HANDLE * 3),
        ("attributes", POINTER),
    )


class _Started(ctypes.Structure):  # PROCESS_INFORMATION
    _fields_ = (("process", HANDLE), ("thread", HANDLE), ("pid", DWORD), ("thread_id", DWORD))


_new_list = handles.function(
    *("InitializeProcThreadAttributeList", BOOL, POINTER),
    *(DWORD, DWORD, ctypes.POINTER(SIZE)),
)
_add = handles.function(
    *("UpdateProcThreadAttribute", BOOL, POINTER),
    *(DWORD, SIZE, POINTER, SIZE, POINTER, POINTER),
)
_create = handles.function(
    *("CreateProcessW", BOOL, wintypes.LPCWSTR, wintypes.LPWSTR),
    *(POINTER, POINTER, BOOL, DWORD, wintypes.LPWSTR, wintypes.LPCWSTR),
    *(ctypes.POINTER(_Startup), ctypes.POINTER(_Started)),
)


def start_in(
    job: int, command: Sequence[str], environ: Mapping[str, str], streams: tuple[int, int, int]
) -> tuple[int, int]:
    """Start a process that inherits only its standard streams. Return its handle and number."""
    for stream in set(streams):
        os.set_handle_inheritable(stream, True)
    lists = {HANDLE_LIST: _array(set(streams)), JOB_LIST: _array([job])}
    size = SIZE()
    with suppress(OSError):  # this call only returns the size
        _new_list(None, len(lists), 0, byref(size))
    attributes = ctypes.create_string_buffer(size.value)
    _new_list(attributes, len(lists), 0, byref(size))
    started, startup = _Started(), _Startup(flags=subprocess.STARTF_USESTDHANDLES)
    startup.size, startup.streams = sizeof(startup), _array(streams)
    startup.attributes = ctypes.addressof(attributes)
    line = ctypes.create_unicode_buffer(subprocess.list2cmdline(command))
    # Sorted, as the system requires.
    variables = sorted(environ.items(), key=lambda variable: variable[0].upper())
    block = ctypes.create_unicode_buffer("".join(f"{k}={v}\0" for k, v in variables))
    try:
        for kind, values in lists.items():
            _add(attributes, 0, kind, values, sizeof(values), None, None)
        how = QUIET | UNICODE | EXTENDED
        _create(None, line, None, None, True, how, block, None, byref(startup), byref(started))
    finally:
        ctypes.windll.kernel32.DeleteProcThreadAttributeList(attributes)
    handles.close(started.thread)
    return started.process, started.pid


def _array(values: Iterable[int]) -> ctypes.Array[Any]:
    values = tuple(values)
    return (HANDLE * len(values))(*values)
