"""The adapters for ZooKeeper: connections, and one module each for threads and for asyncio."""
