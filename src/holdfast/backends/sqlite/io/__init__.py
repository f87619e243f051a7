"""The adapters for SQLite: connections, and one module each for threads and for asyncio."""
