"""`nbshare.Executor`."""
