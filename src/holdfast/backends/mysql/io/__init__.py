"""The adapters for MySQL and MariaDB: connections, and one module each for threads and for asyncio."""
