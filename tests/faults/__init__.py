"""Faults: deaths, hangs, interrupts, limits. `test_crash_table` is the place to begin."""
