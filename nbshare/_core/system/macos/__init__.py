"""The names of `system` for macOS. Tests play it on Linux (see CONTRIBUTING.md)."""
