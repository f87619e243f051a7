"""The backend for threads and for asyncio."""
