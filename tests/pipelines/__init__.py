"""`nbshare.pipeline`."""
