"""The port of the Redlock protocol: scripts on several nodes at once, and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.backends.base_backend import Port
from holdfast.backends.redis.port import Call, RedisSubscriber, Reply
from holdfast.errors import HoldfastError


class ServerRun(NamedTuple):
    """One run of a node's process, as of the last connect."""

    run_id: str
    started_at: float  # the latest possible time of its start, on the runtime's clock
    may_forget: bool  # a restart may lose acknowledged writes


class RedlockPort(Port, Protocol):
    """Several independent servers."""

    @property
    def subscriber(self) -> RedisSubscriber: ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes for messages."""

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        """Run these calls on their nodes at the same time. Item i is the reply to call i, or its error."""

    def server_run(self, number: int) -> ServerRun | None:
        """The current run of a node. None before the first connection."""

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        """The number of keys of one node."""

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        """One step of SCAN on one node: the next cursor, b"0" at the end, and the keys that match."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until it ends by itself, or `close` ends it."""
