"""Runs of another process: their stored results, a job for them here, and that process itself.

::

    map_async(detach=True)                             python -m nbshare run
      attached.begin ─► driver/call.pickle               │ items and arguments from files
        └────► python -m nbshare resume DIR              ▼
                 driver.resume ─────────────────► _drive: parallel_map(..., checkpoint=DIR)
                                                         │
    attach ◄── results, lease.json, driver/log.txt ◄─────┘

    stored       a run on disk, seen from any process: `open_checkpoint`
    attached     a job for it: `attach`; and begins one that a process of its own drives
    driver       that process, and the one of the command line

Processes of ``run`` with one checkpoint share its items (`checkpoint.sweep`).

The folder ``driver`` of the checkpoint has ``call.pickle`` (the function, its arguments, and how to
import) and ``log.txt`` (what was printed). The lease of the checkpoint tells which process drives
the run, when it began, and how it ended.
"""
