"""What Linux and macOS have in common."""
