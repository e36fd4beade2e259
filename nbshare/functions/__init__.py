"""The function that a worker can import: where it comes from, and whether it is fresh."""
