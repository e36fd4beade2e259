"""How workers import the function of a call, in its current version."""
