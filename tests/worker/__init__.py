"""What a worker process does."""
