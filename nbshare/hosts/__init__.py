"""Runs calls on other machines: on an executor, a Dask cluster or a Ray cluster that exists.

A cluster is anything that runs a function somewhere, and says when that has returned. A task of the
cluster is a block of items. All else (order, seeds, attempts, results, plot, checkpoint, Stop)
stays with the call in the client, which stores results as a worker does. There and back::

    CLIENT                               CLUSTER'S PROCESS          AGENT, one on each host
      Cluster.submit, a thread
        pack the items by value
        Hosts.submit(carry, Block) ────► carrier.carry
                                           finds the host's agent,
                                           starts one if need be ──► Agent.work
      Inputs (TCP) ◄────────────────────────────────────────────────── asks for inputs it lacks
                 ─────────────────────────────────────────────────────► once for each host, from the
                                                                       client or another host
      Line (TCP) ◄──────────────────────────────────────────────────── "may I begin?"
                 ─────────────────────────────────────────────────────► once per block: a block that
                                                                       a cluster repeats is refused
                                                                       a call of the local engine,
                                                                       with one worker process
      Line ──────► "stop" ──────────────────────────────────────────►  Call.stop
        Cluster._take ◄──── Reply ◄─────────────────────────────────── results, failures, prints:
                                                                       at the end, and each half
                                                                       second if a block takes long
        Cluster._answer ◄─────────────────── the task's end ◄───────── or why it could not begin

The agent is a process of its own. It never unpickles users' objects: inputs, items, results and
errors are bytes to it, which its workers and the client load. It runs the client's nbshare, which
travels to hosts that do not have the same files. It ends when the client's line ends, however that
comes, or when it has had nothing to do for a while.

============  ====================================================================================
`protocol`    what client, carrier and agent tell each other; `Hosts`: one kind of cluster
`cluster`     the engine of the client: blocks, sized by time, over hosts
`inputs`      large inputs, which hosts give to each other
`line`        the connection of each agent to the client
`carrier`     what runs in the cluster's process, which needs no nbshare
`travel`      that as its source, and this library for hosts that have another one, or none
`agent`       the process on each host
`remote`      a block as a call of the agent's engine
`executor`    any `concurrent.futures.Executor`
`dask`        a `distributed.Client`
`ray`         Ray
============  ====================================================================================
"""
