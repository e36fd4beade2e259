"""What Linux has for the names of `nbshare.system`."""
