"""holdfast for asyncio: the same as holdfast.threads, awaited."""
