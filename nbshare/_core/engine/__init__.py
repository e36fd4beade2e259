"""Runs calls: starts worker processes, sends them calls, and collects their results.

Threads and processes, the channels between them, and the memory that they share::

    OWNER PROCESS                                                         WORKER PROCESSES
    ┌──────────────────┐ queue  ┌─────────────────────┐ socket: order,    ┌───────────────────┐
    │ caller's thread  ├───────►│ dispatcher's thread │ descriptors       │ main thread       │
    │ submits a call,  │        │ one for all calls:  ├──────────────────►│ runs the items    │
    │ draws, waits for │◄───────┤ starts workers,     │◄──────────────────┤ of one call after │
    │ its end          │  end   │ hears them, ends    │ wanted, log,      │ the other         │
    └────────┬─────────┘        │ late workers        │ failed, finished  │                   │
             │                  └──┬──────────────┬───┘                   └─────────┬─────────┘
             │          asks for   │              │ allocates                       │
             │          workers ┌──┴──────────┐   │                                 │
             │                  │ fork server ├───┼─── forks ──────────────────────►│
             │                  └─────────────┘   │                                 │
    ═════════╪════════════════════════════════════╪═════════════════════════════════╪═════════
    SHARED MEMORY                                 │                                 │
             ├─ writes ────► inputs  function, shared objects and items ──── maps ──┤
             ├─ reads ─────► board   counter of claimed items, done flags ─── marks ┤
             └─ reads ─────► output  one array, or logs of objects ───────── fills ─┘

The flow of one ``parallel_map(f, items, shared=...)``, there and back::

    CALLER'S THREAD
      mapping.parallel_map
        options.checked_request       all arguments are checked here
        mapping.prepared
          preparing.prepare           function, shared objects and items packed in an Arena,
            arrays.arena              which is copied into one segment; the Board is created
        running.run_and_draw          waits, shows prints, redraws from the board
          Call.start ───────────────► Dispatcher.submit

    DISPATCHER'S THREAD               one, which owns all processes and descriptors
      Dispatcher._turn                waits, then runs all steps below, once
        Calls.begin
          WorkerPool.renew_if_stale   files or environment changed: new workers
        Calls.assign_workers          as many workers as may help
          WorkerPool.assign           an idle worker, or a new one by WorkerStarter.start
            Channel.send ───────────► the order, and the descriptors of board and inputs

    WORKER                            a child of the fork server
      worker.process.run              waits for calls
        process.work_on               maps board and inputs
          Work.step
            Claims.claim              takes the next chunk from a counter in shared memory
            ItemSource.items          loads its items
            f(item)
            ResultStore.put           the first result decides the kind of output ◄─┐
                                      then out[i] = value, and done[i] = 1 last     │
      nothing left ─────────────────► "finished", with the modules it imported      │
                                                                                    │
    DISPATCHER'S THREAD                                                             │
      Calls.hear                      "wanted": allocate the output, tell the worker┘
                                      "log": it holds objects; "failed": an error
                                      "finished": the worker is idle again
      Calls.lose                      a worker has died: others run its unfinished items
      overdue                         finds late workers: time-outs, stopped calls
      Calls.finish_ended              all items done: Call.finish

    CALLER'S THREAD
      Job._outcome
        Results.final                 the output array, or a list; or the error is raised

A detached run is such a `parallel_map` in a process of its own, the driver (`runs.driver`). Other
processes follow the run by its files (`runs.attached`).

`system` provides the sockets, events, processes and locks of each operating system.

Between the order and "finished" no message is needed, because progress, partial results and the
live plot are read from shared memory. A slow plot never delays a worker.

With ``checkpoint=`` workers also write results to files (`store.rows`). A thread of the owner, the
keeper, writes the results that workers failed to write. Stored results are placed in the output and
marked as done before the call begins, so workers skip their items.

To follow an item to a worker and its result back, read these files in this order: mapping, options,
preparing, arrays/arena, call, dispatcher, calls, workers and wire/messages, then worker/process,
work, wire/board, items, arrays/inputs and store/writing, then engine/results and job.

Items may arrive after a call begins. An `ItemFeed` packs them in blocks and then increases the
count up to which workers claim::

    a generator     SourceSupply   reads slightly ahead of the workers; the number of items is
                                   unknown, so the board has pages, the output grows, and pages
                                   whose results a loop has taken are freed
    an executor     TaskQueue      tasks, each with its future; one can be withdrawn until a worker
                                   claims it

The items of a run that several processes share are known, and each process claims some at a time
(`checkpoint.sweep`). Its workers see the claimed items, and the rest counts as done.

Workers that wait for items are woken by an event. After half a second they leave the call, because
other calls may need them.

Each stage of a pipeline (`pipe`) is a call whose items are the blocks. Its workers do not claim
items. They wait for the next block at a ring buffer (`worker.stages`).

Glossary
--------
arena
    The objects that a call sends, packed to be copied into one segment.
attempts
    The number of failures of an item, including deaths of its worker.
batch
    Short items that run and are stored together.
block
    A unit of data in a pipeline. Also items that are pickled together, or items whose results a
    worker reduces to one (`wire.folding`), which the engine then treats as one item.
board
    The state of a call in shared memory, such as the items of each worker, and flags of done items.
call
    One run inside the engine, with its request, board, inputs, results and workers.
claim
    Items reserved by one of several processes that share a run (`checkpoint.sweep`).
channel
    A socket between the owner and one worker, or the fork server. It carries descriptors too.
chunk
    The items that a worker claims at a time.
context
    Settings that workers copy from the caller, such as environment, directory, warning
    filters.
cursor
    The results that a reader has taken, such as a loop, a plot or the keeper (`store.cursor`).
deadline
    The time at which a worker is killed, after a time-out or when its call was stopped.
detached
    Said of a worker that has not noticed yet that its call is over, so no thread waits for it. Also
    of a run that a driver owns.
dispatcher
    The one thread that owns the worker processes, with a queue for other threads.
driver
    A process that owns a single run, so that the run outlives the notebook (`runs.driver`).
engine
    Runs calls, in worker processes, in threads, or in the thread that waits.
event
    Wakes a waiting thread of the owner, or a waiting worker.
feed
    Brings items to a running call, as blocks and their count.
fork server
    A small process that has imported NumPy, and forks workers in 5 ms.
generation
    The workers that were started for the same files, environment and initializer.
handle
    A reference to an array in memory that the receiver has not mapped yet.
inputs
    The packed objects of a call, as a worker loads them.
item
    One input of the run. Indices count from 0.
job
    The object that the caller has of a run (`nbshare.Job`).
known
    An object of the function or of ``shared=``, which items name instead of sending it again
    (`arrays.known`).
keeper
    Loads a call's stored results, and stores those that workers failed to store (`checkpoint`).
lease
    The right of one process to write to a checkpoint, stored in ``lease.json``.
life pipe
    A pipe whose end closes when the owner dies. All workers are then killed.
log
    A worker's segment for results that fit no output array.
mosaic
    The output of tiles, one array in which each has its place, indexed like rows.
output
    The array of results that all workers fill.
open
    Said of a call or board whose number of items is unknown.
owner
    The process that called nbshare.
page
    The state of some items on a board. A board has one page, or, in an open call, as many as
    needed.
part
    The results stored by one of several processes that share a run.
pool
    The workers, busy and idle.
repeated
    A large object that several blocks of items hold, pickled once (`arrays.repeated`).
request
    The checked arguments of a run.
segment
    Memory that several processes map.
slab
    A segment that is divided into small pieces, for boards and small arrays.
slot
    A worker's row of the board, or a place in a ring buffer.
snapshot
    The bytes of source files, the same for all workers of a call.
spec
    Dtype and shape of the first result, which decide where results are stored.
stage
    One function of a pipeline, with its workers.
stamp
    The metadata that changes when a file is edited (times, size, inode).
supply
    Reads items from a source, or tasks of an executor, while a call runs.
warm
    A segment kept for the next call that needs about its size.
"""
