"""What the protocol needs of its nodes: to ask several at once, and to be told when it is worth to ask again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.backends.redis.port import Call, Channel, Reply
from holdfast.backends.redis.protocol.keys import Keys
from holdfast.core.notifications import SubscriberPort
from holdfast.errors import HoldfastError


class Life(NamedTuple):
    """What a node said of itself when we connected to it last."""

    run: str  # the id of its process
    begun: float  # when that was started, at the latest, on the runtime's clock
    forgets: bool  # a restart may lose what it has answered


class RedlockPort(SubscriberPort[Channel], Protocol):
    """N servers that know nothing of each other."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """How to name them to people."""

    async def ask(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        """Ask these nodes at once: each call has its own answer, or its own error, at the deadline at the latest."""

    def life(self, number: int) -> Life | None:
        """Who the node is. None: it was not reached yet."""

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        """How many keys one node has."""

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        """One step of SCAN on one node: the next cursor, b"0" at the end, and keys that match."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until it ends by itself, or `close` ends it."""

    def channel(self, keys: Keys) -> Channel: ...

    async def close(self) -> None: ...

    def abandon(self) -> None: ...
