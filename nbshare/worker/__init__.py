"""What a worker process runs, and what it shares with its owner: board, messages, logs."""
