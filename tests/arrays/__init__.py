"""Arrays and objects in shared memory, locks and ring buffers."""
