"""What a worker process runs."""
