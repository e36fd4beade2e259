"""Workers have the caller's settings, and what items change of them is undone."""

from __future__ import annotations

import sys

import pytest

from nbshare import Executor, parallel_map
from nbshare._core.system import SYSTEM
from nbshare._core.wire.settings import SETTINGS
from tests.support import settings

BEGIN = """
import os, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
import nbshare
from tests.support import settings
def differ(found, but=()):
    own, found = settings.seen(0), found[0]
    assert found[1:] == own[1:], found
    return {n: (x, found[0][n]) for n, x in own[0].items() if n not in but and found[0][n] != x}
"""


def test_all_settings_are_tried():
    """Each one that the caller has and this system tells."""
    carried = {n for n, s in SETTINGS.items() if s.read and s.is_carried and s.read() is not None}
    assert carried == {*settings.CHANGES}


def test_workers_have_the_callers_settings(script):
    """Those that were there before. An item's changes are undone, for the next call or task."""
    script(f"""{BEGIN}
pair = lambda f, i: nbshare.parallel_map(f, [i], max_workers=1, out="list")
pair(settings.seen, 0)
for names in settings.CHANGES.keys() - settings.HOME, settings.HOME:
    settings.change(1, names)
    for _ in range(2):
        different = differ(pair(settings.seen, 0))
        assert not different, different
        pair(settings.spoil, 2)
with nbshare.Executor(1) as executor:
    for _ in range(2):
        found = [executor.submit(settings.seen, 0).result()]
        assert not differ(found), differ(found)
        executor.submit(settings.spoil, 2).result()
""")


@pytest.mark.parametrize(
    "where",
    [
        "detached",
        pytest.param(
            "host", marks=pytest.mark.skipif(SYSTEM != "linux", reason="clusters need it")
        ),
    ],
)
def test_other_processes_that_run_calls_have_them_too(script, where):
    """The driver of a detached run, and the agent of a host, but what belongs to the machine."""
    script(f"""{BEGIN}
from nbshare._core.wire.settings import SETTINGS
folder = tempfile.mkdtemp(dir=os.getcwd())
settings.change(1)
if {where!r} == "detached":
    job = nbshare.map_async(settings.seen, [0], out="list", checkpoint=folder + "/c", detach=True)
    found = job.result()
else:
    with ThreadPoolExecutor(1) as pool:
        found = nbshare.parallel_map(settings.seen, [0], out="list", backend=pool)
local = [name for name, setting in SETTINGS.items() if setting.is_local]
assert not differ(found, local), differ(found, local)
""")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits, and no other users")
@pytest.mark.parametrize("how", ["calls", "tasks"])
def test_a_worker_that_cannot_be_restored_is_replaced(how, cold):
    """A lowered hard limit, a niceness or another user stay in a process. Others go on."""
    (before,) = parallel_map(settings.user_and_limits, [0], max_workers=1, out="list")
    if how == "calls":
        pids = parallel_map(settings.lower_for_good, [0], max_workers=1).tolist()
        (after,) = parallel_map(settings.user_and_limits, [0], max_workers=1, out="list")
    else:
        with Executor(1) as executor:
            pids = [executor.submit(settings.lower_for_good, 0).result()]
            after = executor.submit(settings.user_and_limits, 0).result()
    assert after[:3] == before[:3]
    assert pids == [before[3]] != [after[3]]
