"""The common part of Linux and macOS."""
