"""The adapters for NATS: connections, and one module each for threads and for asyncio."""
