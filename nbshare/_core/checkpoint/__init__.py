"""Results on disk, a directory of plain files that a call fills, and that the same call continues.

::

    key          what results depend on: code, values, seed     digests of values, sources of code
    versions     what stored results depended on, also files that workers report later
    items        a digest for each item, so that it is found again wherever it is in a sweep
    directory    the files of `store`, next to those of items, errors and versions
    reader       what is stored at a moment, here and in the parts of a shared run
    writer       the one process whose calls may write; its workers do, by `store.rows`
    keeper       starts a call with the stored results, and stores those that workers could not
    sweep        a run that several processes share: what each of them claims

A result is stored by its row, and a row belongs to an item for good. So a sweep can be extended,
reordered or thinned, and nothing that is stored is ever moved.
"""
