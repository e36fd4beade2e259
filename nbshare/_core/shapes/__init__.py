"""Items with a form, which becomes that of their results: grids, tables, groups and tiles."""
