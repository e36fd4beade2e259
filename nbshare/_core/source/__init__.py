"""The analysis of Python source: names that a file binds, uses and imports.

============  ====================================================================
module        purpose
============  ====================================================================
file          a file, parsed once: its bindings, uses and imports
bytecode      the same for functions whose source is not in a file
definitions   the definitions of a file, compared with the values in this process
changes       the modules that a call reaches, and warnings of changes in them
============  ====================================================================

`file` and `bytecode` serve the keys of checkpoints, too (`checkpoint.sources`, `checkpoint.code`).
Whether code is fresh is decided by the stamps of files alone (`functions.freshness`).
"""
