"""Interrupts at each moment that Python has for one."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from opcode import opname


class InterruptAt:
    """Interrupts its thread, once, at one of the moments that Python has for it.

    Python looks for signals when a function begins and when a call is over, and calls the handler
    that is set then. The moments are numbered as they come in some files. `came` says whether there
    were so many. The exception is kept, as a notebook does. The first line of `but`, a function, is
    no such moment.
    """

    def __init__(self, number, files, but=None):
        self.files = files
        self.passed_over = but and but.__code__
        self.error = None
        self.left = number
        self.came = False
        self.calls = set()  # frames whose last instruction was a call

    def __enter__(self):
        # Python swallows what is raised in a finalizer, which might be of another test's object.
        gc.disable()
        sys.settrace(self.trace)
        return self

    def __exit__(self, kind, error, _):
        sys.settrace(None)
        gc.enable()
        self.calls.clear()  # a call that raised is followed by no instruction
        self.error = error
        return kind is KeyboardInterrupt

    def trace(self, frame, event, _):
        """Follow a thread, as `sys.settrace` says."""
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        is_moment = event == "call" and frame.f_code is not self.passed_over
        if event == "opcode":
            is_moment = frame in self.calls
            self.calls.discard(frame)
            if opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL"):
                self.calls.add(frame)
        self.left -= is_moment
        if is_moment and self.left < 0 and not self.came:
            self.came = True
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)
        return self.trace


def each_interrupt(work, files, but=None):
    """Do something again and again, interrupted one moment later each time, until it is done."""
    for number in itertools.count():
        with InterruptAt(number, files, but) as interrupt:
            work()
        yield
        if not interrupt.came:
            assert number > 5
            return
