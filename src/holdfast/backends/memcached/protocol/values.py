r"""The value of a lock's item. Any other value under its key belongs to another program.

    holdfast:lock:<nonce>:<fence>\n<since>\n<agent>\n<info>\n<name>
    holdfast:free

An item that was just added has an empty fence: its fence is made of its own version, which is not known before the
item is stored. A renewal writes the fence into the value, because the renewal changes the version.

`free` belongs to no client. It is stored for a while after the release of a ticket whose add may still be in flight, so
that this add finds an item and does nothing. A client that acquires the lock replaces it by its version.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

FREE = b"holdfast:free"
_LOCK = b"holdfast:lock:"


class Value(NamedTuple):
    """The parsed value of a lock's item."""

    nonce: str
    fence: int  # 0: it is made of the item's version
    body: bytes  # everything after the first line

    @classmethod
    def parse(cls, data: bytes) -> Value | None:
        """None: the value was not written by holdfast."""
        head, _, body = data.partition(b"\n")
        try:
            magic, kind, nonce, fence = head.decode().split(":")
            return cls(nonce, int(fence or 0), body) if f"{magic}:{kind}:".encode() == _LOCK else None
        except ValueError:
            return None

    def details(self) -> tuple[float, str, str, str]:
        """Start time, thread or task, info and name of the lock; of a damaged value the parts that can be read."""
        parts = self.body.decode(errors="replace").split("\n", 3)
        since, agent, info, name = (*parts, *("", "?", "", "")[len(parts) :])
        return (int(since) / 1e6 if since.isdigit() else 0.0), agent, info, name


def value_of(nonce: str, fence: int, body: bytes) -> bytes:
    """The value for a ticket. Its fence is 0 while it is not known."""
    return b"%b%b:%b\n%b" % (_LOCK, nonce.encode(), b"%d" % fence if fence else b"", body)


def body_of(since: float, agent: str, info: str, name: str) -> bytes:
    """The description of a ticket, for operators."""
    return b"%d\n%b" % (since * 1e6, _details(agent, info, name))


@functools.lru_cache(maxsize=256)  # mostly the same for all tickets of a thread
def _details(agent: str, info: str, name: str) -> bytes:
    # The name is last, because it can contain any character. The info is JSON and has no line breaks.
    return f"{agent.replace(chr(10), ' ')}\n{info}\n{name}".encode(errors="replace")
