"""How a run starts, and runs seen from other processes: stored results, jobs, the driver.

::

    map_async(detach=True)                             python -m nbshare run
      attached.begin ─► driver/call.pickle               │ items and arguments from files
        └────► python -m nbshare resume DIR              ▼
                 driver.resume ─────────────────► _drive: parallel_map(..., checkpoint=DIR)
                                                         │
    attach ◄── results, lease.json, driver/log.txt ◄─────┘

    running      starts a run, in the background or while its caller waits
    stored       a run on disk, seen from any process: `open_checkpoint`
    attached     a job for such a run: `attach`; and the start of a run in a process of its own
    driver       the process of a detached run, or of the command line

Processes of ``run`` with one checkpoint share its items (`checkpoint.sweep`).

The folder ``driver`` of the checkpoint contains ``call.pickle`` (the function, its arguments, and
how to import) and ``log.txt`` (prints). The lease of the checkpoint records the process that drives
the run, the run's start, and how it ended.
"""
