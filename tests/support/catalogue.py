"""The code of subjects, which parts of the fault catalogue share."""

from __future__ import annotations

import signal

ENDINGS = {
    "normal end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "uncaught exception": ("raise RuntimeError('the end')", 1),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
}


# A forked child of a kernel cannot end as a script does, because its main loop is the parent's.
LEAVE = """
def leave():
    os._exit(0) if "ipykernel" in sys.modules else sys.exit(0)
"""


# Count what a process holds, without the collector's help.
CENSUS = """
gc.disable()
def census():
    servers, workers = helpers()
    with open("/proc/self/maps") as maps:
        n_maps = sum("nbshare-" in line for line in maps)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")), "maps": n_maps, "servers": len(servers),
        "workers": len(workers), "threads": len(os.listdir("/proc/self/task")),
    }
def is_as(before):
    return all(n <= before[name] for name, n in census().items())
def await_census(before, what):
    wait_until(lambda: is_as(before), SOON_S, lambda: f"{what}: {before}, then {census()}")
def meet(folder, i):
    Path(folder, str(i)).touch()
    wait_until(lambda: len(os.listdir(folder)) == 2)
    return i
def warm():
    "Have two workers at work, and none too many."
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        assert pair(functools.partial(meet, folder), range(2)).tolist() == [0, 1]
def renew():
    nbshare.shutdown()
    warm()
"""
