"""The guarantees of the memory backend."""

from holdfast.backends.memory.protocol.guarantees import GUARANTEES

__all__ = ["GUARANTEES"]
