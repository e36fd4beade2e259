"""Drawing, printing and clicking, in kernels and in a browser."""
