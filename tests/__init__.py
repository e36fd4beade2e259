"""The tests of nbshare, in folders named for the package's. They share `support`."""
