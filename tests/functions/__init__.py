"""The function that workers import, and whether it is fresh."""
