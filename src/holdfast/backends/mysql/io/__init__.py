"""The adapters for MySQL and MariaDB: connections, with one module for threads and one for asyncio."""
