"""The adapters for memcached: connections, and one module each for threads and for asyncio."""
