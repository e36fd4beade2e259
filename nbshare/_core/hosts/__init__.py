"""Runs calls on other machines, on an existing executor, Dask cluster or Ray cluster.

A cluster is anything that runs a function somewhere and returns its result. A task of the cluster
runs a block, which is some items with about half a second of work. Data are sent between the client
and the hosts as arguments and results of tasks, and as objects of the cluster, so they pass its
gateways and are encrypted by it. All the rest (order, seeds, attempts, results, plot, checkpoint,
Stop) stays with the call in the client, which stores results as a worker does. There and back::

    CLIENT                               CLUSTER'S PROCESS          AGENT, one on each host
      Cluster, the call's thread
        pack some items by value
        Hosts.submit(Order) ───────────► carrier.Carry
                                           finds the host's agent,
                                           starts one if need be ──► a thread for each carrier
        Hosts.offer(inputs) ◄── "lacks" ── has the cluster them? ◄─── asks for inputs it lacks
          scatters them, once  ─────────► brings them ──────────────► holds them, for all workers
                                         notes that it begins ──────► a call of the local engine,
                                                                       with one worker process
        store ◄────── news ───────────── tells ◄──────────────────── Reply, each half second if it
                                                                       takes long, and at the end
        store ◄────── result ─────────── returns all of them ◄──────
        Hosts.end(call) ──────────────────────────────────────────────► Call.stop

The agent is a separate process. It never unpickles users' objects: it handles inputs, items,
results and errors as bytes, which its workers and the client load. It runs the client's nbshare,
which is sent to hosts that do not have the same files. Only processes of its machine can connect to
it.

============  ====================================================================================
`protocol`    the messages of client and agent, and `Hosts`, the interface of a cluster
`cluster`     the engine of the client, which sends blocks, sized by time, to hosts
`inbox`       stores replies in results and board
`choice`      finds the cluster that a value of ``backend=`` means
`executor`    any `concurrent.futures.Executor` as a cluster
`dask`        a `distributed.Client`
`ray`         Ray
`travel`      the task as source code, and this library for hosts that lack it
`carrier`     the task in the cluster's process, which needs no nbshare
`starting`    finds or starts the agent of a host, and travels with the task
`messages`    messages of carriers and agents, and travels with the task
`agent`       the process on each host, which runs a block as a call of its engine
============  ====================================================================================
"""
