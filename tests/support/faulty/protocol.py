"""What a backend's protocol.py declares: here, what the memory backend does."""

from holdfast.backends.memory.protocol import GUARANTEES

__all__ = ["GUARANTEES"]
