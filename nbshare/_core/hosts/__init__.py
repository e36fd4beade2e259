"""Runs calls on other machines, on an executor, a Dask cluster or a Ray cluster that exists.

A cluster is anything that runs a function somewhere, and says when that has returned. A task of the
cluster is a place to work for about half a second. Blocks of items come to it from the client, one
after the other. Then the cluster may give the place to others, or to a host that has joined. All
else (order, seeds, attempts, results, plot, checkpoint, Stop) stays with the call in the client,
which stores results as a worker does. There and back::

    CLIENT                               CLUSTER'S PROCESS          AGENT, one on each host
      Cluster, the call's thread
        Hosts.submit(call) ────────────► carrier.Carry
                                           finds the host's agent,
                                           starts one if need be ──► a thread for each carrier
      InputServer (TCP) ◄─────────────────────────────────────────── asks for inputs it lacks
                 ─────────────────────────────────────────────────────► once for each host, from the
                                                                       client or another host
      Cluster, a thread for each carrier (TCP)
        pack the items by value
        Block ────────────────────────────────────────────────────────► a call of the local engine,
                                                                       with one worker process
        store ◄─────── Reply ───────────────────────────────────────── results, failures, prints:
                                                                       at the end, and each half
                                                                       second if a block takes long
        no more blocks ─────────────────────────────────────────────►
                                           returns ◄──────────────────
      Lines ───────► "the call is over" ──────────────────────────────► Call.stop

The agent is a process of its own. It never unpickles users' objects. Inputs, items, results and
errors are bytes to it, which its workers and the client load. It runs the client's nbshare, which
travels to hosts that do not have the same files. It ends when the client's line ends, however that
comes, or when it has had nothing to do for a while.

============  ====================================================================================
`protocol`    what client, carrier and agent tell each other, and `Hosts`, one kind of cluster
`cluster`     the engine of the client, with blocks, sized by time, over hosts
`inbox`       what comes from hosts, on its way to results and board
`inputs`      large inputs, which hosts give to each other
`line`        the connections of agents to the client
`carrier`     what runs in the cluster's process, which needs no nbshare
`travel`      that as its source, and this library for hosts that have another one, or none
`agent`       the process on each host
`remote`      a block as a call of the agent's engine
`choice`      kinds of clusters, a `distributed.Client`, Ray, any `concurrent.futures.Executor`
============  ====================================================================================
"""
