"""The analysis of Python source: what a file binds, uses and imports, and who asks for it."""
