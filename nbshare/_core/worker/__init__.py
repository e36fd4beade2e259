"""The code of worker processes."""
