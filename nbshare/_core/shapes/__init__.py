"""Items that have a form, which their results take: grids, tables, groups and tiles."""
