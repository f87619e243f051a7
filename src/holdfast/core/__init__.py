"""The part written once: the engine over ports. Imports no clock, thread, loop, socket or driver (a test says so)."""
