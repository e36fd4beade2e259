"""The backends of this machine keep the contract, processes, threads, and one after the other."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest

import nbshare
from tests.support import duties
from tests.support.contract import CASES, BackendContract, check_case

N_THREADS = 8


def adder(found):
    return lambda i: found.add(i)


class HereContract(BackendContract):
    """The promises of calls on this machine, too."""

    @pytest.fixture
    def often(self):
        """Let threads take turns more often."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        yield
        sys.setswitchinterval(before)

    def in_threads(self, action):
        """Do something in several threads, which begin together."""
        errors, begin = [], threading.Barrier(N_THREADS)

        def act(k):
            try:
                begin.wait(60)
                action(k)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=act, args=(k,)) for k in range(N_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not errors, errors

    @pytest.mark.usefixtures("often")
    def test_calls_of_several_threads_are_each_as_if_alone(self, run):
        """With any calls at the same time."""
        names = list(CASES)

        def all_cases(k):
            for case in names[k:] + names[:k]:
                check_case(run, case)

        self.in_threads(all_cases)

    @pytest.mark.usefixtures("often")
    @pytest.mark.parametrize("make", [list, iter], ids=["list", "generator"])
    def test_each_thread_has_its_own_shared_objects_and_items(self, run, make):
        """Small and large arrays, in shared memory or not, and blocks of items."""

        def own_data(k):
            values = [np.full(10, k), np.full(9_000, k), nbshare.full(9_000, k)]
            for n in range(3):
                own = {"whose": f"thread {k}", "values": values[n]}
                items = [np.full(600, i * k) for i in range(40)]
                shared = {"own": own, "table": values[(n + 1) % 3]}
                found = run(duties.both, make(items), shared=shared, out="list")
                assert [i.tolist() for i, *_ in found] == [i.tolist() for i in items]
                assert {tuple(rest) for _, *rest in found} == {
                    (own["whose"], float(own["values"].sum()), float(k))
                }

        self.in_threads(own_data)

    def test_threads_that_name_one_file_import_it_once(self, run, tmp_path, log):
        """The others wait for the one that does, and get the same functions."""
        file = tmp_path / "power.py"
        file.write_text(
            f"import os, time\nfrom tests.support import duties\n"
            f"duties.note({log!r}, os.getpid())\n"
            "time.sleep(0.05)\ndef power(x):\n    return x**3\n"
        )

        def call(_):
            assert run(f"{file}:power", range(5)).tolist() == [x**3 for x in range(5)]

        self.in_threads(call)
        assert duties.noted(log).count(str(os.getpid())) == 1


class TestProcesses(HereContract):
    """Worker processes, the default."""

    @pytest.fixture
    def backend(self):
        """Name none."""


class InProcessContract(HereContract):
    """The promises of calls if items run in this process."""

    @pytest.mark.parametrize("make", [lambda found: found.add, adder], ids=["method", "closure"])
    def test_the_function_itself_runs(self, run, make):
        """Its additions to an object of its caller are there."""
        found = set()
        run(make(found), range(100))
        assert found == {*range(100)}

    def test_functions_in_shared_objects_are_themselves(self, run):
        """They share what they use with the caller, as the function does."""
        found = set()
        run(lambda i, note: note(i), range(100), shared={"note": adder(found)})
        assert found == {*range(100)}

    def test_an_initializer_and_the_function_share_their_variables(self, run):
        """The variables that it sets are there for the items, and afterwards."""
        ready = 0

        def get_ready(value):
            nonlocal ready
            ready = value

        found = run(lambda i: i + ready, range(100), initializer=get_ready, initargs=[10])
        assert found.tolist() == [*range(10, 110)]
        assert ready == 10

    def test_a_function_need_not_be_sendable(self, run):
        """It may use locks, and files that are open here."""
        lock, total = threading.Lock(), 0

        def count(i):
            nonlocal total
            with lock:
                total += i

        run(count, range(100))
        assert total == sum(range(100))


class TestThreads(InProcessContract):
    """Threads of this process."""

    lacks = frozenset({"timeout"})

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "threads"


class TestSerial(InProcessContract):
    """One item after the other, in the thread that calls."""

    lacks = frozenset({"timeout", "background"})

    @pytest.fixture
    def backend(self):
        """Name it."""
        return "serial"
