"""The adapters for PostgreSQL: connections, with one module for threads and one for asyncio."""
