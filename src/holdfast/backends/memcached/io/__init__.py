"""The adapters for memcached: the handshake, connections for threads, and connections for asyncio."""
