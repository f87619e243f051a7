"""The guarantees are those of the memory store."""
