r"""What the item of a lock says. Anything else under its key is another program's.

    holdfast:lock:<nonce>:<fence>\n<since>\n<agent>\n<info>\n<name>
    holdfast:free

An item that was just added has an empty fence: its fence is made of its own version, which nobody knows before it is
there. A renewal writes it out, because that gives the item another version.

`free` is nobody's. It stands there for a while after a ticket has gone whose add may still be on its way: that add then
finds something, and does nothing. Whoever wants the lock takes it over by its version.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

FREE = b"holdfast:free"
_LOCK = b"holdfast:lock:"


class Value(NamedTuple):
    """A lock's item, read."""

    nonce: str
    fence: int  # 0: made of the item's version
    body: bytes  # all behind the first line

    @classmethod
    def parse(cls, data: bytes) -> Value | None:
        """None: not ours."""
        head, _, body = data.partition(b"\n")
        try:
            magic, kind, nonce, fence = head.decode().split(":")
            return cls(nonce, int(fence or 0), body) if f"{magic}:{kind}:".encode() == _LOCK else None
        except ValueError:
            return None

    def described(self) -> tuple[float, str, str, str]:
        """Since when, by which thread or task, its info, and the lock's name; of a damaged one what can be read."""
        parts = self.body.decode(errors="replace").split("\n", 3)
        since, agent, info, name = (*parts, *("", "?", "", "")[len(parts) :])
        return (int(since) / 1e6 if since.isdigit() else 0.0), agent, info, name


def value_of(nonce: str, fence: int, body: bytes) -> bytes:
    """The item of a ticket; its fence is 0 while nobody knows it."""
    return b"%b%b:%b\n%b" % (_LOCK, nonce.encode(), b"%d" % fence if fence else b"", body)


def body_of(since: float, agent: str, info: str, name: str) -> bytes:
    """What a ticket says of itself, for people."""
    return b"%d\n%b" % (since * 1e6, _about(agent, info, name))


@functools.lru_cache(maxsize=256)  # of a thread's tickets it is mostly the same
def _about(agent: str, info: str, name: str) -> bytes:
    # The name comes last: it may have any character in it. An info is JSON and has no line breaks.
    return f"{agent.replace(chr(10), ' ')}\n{info}\n{name}".encode(errors="replace")
