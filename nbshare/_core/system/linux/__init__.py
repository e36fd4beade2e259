"""The names of `system` for Linux."""
