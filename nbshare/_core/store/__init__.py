"""The results of a call: where they are stored, who writes them, and when they can be read.

A result is a row of an array, or an entry of a log, in memory or in files. The page of its item
says where it is, or for files, the index word of its row::

    specs      the kinds of results, of which the first decides where all go
    pages      the index in memory: the state of each item, and where its result is
    logs       objects, pickled, one after the other: a log for each worker
    rows       arrays, index words and logs in a folder: how they are written
    reading    how they are read again, and checked
    files      plain files: atomic, checked, of this user
    writing    a worker's side, which puts each result where it goes, once
    cursor     which results a reader has taken, such as a loop, a plot, or the keeper

Each byte has one writer at a time, and a reader reads marked data only after it has seen the mark.
On machines with weakly ordered memory, a fence separates the two reads (`system.waiting`)::

    data                        writer                               the mark, written last
    row i of the output         the worker that has claimed item i   done[i] = IN_OUTPUT
    log, index[:, i]            the same, to memory or to a file     done[i] = IN_LOG
                                of the checkpoint
    a row of a checkpoint       the same; the keeper, if that        the word in its index
                                failed
    errors[i]                   the dispatcher's thread              done[i] = FAILED, which may
                                                                     come before it
    more rows, of a generator   the thread that adds items           the count of items

For results from another machine, the thread that receives its replies acts as the worker.

A worker that dies leaves either a whole result or no mark. The next worker that runs the item
writes to the same row, and to its own log.
"""
