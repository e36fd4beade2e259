"""What Linux has for the names of `system`."""
