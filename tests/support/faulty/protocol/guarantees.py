"""What a backend's protocol.py declares: here, what the memory backend does."""

from holdfast.backends.memory.protocol.guarantees import GUARANTEES

__all__ = ["GUARANTEES"]
