"""The additions of hosts to a call: inputs and code that travel, lost hosts, ends of the client."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import last_job, map_async, open_checkpoint, parallel_map
from nbshare._core.hosts import messages, starting
from nbshare._core.hosts.executor import ExecutorHosts
from nbshare._core.hosts.inbox import Inbox
from nbshare.errors import (
    OutOfMemoryError,
    PartialResultWarning,
    TaskTimeoutError,
    UnsendableError,
    WorkerDiedError,
)
from tests.support import duties, farm, objects
from tests.support.faultlab import wait_until


@pytest.fixture(scope="module")
def lasting(no_helpers_left):
    """Give an executor to tests that leave its hosts alive."""
    with farm.Farm(2) as executor:
        yield executor


@pytest.fixture
def hosts(lasting):
    """Give an executor with two hosts, each with its own agent."""
    lasting.before_submit = lambda: None
    yield lasting
    nbshare.shutdown()
    wait_until(lambda: not lasting.n_busy)  # with agents, which end


@pytest.fixture
def mortal_hosts(no_helpers_left):
    """Give an executor of the same kind, of which hosts may be lost."""
    with farm.Farm(2) as executor:
        yield executor
        nbshare.shutdown()


@pytest.fixture
def threads():
    """Give an executor with two threads, and the options to use it."""
    with ThreadPoolExecutor(2) as executor:
        yield {"backend": executor, "max_workers": 2, "progress": False}
        nbshare.shutdown()


def options(hosts, **others):
    """Return options of calls that use both hosts."""
    return {"backend": hosts, "max_workers": 2, "progress": False, **others}


# ------------------------------------------------------------------------- inputs and code


@pytest.mark.first
def test_inputs_come_once_to_each_host(hosts, monkeypatch, tmp_path):
    """Though many blocks use them, and hosts cannot map the client's memory.

    The task that brings them may run on the other host. They are then given once more, to no avail.
    """
    given = farm.Given(monkeypatch)
    shared = {"table": np.ones(1 << 18), "n": 2}
    for k in range(2):
        shared["folder"] = str(folder := tmp_path / str(k))
        folder.mkdir()
        asked = farm.Asked(monkeypatch, folder / "asked")
        wait_until(lambda: not hosts.n_busy)  # with tasks of the call before
        found = parallel_map(
            farm.total_with_others, range(40), shared=shared, **options(hosts, chunksize=1)
        )
        assert found.tolist() == [float(1 << 18) + i for i in range(40)]
        assert asked.hosts == ["host-0", "host-1"]
        assert 2 <= len(given) < len(found)  # so not with each block
        given.clear()


def test_equal_inputs_do_not_come_again(hosts, monkeypatch, tmp_path):
    """With other items and seeds. A changed array comes to each host, as it is then."""
    given, table = farm.Given(monkeypatch), np.ones(1 << 18)
    asked, both = farm.Asked(monkeypatch, tmp_path / "asked"), ["host-0", "host-1"]
    shared = {"table": table, "folder": str(tmp_path), "n": 2}
    for k in range(3):
        n_before = len(given)
        (tmp_path / "met").unlink(missing_ok=True)  # so that both hosts take part in each call
        if k == 2:
            table[0] = 5
        items = range(10 * k, 10 * k + 20)
        found = parallel_map(
            farm.total_with_noise, items, shared=shared, seed=k, **options(hosts, chunksize=1)
        )
        noise = found - table.sum() - items
        assert (noise > 0).all()
        assert (noise < 1).all()
        wait_until(lambda: not hosts.n_busy)
        assert asked.hosts == (both if k < 2 else sorted(2 * both))
        assert len(given) == n_before if k == 1 else len(given) >= n_before + 2


@pytest.mark.parametrize("name", objects.OBJECTS | objects.OTHERS)
def test_objects_of_packages_arrive(threads, name):
    """As shared objects of any size, whose memory is next to their pickles."""
    shared = {"obj": (objects.OBJECTS | objects.OTHERS)[name]()}
    assert parallel_map(objects.is_known, [name], shared=shared, **threads).tolist() == [True]


@pytest.mark.parametrize("kind", ["number", "array", "dict"])
def test_results_are_in_the_files_of_a_checkpoint_as_they_come(hosts, tmp_path, kind):
    """As those of workers here, so a client that is killed has lost none that it had."""
    flag, path = tmp_path / "flag", tmp_path / "run"
    job = map_async(
        farm.kept_back,
        range(40),
        shared={"kind": kind, "at": 20, "path": str(flag)},
        checkpoint=path,
        **options(hosts, chunksize=1),
    )
    n_done = 0
    while n_done < 20:
        present = job.present
        assert open_checkpoint(path).present[present].all()
        n_done = np.count_nonzero(present)
    flag.touch()
    assert len(job.result(30)) == 40


@pytest.mark.first
def test_both_hosts_work(hosts):
    """On its own machine, a host is known by its name."""
    found = parallel_map(farm.where, range(40), **options(hosts, chunksize=1))
    assert set(found) == {"host-0", "host-1"}


@pytest.mark.parametrize("state", ["missing", "older"])
def test_the_client_s_files_are_what_hosts_run(hosts, tmp_path, monkeypatch, state):
    """A module, its package and helpers, whatever files are there when a host imports them."""
    package, folder = tmp_path / "fields", tmp_path / "tables"
    package.mkdir()
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        tmp_path / "scales.py": "FACTOR = 3\n",
        package / "__init__.py": "",
        folder / "units.py": "UNIT = 1\n",  # a package without a file
        package / "model.py": "import scales\nfrom tables import units\n"
        "def run(x):\n    return x * scales.FACTOR * units.UNIT\n",
    }
    for path, text in files.items():
        path.write_text(text)
    run = importlib.import_module("fields.model").run

    def spoil():
        for path in files:
            path.unlink(missing_ok=True)
            if state == "older":
                path.write_text("FACTOR = 2\ndef run(x):\n    return -x\n")

    hosts.before_submit = spoil
    try:
        assert parallel_map(run, range(5), **options(hosts)).tolist() == [0, 3, 6, 9, 12]
    finally:
        for name in ("scales", "fields", "fields.model", "tables", "tables.units"):
            sys.modules.pop(name, None)


def test_an_edited_file_is_run_as_it_is_now(threads, tmp_path, monkeypatch):
    """By the next call, on a host that has run the version before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "edited.py"
    for n in (1, 22):
        path.write_text(f"def run(x):\n    return x + {n}\n")
        module = nbshare.import_file(path)
        assert parallel_map(module.run, range(2), **threads).tolist() == [n, n + 1]


# ------------------------------------------------------------------------------ failures


def test_a_dead_worker_is_named_with_its_item_and_host(threads):
    """As on this machine. The host goes on."""
    with pytest.raises(WorkerDiedError, match=r"of host .*SIGKILL while it worked on item 7"):
        parallel_map(farm.die_at, range(9), shared={"bad": {7}}, chunksize=4, **threads)
    assert parallel_map(duties.identity, range(3), **threads).tolist() == [0, 1, 2]


def test_a_late_item_is_ended_on_its_host(threads):
    """And is named by its index in the call."""
    with pytest.raises(TaskTimeoutError, match="item 3") as caught:
        parallel_map(duties.doze, [0.0] * 3 + [20.0], timeout=0.3, **threads)
    assert caught.value.index == 3


def test_items_of_a_lost_host_run_again_if_they_may(mortal_hosts, tmp_path):
    """With ``retries=1`` the results are right. Finished items do not run again."""
    shared = {"bad": {5}, "folder": str(tmp_path)}
    found = parallel_map(
        farm.lose_host_at, range(12), shared=shared, retries=1, chunksize=2, **options(mortal_hosts)
    )
    assert found.tolist() == list(range(12))
    ran = [int(i) for i in duties.noted(tmp_path / "ran")]
    # Of its block, item 4 was done on the host, which could not tell.
    assert {i for i in range(12) if ran.count(i) > 1} <= {4, 5}
    assert ran.count(5) == 2


@pytest.mark.first
def test_a_lost_host_is_named_with_what_it_worked_on(mortal_hosts, tmp_path):
    """Without retries nothing runs twice, and what others did is kept."""
    shared = {"bad": {5}, "folder": str(tmp_path)}
    with pytest.raises(WorkerDiedError, match=r"host .*host-\d was lost .* items 4 to 5"):
        parallel_map(
            farm.lose_host_at, range(12), shared=shared, chunksize=2, **options(mortal_hosts)
        )
    assert len(set(ran := duties.noted(tmp_path / "ran"))) == len(ran)
    partial = last_job().partial()
    kept = np.flatnonzero(~partial.mask).tolist()
    assert kept == sorted({*map(int, ran)} - {4, 5})
    assert partial.compressed().tolist() == kept


def test_items_of_a_lost_host_may_fail(mortal_hosts, tmp_path):
    """With ``on_error="return"`` all others have results."""
    shared = {"bad": {5}, "folder": str(tmp_path)}
    found = parallel_map(
        farm.lose_host_at,
        range(12),
        shared=shared,
        chunksize=2,
        on_error="return",
        **options(mortal_hosts),
    )
    assert np.flatnonzero(found.mask).tolist() == [4, 5]
    assert isinstance(last_job().errors[5], WorkerDiedError)


def test_items_run_once_though_the_cluster_repeats_its_tasks(tmp_path):
    """As clusters do whose host was lost. Items run again only as ``retries`` says."""

    class Repeating(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            return super().submit(lambda: [fn(*args), fn(*args)][0])

    log = str(tmp_path / "log")
    with Repeating(2) as executor:
        found = parallel_map(
            duties.noted_row, range(6), shared={"log": log}, chunksize=2, **options(executor)
        )
        nbshare.shutdown()
    assert found[:, 0, 0].tolist() == list(range(6))
    assert duties.noted(log) == list("012345")


def test_an_executor_that_was_shut_down(threads):
    """Its own error comes."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        parallel_map(duties.identity, range(3), **options(executor))


class Broken(ThreadPoolExecutor):
    """A cluster that runs one task, and then is gone."""

    def submit(self, fn, /, *args):
        """Run the first task. Others neither come, nor can they be cancelled."""
        if fn is not None and self._work_queue.empty() and not self._threads:
            future = super().submit(duties.doze, duties.ENOUGH_S)
            future.cancel = self.lose
            return future
        return self.lose()

    def lose(self):
        """Be gone."""
        raise BrokenPipeError("the cluster is gone")


def test_a_cluster_that_is_gone_ends_the_run():
    """Though what waits there can not be cancelled any more."""
    job = map_async(duties.slow, range(9), **options(executor := Broken(1)))
    with pytest.raises(BrokenPipeError, match="the cluster is gone"):
        job.result(5)
    executor.shutdown(wait=False)


def test_tasks_that_end_before_they_begin(threads):
    """Such as those of hosts that return something else, but not again and again."""

    class Useless(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            return super().submit(bytes)

    with Useless(2) as executor, pytest.raises(ConnectionError, match="lost its connection"):
        map_async(duties.slow, range(9), **options(executor)).result(5)


def test_a_profiler_may_keep_frames(threads):
    """As that of Dask's workers does, and with them views of the replies that they read."""
    kept, is_over = [], threading.Event()

    def keep():
        while not is_over.wait(0.0005):
            kept.append(sys._current_frames())

    profiler = threading.Thread(target=keep)
    profiler.start()
    try:
        found = parallel_map(duties.large_row, range(16), **threads)
    finally:
        is_over.set()
        profiler.join()
    assert found[:, 0].tolist() == list(range(16))


def test_a_message_may_end_with_an_empty_part():
    """Its reader has all of it before, and may close the connection then."""

    class UntilClosed(bytearray):
        def settimeout(self, _):
            pass

        def sendall(self, data):
            if not data:
                raise BrokenPipeError
            self.extend(data)

    messages.send(sent := UntilClosed(), b"kind", b"")
    assert [*map(bytes, messages.parts_of(sent))] == [b"kind", b""]


def test_all_tasks_of_a_moment_may_end_before_they_begin():
    """As when the agent of their host is lost. That counts once."""

    class Unready(ThreadPoolExecutor):
        n_tasks = 0

        def submit(self, fn, /, *args):
            self.n_tasks += 1
            return super().submit(*((bytes,) if self.n_tasks <= 6 else (fn, *args)))

    with Unready(6) as executor:
        found = parallel_map(
            duties.identity, range(20), backend=executor, max_workers=6, progress=False
        )
        assert found.tolist() == list(range(20))
        nbshare.shutdown()


def test_inputs_that_cannot_be_sent_end_the_run(hosts, monkeypatch):
    """With the executor's error, such as that of one with a limit for a task's size."""
    submit = hosts.submit

    def submit_small(fn, /, *args):
        return submit(duties.fail_first if args[4] is not None else fn, *args)

    monkeypatch.setattr(hosts, "submit", submit_small)
    job = map_async(farm.total, range(9), shared={"table": np.ones(1 << 18)}, **options(hosts))
    with pytest.raises(TypeError, match="positional") as caught:
        job.result(20)
    assert "raised by the cluster" in caught.value.__notes__[0]


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError, KeyError, BrokenProcessPool, MemoryError])
def test_a_block_whose_task_fails_may_have_begun(threads, tmp_path, error, retries):
    """So its items run again only if they may, whatever error the cluster has for that."""

    class Failing(ThreadPoolExecutor):
        n_tasks = 0

        def submit(self, fn, /, *args):
            self.n_tasks += 1
            return super().submit(self.lose if self.n_tasks == 1 else fn, *args)

        def lose(self, *_):
            duties.note(tmp_path / "ran", "0")
            raise error("the result is lost")

    shared = {"log": tmp_path / "ran"}
    with Failing(1) as executor:
        job = map_async(
            *(duties.noted_row, range(1)), shared=shared, retries=retries, **options(executor)
        )
        if retries:
            assert len(job.result(20)) == 1
        else:
            words = rf"a host was lost .*: {error.__name__}: .*the result is lost"
            with pytest.raises(WorkerDiedError, match=words):
                job.result(20)
    assert len(duties.noted(tmp_path / "ran")) == 1 + retries


def test_an_error_of_this_process_ends_the_run(threads, monkeypatch):
    """Any error of it."""

    def fail(*_):
        raise MemoryError("no room for the results")

    monkeypatch.setattr(Inbox, "take", fail)
    with pytest.raises(MemoryError, match="no room"):
        map_async(duties.slow, range(9), **threads).result(20)


def test_a_host_says_why_it_cannot_run_a_block(threads):
    """Such as that no file there, and so no segment of memory, may be as large as its items."""
    agent = psutil.Process(int(parallel_map(farm.agent_pid, [0], **threads)[0]))
    agent.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(OutOfMemoryError, match="size limit of files") as caught:
        parallel_map(duties.identity, [np.zeros(1 << 18)] * 2, **threads)
    assert "raised by nbshare on host" in caught.value.__notes__[0]


@pytest.mark.parametrize("make", [nbshare.SharedLock, lambda: nbshare.RingBuffer(2, (3,), "f8")])
def test_what_works_on_one_machine_only_is_refused(threads, make):
    """Before anything runs."""
    with pytest.raises(UnsendableError, match="one machine only"):
        parallel_map(duties.add, range(3), range(3), shared={"z": make()}, **threads)


def test_workers_of_this_machine_are_no_hosts():
    """An Executor of nbshare is refused with what to do."""
    with nbshare.Executor() as executor, pytest.raises(ValueError, match="Remove backend="):
        parallel_map(duties.identity, range(3), backend=executor)


# ---------------------------------------------------------------------------------- ends


def test_stop_ends_what_hosts_compute(hosts, tmp_path):
    """Also in the middle of an item. The next call works."""
    job = map_async(
        farm.linger,
        range(2),
        shared={"folder": str(tmp_path)},
        chunksize=1,
        backend=hosts,
        max_workers=2,
    )
    found = [wait_until(lambda i=i: farm.worker_of(tmp_path, i)) for i in range(2)]
    workers = [int(pid) for pid, _ in map(str.split, found)]
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), what="they compute")
    assert parallel_map(duties.identity, range(3), **options(hosts)).tolist() == [0, 1, 2]


def test_a_stopped_run_says_what_cannot_be_stopped(threads, monkeypatch, tmp_path):
    """Blocks on machines that this one cannot reach, of an executor."""
    monkeypatch.setattr(starting, "end", lambda *_: None)
    shared = {"first": 0, "folder": str(tmp_path)}
    job = map_async(duties.hold_from, range(2), shared=shared, chunksize=1, **threads)
    wait_until(lambda: all((tmp_path / f"begun-{i}").exists() for i in range(2)))
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    (tmp_path / "go").touch()
    assert job._run.hints == ["2 blocks of the stopped run may continue on other machines"]


def test_stop_does_not_wait_for_inputs(hosts, monkeypatch, tmp_path):
    """They may take long to come."""
    asked = threading.Event()
    submit = ExecutorHosts.submit

    def submit_late(cluster, number, task, *args):
        if args[3] is not None:  # the inputs
            asked.set()
            task = farm.Late(task, str(tmp_path / "go"))
        submit(cluster, number, task, *args)

    monkeypatch.setattr(ExecutorHosts, "submit", submit_late)
    shared = {"table": np.ones(1 << 18)}
    job = map_async(farm.total, range(2), shared=shared, backend=hosts, max_workers=2)
    assert asked.wait(duties.ENOUGH_S)
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    (tmp_path / "go").touch()
    assert parallel_map(duties.identity, range(3), **options(hosts)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", ["SIGKILL", "os._exit", "exit"])
def test_nothing_is_left_of_a_client_that_ended(lab, way):
    """Agents and workers end with it, busy or idle. The lab looks for them."""
    subject = lab.start(f"""
from concurrent.futures import ThreadPoolExecutor
from tests.support import farm
job = nbshare.map_async(farm.linger, range(2), shared={{"folder": os.getcwd()}}, chunksize=1,
                        backend=ThreadPoolExecutor(2), max_workers=2)
while not all(farm.worker_of(".", i) for i in range(2)):
    time.sleep(0.01)
raise_flag("runs")
if {way!r} == "os._exit":
    os._exit(0)
if {way!r} == "SIGKILL":
    time.sleep(60)
job.cancel()
nbshare.shutdown()
""")
    lab.await_flag("runs")
    if way == "SIGKILL":
        subject.signal(signal.SIGKILL)
    subject.wait()
    wait_until(lab.nobody_left, what="processes are left")


def test_after_a_failure_nothing_is_sent_any_more(hosts, tmp_path):
    """The item that failed least of all."""
    log, n_run = str(tmp_path / "log"), []
    hosts.before_submit = lambda: n_run.append(len(duties.noted(log)))
    with pytest.raises(ValueError, match="at 0"):
        parallel_map(
            duties.fail_first, range(1), shared={"bad": {0}, "log": log, "n": 9}, **options(hosts)
        )
    assert set(n_run) == {0}
