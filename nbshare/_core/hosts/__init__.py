"""Runs calls on other machines, on an executor, a Dask cluster or a Ray cluster that exists.

A cluster is anything that runs a function somewhere, and gives back what it returns. A block, some
items of about half a second of work, is a task of the cluster. What travels between the client and
the hosts does so as arguments and results of such tasks, and as objects of the cluster, behind
every gateway and with every encryption that it has. All else (order, seeds, attempts, results,
plot, checkpoint, Stop) stays with the call in the client, which stores results as a worker does.
There and back::

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

The agent is a process of its own. It never unpickles users' objects. Inputs, items, results and
errors are bytes to it, which its workers and the client load. It runs the client's nbshare, which
travels to hosts that do not have the same files. Only processes of its machine can reach it.

============  ====================================================================================
`protocol`    what client and agent tell each other, and `Hosts`, one kind of cluster
`cluster`     the engine of the client, with blocks, sized by time, over hosts
`inbox`       what comes from hosts, on its way to results and board
`choice`      kinds of clusters, a `distributed.Client`, Ray, any `concurrent.futures.Executor`
`carrier`     what runs in the cluster's process, which needs no nbshare
`travel`      that as its source, and this library for hosts that have another one, or none
`agent`       the process on each host
`remote`      a block as a call of the agent's engine
============  ====================================================================================
"""
