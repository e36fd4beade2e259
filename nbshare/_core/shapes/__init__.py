"""Items that define the form of their results: grids, tables, groups and tiles."""
