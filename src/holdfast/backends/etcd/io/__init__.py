"""The adapters for etcd: connections, and one module each for threads and for asyncio."""
