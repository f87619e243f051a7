"""memory://: locks of one process, for tests and for a single process with threads and tasks."""
