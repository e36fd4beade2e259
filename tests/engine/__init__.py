"""Calls, with their arguments, and their results."""
