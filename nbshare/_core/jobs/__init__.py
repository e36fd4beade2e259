"""The handle of a run for its caller, its tables, and ``until=``."""
