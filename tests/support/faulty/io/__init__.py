"""The adapters for threads and for asyncio."""
