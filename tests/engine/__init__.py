"""Calls: what is asked for, and what comes back."""
