"""Arrays in shared memory go through the pools and queues of others as references."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import psutil
import pytest

import nbshare
from nbshare._core.memory import Handle, handle_of, open_handle, segment_of
from nbshare.errors import StaleReferenceError, UnsendableError
from tests.support import receivers
from tests.support.programs import held

PARENT = psutil.Process().ppid()  # by a function that Wine has, too
STARTS = multiprocessing.get_all_start_methods()
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
    ),
    pytest.mark.usefixtures("no_helpers_left"),
]


@pytest.fixture(scope="module", params=STARTS)
def stranger(request):
    """Return a pool that is not nbshare's."""
    context = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


VIEWS = {
    "whole": lambda a: a,
    "slice": lambda a: a[2:7, ::3],
    "reversed": lambda a: a[::-1, ::-2],
    "transposed": lambda a: a.T,
    "reshaped": lambda a: a.reshape(5, -1),
    "of another dtype": lambda a: a.view("u1"),
    "plain": lambda a: np.asarray(a)[1:],
    "one element": lambda a: a[3:4, 5:6],
    "empty": lambda a: a[:0],
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, axis=0),
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_view_arrives_as_it_is(stranger, view):
    """Class, shape, strides, dtype, writeability and values survive the way."""
    array = nbshare.share(np.arange(120, dtype="f2").reshape(10, 12))
    sent = VIEWS[view](array)
    assert stranger.submit(receivers.facts, sent).result(20) == receivers.facts(sent)


def test_a_receiver_writes_into_the_sender_s_memory(stranger):
    """The memory travels, not its values."""
    array = nbshare.zeros((4, 6), "f2")
    stranger.submit(receivers.fill, array[::2, 1:].T, 7).result(20)
    expected = np.zeros((4, 6))
    expected[::2, 1:] = 7
    np.testing.assert_array_equal(array, expected)


def test_a_read_only_view_arrives_read_only(stranger):
    """A view that the sender may not write to, the receiver may not either."""
    array = nbshare.zeros(5)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        stranger.submit(receivers.fill, array, 1).result(20)


def test_a_stranger_s_new_array_arrives(stranger):
    """A result without a reference at its origin is held there until it has been received."""
    for value in range(20):
        array = stranger.submit(receivers.make, value).result(20)
        assert isinstance(array, nbshare.SharedArray)
        assert (array == value).all()


@pytest.mark.parametrize("start", STARTS)
def test_an_array_in_a_queue_outlives_its_sender_s_reference(start):
    """``queue.put(nbshare.full(...))`` arrives, though the sender has kept nothing."""
    context = multiprocessing.get_context(start)
    queue, received = context.Queue(), context.Event()
    process = context.Process(target=receivers.put, args=(queue, 3.0, received))
    process.start()
    array = queue.get(timeout=20)
    received.set()
    process.join(20)
    assert array.sum() == 3000.0


def test_the_memory_is_given_back_once_the_reference_has_arrived():
    """The sender holds what is under way no longer than until it has arrived."""
    ForkingPickler.dumps(nbshare.zeros(3))  # the file of receipts is there
    gc.collect()
    sent = bytes(ForkingPickler.dumps(nbshare.zeros(10_000)))  # in no slab with others
    at_once = held()
    pickle.loads(sent)
    deadline(lambda: held() < at_once)


@pytest.mark.parametrize("order", ["pools, arrays, rings", "arrays, rings, pools"])
def test_what_is_imported_later_goes_by_reference_too(order):
    """Rings, locks and buffers are known to picklers, whichever of all these came first."""
    code = """
import sys
import nbshare
for part in sys.argv[1].split(", "):
    if part == "pools":
        from multiprocessing.reduction import ForkingPickler
    elif part == "arrays":
        array = nbshare.zeros(100_000)
    else:
        tools = [nbshare.RingBuffer(2, (100_000,)), nbshare.SharedLock(),
                 nbshare.SharedBuffer(800_000), nbshare.share({"a": array}, wrap=True)]
assert all(len(ForkingPickler.dumps(tool)) < 4000 for tool in [array, *tools])
"""
    subprocess.run([sys.executable, "-c", code, order], check=True, timeout=60)


def test_a_user_s_own_subclass_does_not_arrive_as_something_else():
    """It would have lost its attributes, and an error says so."""

    class Named(nbshare.SharedLock):
        name = "mine"

    with pytest.raises(TypeError):
        ForkingPickler.dumps(Named())
    with pytest.raises(UnsendableError, match="because it subclasses SharedLock"):
        nbshare.parallel_map(type, [Named(), Named()])


def test_plain_pickle_stores_values():
    """Nothing that may be read in another year points into memory."""
    array = nbshare.full(1000, 2.0)
    stored = pickle.loads(pickle.dumps(array))
    assert type(stored) is np.ndarray
    array[:] = 0
    assert (stored == 2.0).all()


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_reference_is_small(size):
    """A view takes at most 400 bytes next to its dtype, whatever its size."""
    view = nbshare.zeros((size, 2), "f2")[::-3, 1:]
    assert len(ForkingPickler.dumps(view)) <= 400 + len(pickle.dumps(view.dtype))


def test_views_of_one_array_share_one_mapping():
    """Eight overlapping views arrive on the same memory, mapped once."""
    array = nbshare.zeros(1 << 16)
    views = [pickle.loads(bytes(ForkingPickler.dumps(array[i:]))) for i in range(8)]
    assert len({id(segment_of(view)[0]) for view in views}) == 1
    views[0][:] = 1
    assert views[7].all()


def test_an_owner_that_has_ended_is_a_clear_error():
    """A reference from a process that is gone says so at once."""
    code = (
        "import nbshare, sys; from multiprocessing.reduction import ForkingPickler as P; "
        "sys.stdout.buffer.write(bytes(P.dumps(nbshare.zeros(9))))"
    )
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    with pytest.raises(StaleReferenceError, match="has ended or freed it"):
        pickle.loads(sent)


def other_segment(handle):
    """Let another file have the descriptor's number."""
    other = segment_of(nbshare.zeros(10_000))[0]
    os.dup2(other.fd, handle.fd)


def fifo(handle):
    """Let a pipe have the descriptor's number. Opening its other end would block for ever."""
    read, write = os.pipe()
    os.dup2(read, handle.fd)
    os.close(read)
    os.close(write)


@pytest.mark.skipif(os.name == "nt", reason="memory is opened by its name there, not by a number")
@pytest.mark.parametrize("recycle", [other_segment, fifo])
def test_a_recycled_descriptor_is_never_taken_for_the_array(recycle):
    """If the number means another file by now, that is an error, at once, and no other data."""
    array = nbshare.zeros(9)
    handle = handle_of(segment_of(array)[0])
    stale = handle._replace(fd=os.dup(handle.fd), name="nbshare-" + "0" * 16)
    recycle(stale)
    try:
        with pytest.raises(StaleReferenceError, match="freed it"):
            open_handle(stale)
    finally:
        os.close(stale.fd)


@pytest.mark.parametrize(
    "forged", [{"inode": 1}, {"fd": 1 << 20}, {"pid": 1 << 22}, {"pid": PARENT}]
)
def test_a_handle_must_agree_in_everything(forged):
    """A process number that is used again, or any other difference, is refused."""
    handle = handle_of(segment_of(nbshare.zeros(9))[0])
    unknown_here = {"name": "nbshare-" + "0" * 16}
    with pytest.raises(StaleReferenceError):
        open_handle(Handle(**{**handle._asdict(), **unknown_here, **forged}))


def test_another_container_is_refused():
    """In another namespace the same process number means another process."""
    handle = handle_of(segment_of(nbshare.zeros(9))[0])
    with pytest.raises(StaleReferenceError, match="container"):
        open_handle(handle._replace(namespace=1, name="nbshare-" + "0" * 16))


def deadline(holds):
    """Wait until something holds, for 5 s at most."""
    from tests.support.faultlab import wait_until

    wait_until(holds, what="it never held")
