"""The adapters for the memory store: one module each for threads and for asyncio."""
