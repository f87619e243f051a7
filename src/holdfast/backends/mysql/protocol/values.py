"""What is written into the tables."""

from __future__ import annotations

import math
from hashlib import sha256

AGENT_MAX = 255  # characters


def lock_id(name: str) -> bytes:
    """What the tables know a name by."""
    return sha256(name.encode()).digest()


def us(seconds: float) -> int:
    """Microseconds, as the server counts."""
    return math.ceil(seconds * 1e6)
