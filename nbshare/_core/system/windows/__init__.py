"""What nbshare asks of Windows."""
