"""Results on disk: a folder of plain files that a call fills, and that the same call continues.

::

    key          dependencies of results: code, values, seed    digests of values, sources of code
    versions     dependencies of stored results, also files that workers report later
    items        a digest for each item, to find it again anywhere in a sweep
    directory    the files of `store`, next to those of items, errors and versions
    reader       the results stored so far, here and in the parts of a shared run
    writer       the one process whose calls may write; its workers write by `store.rows`
    keeper       loads a call's stored results, and stores those that workers failed to store
    sweep        a run that several processes share: the claims of each

A row always belongs to the same item, so a sweep can be extended, reordered or thinned without
moving stored results.
"""
