"""What the protocol needs of its nodes: to ask several at once, and to be told when it is worth to ask again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.backends.redis.port import Call, RedisSubscriber, Reply
from holdfast.errors import HoldfastError


class ServerRun(NamedTuple):
    """What a node said of itself when we connected to it last."""

    run: str  # the id of its process
    started_at: float  # when that was started, at the latest, on the runtime's clock
    may_forget: bool  # a restart may lose what it has answered


class RedlockPort(Protocol):
    """N servers that know nothing of each other."""

    @property
    def subscriber(self) -> RedisSubscriber: ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """How to name them to people."""

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        """Ask these nodes at once: each call has its own answer, or its own error, at the deadline at the latest."""

    def server_run(self, number: int) -> ServerRun | None:
        """Who the node is. None: it was not reached yet."""

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        """How many keys one node has."""

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        """One step of SCAN on one node: the next cursor, b"0" at the end, and keys that match."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until it ends by itself, or `close` ends it."""

    async def close(self) -> None: ...

    def abandon(self) -> None: ...
