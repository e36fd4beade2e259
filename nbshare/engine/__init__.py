"""The owner of worker processes: starts them, gives them calls, collects what they store.

The flow of one ``parallel_map(f, items, shared=...)``, there and back::

    CALLER'S THREAD
      mapping.parallel_map
        options.checked_request       everything that can be refused is refused here
        mapping._prepared
          preparing.prepare           function, shared objects and items packed in an Arena,
            arrays.arena              which is copied into one segment; the Board is created
        mapping.run_and_draw          waits, shows prints, redraws from the board
          Call.start ───────────────► Dispatcher.submit

    DISPATCHER'S THREAD               one, which owns all processes and descriptors
      Dispatcher._turn                waits, then does all that follows, once
        Calls.begin
          WorkerPool.renew_if_stale   files or environment changed: new workers
        Calls.assign_workers          as many workers as may help
          WorkerPool.assign           an idle worker, or a new one by WorkerStarter.start
            Channel.send ───────────► what to do, and the descriptors of board and inputs

    WORKER                            a child of the fork server
      worker.process.run              waits for calls
        process.work_on               maps board and inputs
          Work.step
            Claims.claim              takes the next chunk from a counter in shared memory
            Source.items              loads its items
            f(item)
            ResultStore.put           the first result decides the kind of output ◄─┐
                                      then out[i] = value, and done[i] = 1 last     │
      nothing left ─────────────────► "finished", with the modules it imported      │
                                                                                    │
    DISPATCHER'S THREAD                                                             │
      Calls.hear                      "wanted": allocate the output, tell the worker┘
                                      "log": objects lie there; "failed": an error
                                      "finished": the worker is idle again
      Calls.lose                      a worker has died: others do what it has not done
      overdue                         decides what is late: time-outs, stopped calls
      Calls.finish_ended              all items done: Call.finish

    CALLER'S THREAD
      Job._outcome
        Results.final                 the output array, or a list; or the error is raised

Between the order and "finished" no message is needed: progress, partial results and the live plot
are read from shared memory. A plot that takes long holds up no worker.

Who follows an item there and its result back opens these files, in this order: mapping, options,
preparing, arrays/arena, call, dispatcher, calls, workers, wire/messages; worker/process, work,
wire/board, items, arrays/inputs, store; wire/results, engine/results, job.

Items need not be there when a call begins. They come by an `ItemFeed`, which packs them in blocks
and then makes the count larger that workers claim up to::

    a long list     ListSupply     the caller packs the rest while it waits
    a generator     SourceSupply   as many as will soon be needed; their number is not known, so the
                                   board has pages, the output grows, and what somebody who iterates
                                   has taken is given back
    an executor     TaskQueue      tasks, each with its future; one that nobody has claimed can be
                                   withdrawn

Workers that wait for items are woken by an event, and leave after half a second: other calls may
need them.

Each stage of a pipeline (`pipe`) is a call whose items are the blocks. Its workers claim nothing:
they wait for the next block at a ring buffer (`nbshare.worker.stages`).

Glossary
--------
arena
    Gathers what a call sends, and is copied into one segment.
attempts
    How often an item has failed, or its worker has died in it.
batch
    Short items that run together, and whose results are stored at the same time.
block
    What a pipeline passes from stage to stage; or items that are pickled together.
board
    The state of a call in shared memory: who takes which items, and what is done.
call
    One run inside the engine: a request, its board, inputs, results and workers.
channel
    A socket between the owner and one worker, or the fork server; carries descriptors too.
chunk
    The items that a worker claims at a time.
context
    What workers take over from the caller: environment, working directory, filters, umask.
deadline
    When a worker is ended though it says nothing: a time-out, a stopped call.
detached
    Of a worker: its call is over, and it has yet to notice. Nobody waits for it.
dispatcher
    The one thread that owns the worker processes, and what others post to it.
engine
    What runs calls: worker processes, threads, or the thread that waits.
event
    Wakes those that wait: a thread of the owner, or one of the workers.
feed
    How items come to a call while it runs: blocks, and their count.
fork server
    A small process that has imported NumPy, and forks workers in 5 ms.
generation
    Workers that were started for the same files, environment and initializer.
handle
    What travels in the place of an array that a worker has not been sent.
inputs
    What was packed, as a worker loads it.
item
    One input of the map; the index counts from 0 over all of them.
job
    The public face of a run.
lease
    Memory lent to a call; it comes back when its last view is gone.
life pipe
    Its end in the owner closes when the owner dies, and the kernel then kills all workers.
log
    A worker's segment for results that fit no output array.
output
    The array of results that all workers fill.
open
    Of a call or its board: nobody knows how many items will come.
owner
    The process that has called nbshare.
page
    The state of some items of a board: one page, or in an open call as many as it takes.
pool
    The workers: those at work, and those that wait for the next call.
request
    What was asked for, checked.
segment
    The system's object: memory that several processes map.
slab
    A segment that is cut into small pieces: boards, small arrays.
slot
    A worker's row of the board; or a place in a ring buffer.
snapshot
    The bytes of source files, the same for all workers of a call.
spec
    What the first result looks like, which decides where results go.
stage
    One function of a pipeline, with its workers.
stamp
    What changes when a file is edited: times, size, inode.
supply
    Brings the items of a call while it runs: of a long list, or a source.
warm
    A segment that is kept for the next call of about its size.
"""
