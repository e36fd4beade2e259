"""The code that runs in worker processes."""
