"""Where the engine runs: on the callers' own threads, or on an asyncio loop. Time, tasks, events, identity."""
