"""The adapters for SQLite: the lock file, sessions, and one module each for threads and for asyncio."""
