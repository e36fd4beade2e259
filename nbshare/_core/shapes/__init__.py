"""Items with a form that their results take on: grids, tables, groups and tiles."""
