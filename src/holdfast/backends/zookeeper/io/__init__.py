"""The adapters for ZooKeeper: sessions on kazoo, and one module each for threads and for asyncio."""
