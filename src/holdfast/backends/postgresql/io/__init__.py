"""The adapters for PostgreSQL: connections, and one module each for threads and for asyncio."""
