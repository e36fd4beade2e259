"""What nbshare asks of macOS; tests play that on Linux, see CONTRIBUTING.md."""
