"""The shared part of the tests: subjects and kernels to try things on, and workers' functions.

Start a process or a kernel
    `faultlab` scripts that are interrupted, killed and looked at, and their workers
    (`faultlab_tasks`); `kernels` Jupyter kernels; `browser` JupyterLab in Chromium; `programs`
    scripts whose memory is looked at; `forks` small programs, quickly; `machines`, `farm` other
    hosts; `elsewhere` another system.
Make something fail
    `interrupts` at each moment; `refused` system calls; `disks` that fail; `catalogue` of faults.
Functions for workers
    `tasks`, one function for each thing that a call can meet; `policies` failures, time, chance;
    `figures` results; `feeds`, `streams` sources of items; `large` memory; `draws` chance;
    `numbered`, `renewed`, `leaving`, `reporters`, `identities` workers; `settings`,
    `library_threads` their state; `pool_tasks` executors; `plumbing` pipelines; `graphs`,
    `objects`, `once`, `rings`, `locking`, `mapped`, `receivers`, `filters` objects and arrays;
    `reductions` for ``reduce=``; `sweeps`, `small_sweeps`, `format_work` stored runs; `talkers`
    prints; `duties` the contract of backends.
Ask what came of it
    `outcomes` of calls; `contract` what each backend keeps; `ring_states` slots; `played` jobs for
    the drawing code; `texts` that overlap in a figure; `grids` of parameters; `costs`, by which
    cases wait for the release run.
"""
