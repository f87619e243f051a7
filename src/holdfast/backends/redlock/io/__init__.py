"""The adapters for Redlock: connections, and one module each for threads and for asyncio."""
