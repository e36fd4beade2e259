"""The tests of nbshare, in folders named for the package's; `support` is what they share."""
