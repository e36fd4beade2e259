"""Every kind of shared memory keeps the same promises, and small arrays share a segment."""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nbshare
from nbshare._core import interrupts
from nbshare._core.memory import (
    Segment,
    View,
    array_slab,
    copying,
    handle,
    handle_of,
    open_handle,
    pool,
    segment_of,
    warm,
)
from nbshare._core.system import SYSTEM, sections
from nbshare.errors import OutOfMemoryError, StaleReferenceError
from tests.support import tasks
from tests.support.faultlab import wait_until
from tests.support.interrupts import InterruptAt, each_interrupt
from tests.support.programs import FILES, SETTING, held, make, n_open, names_left

LIBC = None if os.name == "nt" else ctypes.CDLL(None, use_errno=True)

by_name = pytest.mark.skipif(os.name == "nt", reason="a section can be opened by its name there")
in_kinds = pytest.mark.skipif(SYSTEM != "linux", reason="there is one kind of memory there")


@pytest.fixture(scope="module")
def stranger(no_helpers_left):
    """Return a pool of one process that is not nbshare's."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        yield processes


# ------------------------------------------------------------- what every kind promises


PARTS = {
    "contiguous": np.arange(1000.0).reshape(10, 100),
    "strided": np.arange(1000.0).reshape(10, 100)[::2, ::-3],
    "Fortran order": np.asfortranarray(np.arange(600, dtype="i2").reshape(20, 30)),
    "dates": np.arange("2020-01", "2021-01", dtype="M8[D]"),
    "nothing": np.empty((0, 3)),
    "several pieces": np.arange(40 << 20, dtype="u1"),
}


class TestEveryKind:
    """The contract."""

    pytestmark = pytest.mark.usefixtures("kind")

    def test_it_is_of_the_kind_that_was_asked_for(self, kind):
        """The setting decides, and can be told from the segment."""
        assert Segment.create(1).kind.setting == kind

    def test_fresh_memory_is_writable_zeros_in_whole_pages(self):
        """At least what was asked for, at least a page, all of it zero and to be written."""
        for nbytes in (0, 1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 3 << 20):
            segment = Segment.create(nbytes)
            array = View(segment).array("u1", (segment.nbytes,))
            assert segment.nbytes == max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
            assert not array.any()
            array[:] = 7
            assert Segment.open(segment.read_only(), "r")[:] == b"\7" * segment.nbytes

    @pytest.mark.parametrize("sealed", [True, False])
    def test_it_holds_what_it_was_filled_with(self, sealed):
        """Arrays of any layout are where they should be, with nothing else next to them."""
        for name, source in PARTS.items():
            parts = [(64, source), (8, b"beside")]
            segment = Segment.filled(source.nbytes + 64, parts, sealed=sealed)
            found = View(segment).array(source.dtype, source.shape, 64)
            np.testing.assert_array_equal(found, source, err_msg=name)
            assert bytes(segment[:64]) == bytes(8) + b"beside" + bytes(50)
            assert segment.is_sealed == sealed

    def test_a_sealed_segment_is_refilled_through_its_own_mapping(self):
        """Memory that others cannot write its maker can, and all that have mapped it see it."""
        segment = Segment.filled(8000, [(0, np.zeros(1000))])
        reader = View(Segment.open(segment.read_only(), "r")).array(float, (1000,))
        segment.refill([(0, np.arange(900.0)), (7200, np.arange(300.0)[::3])])
        np.testing.assert_array_equal(reader, [*range(900), *range(0, 300, 3)])

    def test_writable_mappings_are_one_memory(self):
        """A value written through one of them is seen in the other."""
        segment = Segment.create(8)
        other = Segment.open(sections.duplicate(segment.fd), "r+")
        View(segment).array("i8", (1,))[0] = 5
        assert View(other).array("i8", (1,))[0] == 5
        View(other).array("i8", (1,))[0] = 6
        assert View(segment).array("i8", (1,))[0] == 6

    @pytest.mark.parametrize("sealed", [True, False])
    def test_copy_on_write_stays_here(self, sealed):
        """Mode "c" can be written, which no other process sees."""
        segment = Segment.filled(8, [(0, np.int64(5).tobytes())], sealed=sealed)
        private = View(Segment.open(segment.read_only(), "c")).array("i8", (1,))
        private[0] = 6
        assert View(segment).array("i8", (1,))[0] == 5
        assert private[0] == 6

    @by_name
    @pytest.mark.parametrize("sealed", [True, False])
    def test_read_only_is_read_only_by_the_kernel_s_hand(self, sealed):
        """Neither NumPy nor the descriptor nor the mapping can be talked into a write."""
        segment = Segment.filled(8000, [(0, np.ones(1000))], sealed=sealed)
        reader = Segment.open(segment.read_only(), "r")
        array = View(reader).array(float, (1000,))
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(reader.fd, b"2", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(reader.fd, reader.nbytes)
        pages = ctypes.c_void_p(reader.address), ctypes.c_size_t(reader.nbytes)
        assert LIBC.mprotect(*pages, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        assert ctypes.get_errno() == errno.EACCES
        assert (View(segment).array(float, (1000,)) == 1).all()

    @pytest.mark.skipif(SYSTEM != "linux", reason="no /proc, through which it could be")
    def test_a_sealed_segment_is_not_opened_anew_for_writing(self, kind, program, tmp_path):
        """A worker that opens the descriptor through /proc cannot write either."""
        for folder in (tmp_path, *tmp_path.parents):
            if folder == Path(tempfile.gettempdir()):
                break
            folder.chmod(0o711)
        (tmp_path / "memory").chmod(0o777)
        printed = program(
            """
import mmap, os
import nbshare._core.memory.kinds, numpy as np
nbshare._core.memory.Segment.create(8)  # all is imported, which the other user may not be able to
if os.geteuid() == 0:
    os.setuid(65534)  # no file's mode stops the superuser
segment = nbshare._core.memory.Segment.filled(8, [(0, b"original")])
try:
    fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR)
    try:
        mmap.mmap(fd, segment.nbytes)
    except PermissionError:
        os.pwrite(fd, b"changed!", 0)
except PermissionError:
    print(bytes(segment[:8]))
""",
            **{SETTING: kind},
        )
        assert printed == "b'original'\n"

    @pytest.mark.parametrize("way", ["shared", "r"])
    def test_a_map_takes_it(self, way, cold):
        """Arrays go to workers and results come back, whatever memory is made of."""
        dem = np.arange(300_000.0)
        given = nbshare.share(dem, mode="r") if way == "r" else dem
        result = nbshare.parallel_map(
            tasks.add, np.ones((4, 300_000)), [given] * 4, max_workers=2, progress=False
        )
        np.testing.assert_array_equal(result, np.ones((4, 1)) + dem)
        assert segment_of(result)[0].kind.setting == os.environ[SETTING]

    # ------------------------------------------------------------------------ handles

    def test_a_handle_leads_another_process_to_it(self, stranger):
        """It reads and writes the same memory."""
        segment = Segment.filled(8000, [(0, np.arange(1000.0))], sealed=False)
        assert stranger.submit(add_and_sum, handle_of(segment)).result(20) == 499500 + 1000
        np.testing.assert_array_equal(View(segment).array(float, (1000,)), np.arange(1, 1001.0))

    @by_name
    def test_a_handle_of_a_sealed_segment_can_only_be_read(self, stranger):
        """The other process is told so by NumPy, and its descriptor by the kernel."""
        segment = Segment.filled(8000, [(0, np.arange(1000.0))])
        assert stranger.submit(try_to_write, handle_of(segment)).result(20) == (
            "ValueError",
            "OSError",
            499500.0,
        )

    def test_a_handle_comes_back_from_another_process(self, stranger, kind):
        """A segment of another process is found here, though it has kept nothing."""
        segment = open_handle(stranger.submit(make, kind).result(20))
        assert View(segment).array(float, (1000,)).sum() == 499500.0

    def test_a_handle_that_does_not_fit_is_refused(self):
        """Another file under the descriptor's number is not taken for the array."""
        segment = Segment.create(8)
        unknown_here = {"name": "nbshare-1-" + "0" * 14}  # else it would not be looked for
        for forged in ({"inode": 1}, {"fd": 0}, {}):
            with pytest.raises(StaleReferenceError, match="freed it"):
                open_handle(handle_of(segment)._replace(**unknown_here, **forged))

    def test_a_handle_outlived_by_nobody_is_refused(self, program, kind):
        """When its owner has ended the memory is gone, which is said."""
        code = "from tests.support.programs import make\nprint(repr(tuple(make())))"
        values = eval(program(code, **{SETTING: kind}))
        with pytest.raises(StaleReferenceError, match="has ended or freed it"):
            open_handle(type(handle_of(Segment.create(8)))(*values))

    # ---------------------------------------------------------------- nothing is left

    def test_memory_is_freed_with_the_last_view(self):
        """Descriptor and mapping go when the last view goes, not before."""
        segment = Segment.create(8000)
        name, array = segment.name, View(segment).array(float, (1000,))
        view = array.view("u1")[::2].reshape(10, -1)
        before = held(name)
        del segment, array
        assert held(name) == before > 0
        del view
        assert held(name) == 0

    def test_descriptors_do_not_pile_up(self):
        """Making, filling and attaching, also in vain, keeps nothing."""
        with handle.receipts._lock:  # earlier tests' handles may be under way
            handle.receipts._held.clear()
        before = held(), n_open()
        for i in range(100):
            segment = Segment.filled(i, [(0, bytes(i))], sealed=bool(i % 2))
            Segment.open(segment.read_only(), "r")
            with pytest.raises(TypeError):
                Segment.filled(8, [(0, "no buffer")])
        del segment
        assert held() <= before[0]
        assert n_open() <= before[1]

    @pytest.mark.skipif(SYSTEM == "macos", reason="a kill between two calls leaves a name there")
    def test_a_process_that_is_killed_leaves_nothing(self, kind, program, tmp_path):
        """After SIGKILL there is no name in /dev/shm, TMPDIR or the directory of files."""
        process = program.start(
            """
import nbshare, numpy as np
kept = [nbshare.zeros(1 << 20), nbshare.share(np.ones(1000), mode="r")]
print("ready", flush=True)
while True:
    nbshare.zeros(9)
""",
            TMPDIR=str(tmp_path),
            **{SETTING: kind},
        )
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.kill()
        process.communicate()
        left = names_left(process.pid, tmp_path, tmp_path / "memory")
        program("import nbshare; nbshare.zeros(9)", TMPDIR=str(tmp_path), **{SETTING: kind})
        assert len(left) <= 1  # killed in the instant between making and removing a name
        assert not names_left(process.pid, tmp_path, tmp_path / "memory")

    def test_what_comes_back_after_a_shutdown_is_not_kept(self):
        """The garbage collector may find an array's last view then, and its memory goes too."""
        array = nbshare.share(np.ones(1 << 18))
        lent = weakref.ref(segment_of(array)[0])
        nbshare.shutdown()
        assert (array == 1).all()
        del array
        assert lent() is None

    def test_a_shutdown_frees_what_was_kept_for_the_next_call(self):
        """The memory of inputs and results, of which nobody has any more."""
        nbshare.shutdown()
        gc.collect()
        before = held()
        nbshare.parallel_map(np.sum, np.ones((3, 1 << 20)), max_workers=1, progress=False)
        assert held() > before
        nbshare.shutdown()
        assert held() <= before

    # ---------------------------------------------------------------------------- room

    def test_what_does_not_fit_is_refused_before_it_is_allocated(self, kind, monkeypatch):
        """A MemoryError says both figures. No memory was touched and no descriptor is kept."""
        pool.drop()  # memory kept from before is given back first when it is short
        before = held()
        if kind.startswith("file"):
            status = SimpleNamespace(f_bavail=100 << 20, f_frsize=1, f_blocks=1 << 30)
            monkeypatch.setattr("os.statvfs", lambda folder: status)
        else:
            little_memory(monkeypatch)
        for make_one in (Segment.create, lambda nbytes: Segment.filled(nbytes, [])):
            with pytest.raises(MemoryError, match=r"200 MiB .* 100 MiB .*file:DIR") as caught:
                make_one(200 << 20)
            assert isinstance(caught.value, OutOfMemoryError)
        del caught
        assert held() <= before
        assert Segment.create(40 << 20).nbytes == 40 << 20

    @pytest.mark.skipif(SYSTEM != "linux", reason="shared memory is no file there")
    def test_a_limit_on_file_size_is_named(self, kind, program):
        """Memory that is larger, also by growing, is a MemoryError with its size and ulimit -f."""
        printed = program(
            """
import resource, nbshare
from nbshare._core.memory import Segment
small = Segment.create(1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 21))
for make in (lambda: Segment.create(3 << 20), lambda: small.grown(3 << 20, 3 << 20)):
    try:
        make()
    except MemoryError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 1 << 21))
try:
    nbshare.zeros(5000)
except MemoryError as error:
    print(error)
""",
            **{SETTING: kind},
        )
        lines = printed.splitlines()
        assert [line.partition(" of")[0] for line in lines] == ["3 MiB", "3 MiB", "40 KiB"]
        assert all("ulimit -f" in line and kind in line for line in lines), printed

    # --------------------------------------------------------------------------- again

    @in_kinds
    @pytest.mark.parametrize("sealed", [True, False])
    def test_memory_is_used_again_while_the_setting_stays(self, sealed, monkeypatch):
        """A kept segment is handed out again, but not in place of one of another kind."""

        def lease():
            made = pool.filled(2 << 20, [(0, bytes(2 << 20))], sealed=sealed)
            return segment_of(made)[0]

        pool.drop()
        first = lease()
        assert lease() is first
        monkeypatch.setenv(SETTING, "named" if os.environ[SETTING] == "memfd" else "memfd")
        assert lease() is not first
        pool.drop()


def add_and_sum(handle):
    array = View(open_handle(handle)).array(float, (1000,))
    array += 1
    return array.sum()


def try_to_write(handle):
    segment = open_handle(handle)
    array = View(segment).array(float, (1000,))
    errors = []
    for write in (lambda: array.fill(0), lambda: os.pwrite(segment.fd, b"0", 0)):
        try:
            write()
        except (ValueError, OSError) as error:
            errors.append(type(error).__name__)
    return *errors, array.sum()


def little_memory(monkeypatch):
    """Let the machine have 100 MiB left, in its figures, not its memory."""
    monkeypatch.setattr("nbshare._core.system.processes.available_bytes", lambda: 100 << 20)


# ------------------------------------------------------------------- room and names


@in_kinds
def test_named_files_take_memory(monkeypatch):
    """The kind of memory is no way round its shortness. A file on a disk is."""
    little_memory(monkeypatch)
    monkeypatch.setenv(SETTING, "named")
    with pytest.raises(MemoryError, match=r"200 MiB .* 100 MiB"):
        Segment.create(200 << 20)


@in_kinds
def test_a_file_may_be_larger_than_memory(tmp_path, monkeypatch):
    """The size of files on a disk is bounded by the disk alone."""
    little_memory(monkeypatch)
    monkeypatch.setenv(SETTING, f"file:{tmp_path}")
    array = nbshare.zeros(200 << 20, "u1")
    array[-1] = 7
    assert array[-2:].tolist() == [0, 7]


@in_kinds
def test_a_file_on_a_network_file_system_is_known_by_its_new_name(stranger, tmp_path, monkeypatch):
    """There, removing an open file gives it another name, under which it is found all the same."""
    monkeypatch.setattr(os, "unlink", lambda path: os.rename(path, tmp_path / ".nfs00000ab1"))
    monkeypatch.setenv(SETTING, f"file:{tmp_path}")
    segment = Segment.filled(8000, [(0, np.arange(1000.0))])
    assert View(Segment.open(segment.read_only(), "r")).array(float, (1000,)).sum() == 499500
    assert stranger.submit(try_to_write, handle_of(segment)).result(20)[2] == 499500


# ---------------------------------------------------------------------------- what is left


@in_kinds
@pytest.mark.parametrize("setting", ["named", "file"])
def test_what_a_killed_process_has_left_is_swept(program, tmp_path, setting):
    """Killed before it could remove the name, it leaves one. The next start takes it away."""
    process = program.start(
        """
import os, signal, nbshare
unlink = os.unlink
def die(path, **options):
    os.kill(os.getpid(), signal.SIGKILL) if "nbshare-" in path else unlink(path, **options)
os.unlink = die
nbshare.zeros(1 << 20)
""",
        TMPDIR=str(tmp_path),
        **{SETTING: setting},
    )
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL
    (left,) = names_left(process.pid, tmp_path)
    assert left.stat().st_blocks == 0  # a name, no memory
    program("import nbshare; nbshare.zeros(3)", TMPDIR=str(tmp_path), **{SETTING: setting})
    assert not left.exists()


@in_kinds
def test_only_what_dead_processes_have_left_is_swept(program, tmp_path):
    """Living processes' files stay, and so does what only looks like one."""
    alive = tmp_path / f"nbshare-{os.getpid():x}-{'0' * 14}"
    others = [tmp_path / "nbshare-notes.txt", tmp_path / f"nbshare-{2**22:x}-{'0' * 14}.npy"]
    for path in (alive, *others):
        path.touch()
    program("import nbshare; nbshare.zeros(3)", **{SETTING: f"file:{tmp_path}"})
    assert all(path.exists() for path in (alive, *others))


# ------------------------------------------------------------------------ small arrays


def are_apart(arrays):
    """Whether no two of these arrays, which are all zeros, have memory in common."""
    for i, array in enumerate(arrays, start=1):
        if array.any():
            return False
        array[...] = i
    return all((array == i).all() for i, array in enumerate(arrays, start=1))


@pytest.mark.usefixtures("kind")
def test_small_arrays_share_a_segment_that_goes_with_the_last_of_them():
    """One mapping for all, and its descriptors. Nothing is kept for the next one."""
    array_slab.drop()  # of what it has room for, others may have used up most
    arrays = [nbshare.zeros(n, "u1") for n in (10, 1, 0, 64, 10_000)]
    (name,) = {segment_of(array)[0].name for array in arrays}
    assert are_apart([nbshare.share(np.zeros(10)), *arrays, nbshare.zeros((3, 4), order="F")])
    del arrays[1:]
    n_descriptors = 2 if SYSTEM == "macos" else 1  # the second one only reads
    n_mappings = 1 if sys.version_info >= (3, 13) else 2
    assert held(name) == (1 if SYSTEM == "windows" else n_descriptors + n_mappings)
    del arrays
    assert held(name) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork on Windows")
def test_a_forked_child_makes_small_arrays_of_its_own(program):
    """The child's array after a fork is not in the place of the parent's next one."""
    printed = program("""
import os, nbshare
kept = nbshare.zeros(3)
if os.fork() == 0:
    nbshare.full(3, 7.0)
    os._exit(0)
os.wait()
print(kept, nbshare.zeros(3))
""")
    assert printed == "[0. 0. 0.] [0. 0. 0.]\n"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends signals on Windows")
def test_small_arrays_that_are_made_in_the_middle_of_one_another_are_apart():
    """A signal's handler makes one at any moment, as a finalizer may. None waits, none is lost."""
    by_handler, arrays, depth = [], [], 0

    def make(*_):
        nonlocal depth
        if depth < 20:  # on a busy machine each signal comes before the last one's handler is over
            depth += 1
            by_handler.append(nbshare.zeros(9))
            depth -= 1

    before = signal.signal(signal.SIGALRM, make)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        while len(by_handler) < 200:
            arrays.append(nbshare.zeros(9))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert are_apart(arrays + by_handler)


def test_an_interrupt_at_any_moment_of_making_small_arrays_loses_none():
    """Those made before and after are apart, and no memory is kept."""
    gc.collect()
    before = held()
    arrays = [nbshare.zeros(9)]

    def make():
        arrays.append(nbshare.zeros(9))

    for _ in each_interrupt(make, FILES):
        make()
    assert are_apart(arrays)
    arrays.clear()
    assert held() <= before


@pytest.mark.timeout(1200)  # seconds for hundreds of moments, on a busy machine
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_an_interrupt_as_memory_is_lent_leaves_none_that_nobody_trims(monkeypatch, step):
    """When its traceback is gone, the memory goes by itself, without another call."""
    monkeypatch.setattr(warm, "TRIM_S", 0.001)
    monkeypatch.setattr(warm, "IDLE_S", 0.0)
    data = np.ones(1 << 17)
    nbshare.share(data)  # what is found out once
    wait_until(lambda: not pool._is_trimming)
    before = held()
    for number in itertools.count(step=step):
        with InterruptAt(number, {warm.__file__, interrupts.__file__}) as interrupt:
            nbshare.share(data)
        wait_until(lambda: not pool._is_trimming or pool._lent)
        interrupt.error = None  # in no cycle, so views go before what looks after them
        wait_until(lambda: held() <= before, what=f"memory is held after moment {number}")
        if not interrupt.came:
            break
    assert number > 5


def test_several_parts_in_large_memory(kind):
    """They are where they should be, strided ones too, with zeros between them."""
    rng = np.random.default_rng(7)
    table = rng.random((600, 1000))
    parts = [(64, table), (5_000_000, table[:, ::3]), (7_000_000, table.T), (12_000_000, b"abc")]
    filled = Segment.filled(13 << 20, parts)
    expected = np.zeros(13 << 20, np.uint8)
    for offset, part in parts:
        flat = np.frombuffer(part.tobytes() if isinstance(part, np.ndarray) else part, np.uint8)
        expected[offset : offset + len(flat)] = flat
    assert np.array_equal(View(filled).array(np.uint8, expected.shape), expected)


def test_the_free_memory_is_read_when_more_is_kept_and_by_the_trimming_thread(monkeypatch):
    """Not in each call. When the machine is short of memory, what is kept is freed."""
    kept = warm.WarmPool()
    here = threading.get_ident()
    left, readers = 1 << 40, []

    def available_bytes():
        readers.append(threading.get_ident())
        return left

    monkeypatch.setattr("nbshare._core.system.processes.available_bytes", available_bytes)
    for _ in range(30):
        lent = None  # taken again
        lent = kept.writable(2 << 20)[0]
    assert readers.count(here) < 10
    segment = weakref.ref(segment_of(lent)[0])
    left = 0
    del lent
    wait_until(lambda: segment() is None)


def test_an_interrupt_at_any_moment_of_copying_by_threads(monkeypatch):
    """It is a KeyboardInterrupt and no broken lock's error, and no thread writes afterwards."""
    monkeypatch.setattr(copying, "PIECE", 1 << 16)
    monkeypatch.setattr(copying.processes, "usable_cpus", lambda: 3)
    source, target = np.ones((40, 8192)), np.zeros((40, 8192))

    def copy():
        copying.copy_all(list(copying.pieces_to_copy(target, source)))
        assert target.all()

    for _ in each_interrupt(copy, {copying.__file__, threading.__file__}):
        target[...] = 0
        assert not target.any()


def test_an_interrupt_of_copying_waits_for_no_thread_that_has_not_begun(monkeypatch):
    """The copy ends sooner than it would wait for one, whenever the interrupt arrives."""
    monkeypatch.setattr(copying, "PIECE", 1 << 16)
    monkeypatch.setattr(copying.processes, "usable_cpus", lambda: 3)
    source, target = np.ones((40, 8192)), np.zeros((40, 8192))
    took_s, start = [], time.monotonic()

    def copy():
        copying.copy_all(list(copying.pieces_to_copy(target, source)))

    for _ in each_interrupt(copy, {copying.__file__}):
        took_s.append(time.monotonic() - start)
        start = time.monotonic()
    assert max(took_s) < copying.LONGEST_S


def test_copying_ends_when_all_pieces_are_there(monkeypatch):
    """However long the one that another thread has begun takes."""
    monkeypatch.setattr(copying, "LONGEST_S", 0.01)
    monkeypatch.setattr(copying.processes, "usable_cpus", lambda: 2)
    here, has_begun, done = threading.get_ident(), threading.Event(), []

    def piece():
        if threading.get_ident() == here:
            assert has_begun.wait(10)
        else:
            has_begun.set()
            time.sleep(0.2)  # slow memory
        done.append(None)

    copying.copy_all([piece] * 8)
    assert len(done) == 8


def test_memory_may_be_taken_amid_a_step_that_takes_some():
    """By the handler of a signal or a finalizer, at any line. Nobody gets what another one has."""
    taken, nbytes = [], warm.SMALL

    def take():
        new, _ = pool.writable(nbytes)
        assert all(new.ctypes.data != other.ctypes.data for other in taken)
        taken.append(new)
        del new, taken[:-4]  # the others return to the pool

    def amid(frame, event, value):
        if frame.f_code.co_filename != warm.__file__:
            return None
        take()
        return amid

    before = sys.gettrace()
    sys.settrace(amid)
    try:
        for _ in range(3):
            take()
        pool.drop()
    finally:
        sys.settrace(before)
    assert len(taken) == 4


def test_an_array_on_an_object_that_is_its_own_base_has_no_segment():
    """The search for a segment ends, as for arrays of Cython, which SciPy's rotations have."""

    class Own:
        def __init__(self):
            self.memory = np.arange(9.0)
            self.__array_interface__ = self.memory.__array_interface__
            self.base = self

    assert segment_of(np.asarray(Own())) is None
