"""Segments of shared memory."""
