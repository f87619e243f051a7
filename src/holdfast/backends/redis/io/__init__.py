"""The adapters for Redis: connections, and one module each for threads and for asyncio."""
