"""The contract of backends, and clusters that keep it."""
