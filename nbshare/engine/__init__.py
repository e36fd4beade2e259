"""Local workers: processes that claim chunks from shared memory and store results into it."""
