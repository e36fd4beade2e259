"""A run that several processes share. They need only a common folder.

::

    parts/                  in the folder of the checkpoint, until all items are done
        sweep.json          the run
        claims/0, 1, 2 ...  the items that a process runs; each number is created by one process
        3f0c81.../          a part: the results of a process for a call; a row for each item
        stop                created by `Job.cancel` of an attached job

Each process runs calls as usual, with a part as their checkpoint, and their workers see only the
items that the process has claimed. A claim takes the next free number, and its file appears
complete, so all claims are ordered, and the last claim of an item counts. Other processes claim the
missing items of a process that has ended. No two processes write to the same file. If a process
outlives its lease, items may run twice, but results are the same.

When all items are stored, one process becomes the writer of the checkpoint, and merges the parts.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare._core.checkpoint.digests import digest
from nbshare._core.checkpoint.directory import Directory, check_place
from nbshare._core.checkpoint.keeper import CheckpointKeeper
from nbshare._core.checkpoint.key import differences, key_of
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.checkpoint.reader import whole_of
from nbshare._core.checkpoint.writer import PARTS, check_free, running_writer_of
from nbshare._core.engine.call import Call, Supply
from nbshare._core.engine.request import Request
from nbshare._core.engine.supply import Pace
from nbshare._core.store import files
from nbshare._core.store.files import read_json
from nbshare._core.store.pages import FAILED
from nbshare._core.store.reading import STORED
from nbshare._core.store.rows import runs_of
from nbshare._core.system import files as system_files
from nbshare._core.system import waiting
from nbshare.errors import CheckpointInUseError

SWEEP, CLAIMS, STOP = "sweep.json", "claims", "stop"
SHARERS_CHECK_S = 0.5  # interval of checks of the other processes
OPENING_S = 0.05  # interval of checks while another process opens the checkpoint
LEAST_S, CLAIM_S = 0.05, 1.0  # work in a claim: least, and usual
OF_AGE = 0.02  # share of the time so far, for larger claims later
AHEAD_S = 0.1  # work that is left when a process claims more
FORGETS_S = 1.5  # until a network file system stops showing removed files
N_RECENT = 100  # claims from which the number of processes is estimated


class Sweep(Supply):
    """One process's share of a run. Claims items for its calls.

    Parameters
    ----------
    options : Checkpoint
        The folder, and the options.
    request : Request
        The request of the run.

    Attributes
    ----------
    began_at : float
        The start of the run, in seconds since 1970.
    """

    _event: waiting.OwnerEvent  # the current call's

    def __init__(self, options: Checkpoint, request: Request) -> None:
        check_place(options.path)
        self._options, self._request = options, request
        self._key = key_of(request, options.version)
        self._pairs = self._key.items.next(request.iterables)
        parts = {**self._key.parts, "out=": str(request.out)}
        self._what: dict[str, Any] = {"items": digest(self._pairs.tobytes()).hex(), "parts": parts}
        self._folder = options.path / PARTS
        self._part = self._folder  # the part of the last call
        self._running: tuple[Call, CheckpointKeeper] | None = None  # their files are open there
        self._id = ""  # the id of the joined sweep
        self.began_at = time.time()
        self._claims: list[dict[str, Any]] = []
        self._is_taken = np.zeros(len(self._pairs), np.bool_)  # items that are stored or claimed

    def next_call(self, make: Callable[[], Call]) -> Call | None:
        """Return a call for a share of the run, or None if the checkpoint is complete.

        Waits while other processes run the remaining items.
        """
        self._running = None
        while True:
            try:
                if self._is_over():
                    return None
                if self._id and not self._is_taken.all():
                    return self._begin(make)
            except OSError as error:
                # Another process may have merged the parts, and removed them.
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
                time.sleep(FORGETS_S)
                if self.has_place():
                    raise
            if self.is_stopped():
                raise KeyboardInterrupt
            time.sleep(SHARERS_CHECK_S if self._id else OPENING_S)

    def is_stopped(self) -> bool:
        """Return whether all processes were stopped after the last one joined."""
        return (self._folder / STOP).exists()

    def has_place(self) -> bool:
        """Return whether the run still has its parts, which other processes may have merged."""
        return not self._id or (read_json(self._folder / SWEEP, None) or {}).get("id") == self._id

    # -------------------------------------------------------------- beginning and end

    def _is_over(self) -> bool:
        """Begin the run, join it, or merge its parts. Return whether the checkpoint is complete."""
        files.check_folder(self._folder)
        found = read_json(self._folder / SWEEP, None)
        if found is not None and found["what"] != self._what:
            self._refuse(found["what"])
        elif found is not None:
            if found["id"] != self._id:
                self._id, self.began_at = found["id"], found["began_at"]
                files.remove(self._folder / STOP)  # left by earlier processes
                self._claims.clear()
            if not self._look():
                return False
        try:
            return self._open()
        except CheckpointInUseError:  # for a moment, unless an unshared run writes to it
            writer = running_writer_of(self._options.path)
            if writer is not None and writer.get("role", "run") == "run":
                raise
            return False

    def _refuse(self, what: dict[str, Any]) -> None:
        """Raise CheckpointInUseError if processes run another call with this checkpoint."""
        try:
            check_free(self._options.path)
        except CheckpointInUseError as error:
            changed = differences(what["parts"], self._what["parts"], self._key.sources.lines)
            raise CheckpointInUseError(
                f"{error} The run in progress differs from this one: "
                f"{'; '.join(changed or ['other items'])}."
            ) from None

    def _open(self) -> bool:
        """Merge the parts, or begin the run. Return whether the checkpoint is complete."""
        directory = Directory(self._options, self._key, self._request, self.began_at, "opener")
        try:
            rows = directory.rows_for(self._pairs)
            directory.note_order(rows)
            if not self._id and self._request.reduce is not None:
                directory.forget_incomplete(rows)
            states = directory.states(rows)
            # Failed items run again, but not in the same run.
            is_over = bool((states > 0).all() if self._id else np.isin(states, STORED).all())
        finally:
            directory.close(is_whole=True)
        if not is_over:  # when others see the contents of the checkpoint
            self._make_folder()
        return is_over

    def _make_folder(self) -> None:
        """Create the folder of the parts atomically, unless another process does."""
        told = {"id": secrets.token_hex(8), "what": self._what, "began_at": time.time()}
        new = self._folder.with_name(f".{PARTS}.{told['id']}")
        # A process that opens the checkpoint may remove the new folder.
        with files.tolerated(errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            (new / CLAIMS).mkdir(parents=True)
            files.replace_json(new / SWEEP, told, is_needed=False)
            system_files.move(new, self._folder)
        shutil.rmtree(new, ignore_errors=True)

    # ------------------------------------------------------------------------- items

    def _look(self) -> bool:
        """Update claims and running processes. Return whether all results are stored."""
        self._read_claims()
        names = {claim["by"] for claim in self._claims}
        running = {name for name in names if running_writer_of(self._folder / name) is not None}
        whole = whole_of(self._options.path)  # read after the claims
        has_failed = (whole.states == FAILED) & (whole.which[whole.order] > 0)  # in this run
        is_settled = whole.present | has_failed
        self._is_taken = is_settled.copy()
        self._take(claim for claim in self._claims if claim["by"] in running)
        return bool(is_settled.all())

    def _read_claims(self) -> None:
        claims, nobodys = self._folder / CLAIMS, {"by": "", "runs": []}  # if it is cut
        files.check_folder(claims)
        while (claim := read_json(claims / str(len(self._claims)), nobodys)) is not None:
            self._claims.append(claim)
            self._take([claim])

    def _take(self, claims: Iterable[dict[str, Any]]) -> None:
        for start, stop in [run for claim in claims for run in claim["runs"]]:
            self._is_taken[start:stop] = True

    def claim(self, wanted: float, least: float, first: int) -> list[list[int]]:
        """Claim items that no process has claimed, from `first` on. Return their ranges.

        Claims `wanted` items. Near the end it claims fewer, but at least `least`, so that all
        processes end at about the same time.
        """
        while True:
            self._read_claims()
            free = np.flatnonzero(~self._is_taken[first:]) + first
            recent = {claim["by"] for claim in self._claims[-N_RECENT:]} | {self._part.name}
            share = len(free) / (4 * len(recent))
            free = free[: max(1, int(min(wanted, max(share, least))))]
            runs = [[int(free[run.start]), int(free[run.stop - 1]) + 1] for run in runs_of(free)]
            if not runs or self._put_claim(runs):
                return runs

    def _put_claim(self, runs: list[list[int]]) -> bool:
        """Create the next claim. Return False if another process was faster."""
        claims = self._folder / CLAIMS
        new = claims / f".{self._part.name}"
        claim = {"by": self._part.name, "runs": runs}
        claims.mkdir(exist_ok=True)  # if it was removed, items may run twice
        files.write(new, json.dumps(files.sealed(claim)).encode())
        try:
            with suppress(FileExistsError):
                os.link(new, claims / str(len(self._claims)))
            return new.stat().st_nlink == 2  # NFS may create it and then report that it exists
        finally:
            files.remove(new)

    # ------------------------------------------------------------------------- a call

    def _begin(self, make: Callable[[], Call]) -> Call:
        """Return a call that stores its results in a new part."""
        part = self._folder / secrets.token_hex(8)
        # Power durability, so that other machines see the results.
        options = Checkpoint(part, durability="power", on_full="stop")

        def prepare() -> Call:
            while running_writer_of(self._options.path) is not None:  # it may be about to merge
                time.sleep(OPENING_S)
            part.stat()  # raises if it has merged
            return make()

        keeper = CheckpointKeeper(self._request, options, (self._key, self.began_at))
        call = keeper.begin(prepare)
        self._part, self._running = part, (call, keeper)
        self._pace, self._event = Pace(0.0, call.request.max_workers), waiting.OwnerEvent()
        call.event_fd, call.items_event = self._event.fd, waiting.WorkerEvent()
        self.error = None  # the previous call's
        call.board.n_there = 0  # workers see no item that is not claimed
        call.supply = self
        return call

    # ------------------------------------------------------- items for workers of a call

    def wait(self, call: Call, timeout_s: float) -> None:  # noqa: ARG002 - it is the running one
        """Claim items, and wait."""
        self.bring()
        self._event.wait(min(timeout_s, SHARERS_CHECK_S))

    def bring(self) -> None:
        """Claim items if workers will need them soon. Stop if all processes were stopped."""
        if self._running is None:
            return
        (call, keeper), pace = self._running, self._pace
        board = call.board
        try:
            while board.n_there < board.n_items and not (
                board.stopped or call.is_over or self.error is not None
            ):
                pace.look(call)
                per_s = call.request.max_workers / pace.item_s if pace.item_s else 0.0
                ahead = int(AHEAD_S * per_s)
                board.few = board.n_items - board.n_there + ahead
                if board.n_there - board.n_done() >= call.request.max_workers + ahead:
                    break
                if per_s:
                    age_s = (time.monotonic_ns() - call.begun_ns) / 1e9
                    pace.resize(max(CLAIM_S, OF_AGE * age_s) * per_s, 1, board.n_items)
                runs = self.claim(pace.size, LEAST_S * per_s, board.n_there)
                for start, stop in runs or [[board.n_items, board.n_items]]:  # or the call ends
                    keeper.leave_out(board.n_there, start)
                    board.n_there = stop
                call.engine.notify(call)
            if self.is_stopped():
                call.stop()
        except Exception as error:  # noqa: BLE001 - the folder was removed, or the disk is full
            self.error = error.with_traceback(None)
            call.stop(self.error)
