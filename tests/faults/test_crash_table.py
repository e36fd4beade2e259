"""The crash table, one row for each way in which an item can fail or a worker can die.

Item 3 of 8 fails, in a function of `tests.support.faultlab_tasks`. To add a way to die, write a
function there that does it, and add a row here. The other files of this folder have other faults:
deaths while idle or starting, owners that end, interrupts, limits. The ids are those of the fault
catalogue, see `test_deaths`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.faultlab import FACTS, SOON_S, Lab, wait_until


@dataclass(frozen=True)
class Stumble:
    """A way in which item 3 of 8 fails, and what the caller must learn of it."""

    id: str
    way: str  # the function of faultlab_tasks that item 3 calls
    error: str  # the class, or one of its bases
    says: tuple[str, ...]
    stderr: str = ""
    never_says: str = "memory"

    def check(self, facts: dict[str, Any]) -> None:
        """Compare with what `provoke` told."""
        text = facts["text"]
        assert self.error in facts["classes"], facts
        assert "KeyboardInterrupt" not in facts["classes"], facts
        assert not [words for words in self.says if words not in text], text[:5000]
        assert self.never_says not in text, text
        assert len(text) < 5000, f"{len(text)} characters"
        assert facts["failed_s"] < SOON_S, facts
        # All that returned is kept, but the items after the failure need not have been begun.
        assert {0, 1, 2} <= set(facts["returned"]), facts
        assert facts["kept"] == {str(i): i * 10.0 for i in facts["returned"]}, facts
        assert facts["next_s"] < SOON_S, facts


def _dies(name: str, way: str, *says: str, **others: str) -> Stumble:
    return Stumble(name, way, "WorkerDiedError", ("item 3", *says), **others)


_PLACE = ("item 3", "'stone-3'", 'faultlab_tasks.py", line')
STUMBLES = [
    Stumble("E1-exception", "raises", "ValueError", (*_PLACE, "in raises", "no way on")),
    Stumble("E2-two-arguments", "raises_odd", "TaskError", (*_PLACE, "OddError", "in raises_odd")),
    Stumble("E2-lambda", "raises_lambda", "Exception", (*_PLACE, "ValueError", "holds a lambda")),
    Stumble("E3-result-unpicklable", "gives_generator", "Exception", ("item 3", "generator")),
    Stumble("E3-result-unloadable", "gives_unloadable", "Exception", ("item 3", "never loads")),
    Stumble("E4-str-fails", "raises_mute", "Exception", (*_PLACE, "MuteError")),
    Stumble("E4-endless-text", "raises_endless", "Exception", (*_PLACE, "ValueError", "no end")),
    Stumble("E4-huge-text", "raises_huge", "Exception", (*_PLACE, "ValueError", "no end")),
    Stumble("E4-str-exits", "raises_with_exit", "Exception", (*_PLACE, "ExitingError")),
    Stumble("E4-untouchable", "raises_untouchable", "TaskError", (*_PLACE, "UntouchableError")),
    Stumble("E5-SystemExit", "exits", "TaskError", (*_PLACE, "SystemExit")),
    Stumble("E5-KeyboardInterrupt", "interrupts", "TaskError", (*_PLACE, "KeyboardInterrupt")),
    _dies("D1-SIGKILL", "is_killed", "SIGKILL", "memory", never_says="compiled code"),
    _dies("D2-segfault", "segfaults", "SIGSEGV", stderr="Fatal Python error: Segmentation fault"),
    _dies("D2-abort", "aborts", "SIGABRT", stderr="Fatal Python error: Aborted"),
    _dies("D2-no-name", "is_signalled", "signal 35"),
    _dies("D2-no-time", "has_no_time", "SIGXCPU", "ulimit -t"),
    _dies(
        *("D2-no-time-at-all", "has_no_time_at_all", "SIGKILL", "memory"),
        never_says="compiled code",
    ),
    _dies("D3-exit", "leaves", "exited with status 3"),
    _dies("D3-exec", "becomes_true", "status 0", "os.exec"),
    _dies("D3-exec-stays", "becomes_sleep", "os.exec"),
]


@pytest.fixture(scope="module")
def provoked(tmp_path_factory):
    """Give a script that provokes one failure after the other, as it is asked to."""
    lab = Lab(tmp_path_factory.mktemp("provoked"))
    try:
        yield (
            lab,
            lab.start("""
while True:
    wait_until(Path("way").exists, 1000)
    faultlab.provoke(Path("way").rename("done").read_text())
"""),
        )
    finally:
        lab.close()


@pytest.mark.parametrize("row", STUMBLES, ids=lambda row: row.id)
def test_a_failing_item(provoked, row):
    """The failure is named with its item at once, what is done is kept, the next call works."""
    lab, subject = provoked
    for path in (lab.folder / FACTS, *lab.folder.glob("returned-*")):
        path.unlink(missing_ok=True)
    n_written = len(subject.stderr)
    (lab.folder / "new").write_text(row.way)
    (lab.folder / "new").rename(lab.folder / "way")
    row.check(lab.told())
    wait_until(lambda: row.stderr in subject.stderr[n_written:], SOON_S, "nothing on stderr")
    assert "Traceback" not in subject.stderr[n_written:]
