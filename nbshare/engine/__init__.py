"""The owner of worker processes: starts them, gives them calls, collects what they store."""
