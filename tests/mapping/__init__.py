"""The arguments and results of `parallel_map`."""
