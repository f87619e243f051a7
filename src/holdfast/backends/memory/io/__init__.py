"""The adapters for the memory store: connections, and one module each for threads and for asyncio."""
