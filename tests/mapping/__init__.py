"""What `parallel_map` takes and gives."""
