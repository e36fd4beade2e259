"""The analysis of Python source: what a file binds, uses and imports.

============  ====================================================================
module        job
============  ====================================================================
file          a file, parsed once: its bindings, uses and imports
bytecode      the same of functions whose source is not in a file
definitions   what a file defines, compared with the values in this process
changes       the modules that a call reaches, and a warning of what was changed
============  ====================================================================

`file` and `bytecode` serve the keys of checkpoints, too (`checkpoint.sources`, `checkpoint.code`).
Whether code is fresh is told by the stamps of files alone (`functions.freshness`).
"""
