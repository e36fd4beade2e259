"""The names of `system` for Windows."""
