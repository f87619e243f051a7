"""The value of a lock's key: JSON. Any other value under the key belongs to another program.

{"holdfast": 1, "nonce": …, "fence": …, "since": …, "agent": …, "info": …, "name": …}

The fence of an entry that was just created is 0: it is the sequence number of the entry, which is not known before it
is stored. A renewal stores the fence, because the renewal has another sequence number.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Value(NamedTuple):
    """The parsed value of a lock's key."""

    nonce: str
    fence: int  # 0: the sequence number of the entry
    since: float  # Unix time of the client, for operators
    agent: str
    info: str
    name: str

    def encode(self) -> bytes:
        return json.dumps({"holdfast": 1, **self._asdict()}).encode()

    @classmethod
    def parse(cls, data: bytes) -> Value | None:
        """None: the value was not written by holdfast."""
        try:
            fields = json.loads(data)
            if fields.pop("holdfast") != 1:
                return None
            value = cls(**fields)
            return value._replace(fence=int(value.fence), since=float(value.since))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
