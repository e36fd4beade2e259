"""The kind of shared memory that is taken, and warnings if a system lacks one."""

from __future__ import annotations

import gc
import os
import platform
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nbshare
from nbshare._core.memory import (
    Segment,
    pool,
    segment_of,
)
from tests.support.faultlab import SOON_S, may_mount
from tests.support.interrupts import each_interrupt
from tests.support.programs import FILES, SETTING, held, names_left

needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs a mount namespace")


# -------------------------------------------------------------------------------- the choice


def test_memory_is_a_memfd_by_default(monkeypatch):
    """If that works nothing else is tried, and nothing is said."""
    monkeypatch.delenv(SETTING, raising=False)
    assert Segment.create(1).kind.setting == "memfd"


@needs_mounts
def test_a_kind_that_the_system_lacks_is_an_error(program):
    """A kind that is set by name and missing is not replaced silently."""
    printed = program(
        """
import nbshare
try:
    nbshare.zeros(3)
except OSError as error:
    print(error)
""",
        "mount -t tmpfs -o ro tmpfs /dev/shm",
        **{SETTING: "named"},
    )
    assert "NBSHARE_MEMORY=named" in printed
    assert "Unset it" in printed


def test_a_setting_that_is_none_is_refused(monkeypatch):
    """A wrong word is a ValueError that says what is allowed."""
    for setting in ("memfds", "named:x", "file:", "file:scratch", "disk"):
        monkeypatch.setenv(SETTING, setting)
        with pytest.raises(ValueError, match=f"{setting}.*memfd, named, file, file:DIRECTORY"):
            nbshare.zeros(3)


def test_a_directory_that_does_not_exist_is_named(monkeypatch):
    """The error is that of a missing file, with the setting and the way out."""
    monkeypatch.setenv(SETTING, "file:/not/there")
    with pytest.raises(FileNotFoundError, match=r"file:/not/there.*that you can write to"):
        nbshare.zeros(3)


NUMBER = {"x86_64": 319, "aarch64": 279}.get(platform.machine())

needs_seccomp = pytest.mark.skipif(NUMBER is None, reason="the system call's number is not known")


REFUSE_MEMFD = f"""
import os, warnings
from tests.support import refused
refused.refuse({NUMBER})
try:
    os.memfd_create("refused")
except PermissionError:
    pass
else:
    raise AssertionError("memfd_create works")
import numpy as np
import nbshare
from tests.support import tasks
from nbshare._core.memory import segment_of
warnings.simplefilter("error")
"""


def says(program, code, before="", **environ):
    """Run code where memfd_create is refused. Return the kinds it printed, and the warnings."""
    indented = code.strip("\n").replace("\n", "\n    ")
    printed = program(
        f"""{REFUSE_MEMFD}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    {indented}
for warning in said:
    print(warning.category.__name__, warning.filename == __file__, warning.message)
""",
        before,
        **environ,
    )
    lines = printed.splitlines()
    return [x for x in lines if "Warning" not in x], [x for x in lines if "Warning" in x]


@needs_seccomp
def test_where_memfds_are_refused_another_kind_is_taken_and_said_once(program):
    """Arrays are made as before. One warning says of what, why and how to choose it."""
    kinds, (warning,) = says(
        program,
        """
a, b, c = nbshare.zeros(3), nbshare.share(np.ones(9), mode="r"), nbshare.zeros(1 << 20)
print(segment_of(a)[0].kind.setting, segment_of(c)[0].kind.setting, b.sum())
""",
    )
    assert kinds == ["named named 9.0"]
    assert warning.startswith("UserWarning True")
    for words in ("'named'", "memfd: Operation not permitted", f"{SETTING}=named"):
        assert words in warning


@pytest.mark.first
@needs_seccomp
def test_maps_work_where_memfds_are_refused(program):
    """Workers too make their memory of another kind, and do not say it again."""
    kinds, warnings = says(
        program,
        """
dem = np.arange(300_000.0)
result = nbshare.parallel_map(tasks.add, np.ones((4, 300_000)), [dem] * 4, progress=False)
print((result == 1 + dem).all())
words = nbshare.parallel_map(str, range(100_000), out="list", progress=False)
print(words == list(map(str, range(100_000))))
""",
    )
    assert kinds == ["True", "True"]
    assert len(warnings) == 1


@needs_seccomp
def test_what_was_chosen_is_not_said(program):
    """A kind that the user has set needs no warning."""
    kinds, warnings = says(program, "nbshare.zeros(3)\nprint(3)", **{SETTING: "named"})
    assert (kinds, warnings) == (["3"], [])


@needs_seccomp
def test_a_memfd_that_is_asked_for_and_refused_is_an_error(program):
    """Nothing else is taken instead of what was asked for."""
    kinds, _ = says(
        program,
        """
try:
    nbshare.zeros(3)
except PermissionError as error:
    print(error)
""",
        **{SETTING: "memfd"},
    )
    assert "NBSHARE_MEMORY=memfd" in kinds[0]
    assert "Unset it" in kinds[0]


SMALL_SHM = "mount -t tmpfs -o size=64m tmpfs /dev/shm"

LARGE = "a = nbshare.zeros(200 << 20, 'u1')\na[:] = 7\n"

KIND = "print(a.sum() == 7 * a.size, segment_of(a)[0].kind.setting)\n"


@needs_mounts
@pytest.mark.parametrize("setting", ["memfd", "named", "file"])
def test_a_small_shm_ends_no_process(program, tmp_path, setting):
    """200 MB where /dev/shm has 64 MB. They are there, or an error says why not."""
    code = f"""
import nbshare
from nbshare._core.memory import segment_of
try:
    {LARGE.replace(chr(10), chr(10) + "    ")}{KIND}
except MemoryError as error:
    print(error)
"""
    printed = program(code, SMALL_SHM, TMPDIR=str(tmp_path), **{SETTING: setting})
    if setting == "named":
        assert "200 MiB of shared memory was requested" in printed
        assert "64 MiB is free in /dev/shm" in printed
    else:
        assert printed == f"True {setting}{f':{tmp_path}' if setting == 'file' else ''}\n"


@needs_seccomp
@needs_mounts
def test_what_has_no_room_in_a_small_shm_is_an_error(program):
    """Also if memfds are refused. It names the place, what is free there, and the way out."""
    kinds, _ = says(
        program,
        f"try:\n    {LARGE.splitlines()[0]}\nexcept MemoryError as error:\n    print(error)\n",
        SMALL_SHM,
    )
    for words in ("200 MiB", "64 MiB is free in /dev/shm", f"{SETTING}=file:DIRECTORY"):
        assert words in kinds[0]


TMPDIRS = {
    "full": "mount -t tmpfs -o size=4k tmpfs {0} && head -c 4096 /dev/zero > {0}/full",
    "read-only": "mount -t tmpfs -o ro tmpfs {0}",
    "missing": "rmdir {0}",
}


CHECK = """
def check(folder):
    try:
        with open(f"{folder}/file", "w") as file:
            file.write("word")
    except OSError:
        return
    raise AssertionError(f"{folder} can be written to")
"""


@needs_mounts
@pytest.mark.parametrize("state", TMPDIRS)
def test_the_directory_of_temporary_files_does_not_matter(program, tmp_path, state):
    """With TMPDIR full, read-only or missing and no HOME, arrays and runs work without a word."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    printed = program(
        f"""
{CHECK}
import math, os, nbshare
check(os.environ["TMPDIR"])
a = nbshare.zeros(1 << 20)
print(nbshare.parallel_map(math.sqrt, [4.0, 9.0], progress=False), "HOME" in os.environ)
""",
        f"{TMPDIRS[state].format(tmp)} && unset HOME",
        TMPDIR=str(tmp),
    )
    assert printed == "[2. 3.] False\n"


@needs_mounts
@pytest.mark.parametrize(("state", "error"), [("full", "MemoryError"), ("read-only", "OSError")])
def test_a_directory_of_choice_that_cannot_take_it_is_an_error(program, tmp_path, state, error):
    """A directory that is full or cannot be written to is named, with what to do."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    printed = program(
        f"""
{CHECK}
import nbshare
check({str(folder)!r})
try:
    nbshare.zeros(1 << 20)
except {error} as error:
    print(error)
""",
        TMPDIRS[state].format(folder),
        **{SETTING: f"file:{folder}"},
    )
    assert str(folder) in printed
    assert "file:DIRECTORY" in printed


# ----------------------------------------------------------------- systems without this or that


NO_PROC = "umount -l /proc"


@needs_seccomp
@needs_mounts
@pytest.mark.parametrize("setting", ["", "named"])
def test_without_memfds_and_proc_an_error_says_what_is_missing(program, setting):
    """No array is made if files could not be opened read-only."""
    kinds, warnings = says(
        program,
        "try:\n    nbshare.zeros(3)\nexcept OSError as error:\n    print(error)\n",
        NO_PROC,
        **{SETTING: setting},
    )
    assert "needs /proc, which is not mounted here" in kinds[0]
    assert ("memfd: Operation not permitted" in kinds[0]) == (not setting)
    assert not warnings


@needs_mounts
def test_without_proc_workers_can_only_read_what_is_read_only(program):
    """Sealed memory, and memory that its owner may write, is read-only in a worker."""
    printed = program(
        """
import numpy as np, nbshare
from tests.support import tasks
from nbshare._core.memory import Segment
segment = Segment.filled(8, [(0, b"original")])
try:
    Segment(segment.read_only(), 8, "r+")
except PermissionError:
    print(bytes(segment[:8]))
for array in (np.ones(1 << 20), nbshare.full(1 << 20, 1.0)):
    shared, quiet = {"table": array}, {"progress": False, "on_error": "return"}
    nbshare.parallel_map(tasks.make_writable, [0], shared=shared, **quiet)
    (error,) = nbshare.last_job().errors.values()
    print(type(error).__name__, array[-1])
""",
        NO_PROC,
    )
    assert printed == "b'original'\n" + "ValueError 1.0\n" * 2


@needs_mounts
def test_without_proc_a_reference_to_another_kind_says_why_not(program):
    """The error names the reason and the way out."""
    printed = program(
        """
from nbshare._core.memory import Segment, handle_of
try:
    handle_of(Segment.create(1))
except LookupError as error:
    print(error)
""",
        NO_PROC,
    )
    assert "need /proc" in printed
    assert "numpy.array(x)" in printed


@pytest.mark.parametrize(
    "kind",
    ["memfd", "named", "file"],
    indirect=True,
)
def test_an_interrupt_at_any_moment_loses_no_memory(kind):
    """Made, filled, attached, lent, given back, everything that was opened is closed, and once."""
    data = np.ones(1 << 19)
    nbshare.share(data)  # what is found out once
    gc.collect()  # of other tests
    pool.drop()
    before = held(), len(os.listdir("/proc/self/fd"))

    def make():
        array = nbshare.share(data)
        found, _ = segment_of(array)
        Segment.open(found.read_only(), "r")
        del array, found
        pool.drop()

    for _ in each_interrupt(make, FILES):
        pass
    gc.collect()  # of the interrupts, which hold their frames
    pool.drop()
    assert held() <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert not names_left(os.getpid(), kind.removeprefix("file:"))
    with ThreadPoolExecutor(1) as other:  # for which no lock is left held
        assert len(other.submit(nbshare.share, data).result(SOON_S)) == len(data)
