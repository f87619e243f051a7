"""holdfast for threads: the client, locks, several locks as one, elections and decorators."""
