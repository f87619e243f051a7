"""The ports of the Redis protocols: scripts and commands on the server that has a key, and subscriptions."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.backends.base_backend import Port
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.protocol.keys import LockKeys, OtherKeys
from holdfast.backends.redis.protocol.scanning import KeyspaceSubscription
from holdfast.backends.redis.protocol.server_info import ServerInfo
from holdfast.core.notifications import SubscriberPort
from holdfast.errors import HoldfastError
from holdfast.url_parts import Node

Reply = Any  # int, bytes, None or a list of these, as in RESP2

Word = str | bytes | int


class Call(NamedTuple):
    """One script with the keys of one lock, or with other keys of one slot."""

    script: Script
    keys: LockKeys | OtherKeys
    arguments: tuple[Word, ...]


# Makes a Call of a tuple. It saves a Python frame, which every acquire and release would need.
call_of: Callable[[tuple[Script, LockKeys | OtherKeys, tuple[Word, ...]]], Call] = functools.partial(
    tuple.__new__, Call
)


class Channel(NamedTuple):
    """A channel on which this client receives notifications, and the command that publishes to it."""

    verb: str  # PUBLISH or SPUBLISH
    name: str


class RedisSubscriber(SubscriberPort[Channel], Protocol):
    """The subscriptions of one client."""

    @property
    def channels(self) -> Sized:
        """The channels that are subscribed or are being subscribed: always the same object."""

    def channel(self, keys: LockKeys) -> Channel:
        """The channel for notifications to this client's tickets of a lock."""


def replies_of(outcomes: Sequence[Reply | HoldfastError]) -> list[Reply]:
    """The outcomes of several calls. Raises the first error among them."""
    for outcome in outcomes:
        if isinstance(outcome, HoldfastError):
            raise outcome
    return list(outcomes)


@runtime_checkable
class PreparesCalls(Protocol):
    """A port on which a prepared call takes one function call."""

    def prepare(self, call: Call) -> Any:
        """The call, packed but for its first argument; None if its reply needs more checks."""

    def exchange_now(self, prepared: Any, nonce: str, now: float, deadline: float) -> int | Awaitable[Reply]:
        """Run a prepared call with this first argument, as core/ports.py: PreparedRequests describes.

        Error replies are returned as exceptions. Nothing is repeated.
        """


class RedisPort(Port, Protocol):
    """One deployment: a server, a primary with Sentinels, or a Cluster. It connects at first use.

    Every method raises BackendUnavailable if nothing was changed (not connected, refused, -LOADING, -READONLY, …),
    OutcomeUnknown if a request was sent and got no reply, NameConflict for a key of another type, and
    ConfigurationError for a server whose configuration is not safe for locks.
    """

    @property
    def subscriber(self) -> RedisSubscriber: ...

    @property
    def server_info(self) -> ServerInfo | None:
        """INFO of the server; None before the first connection."""

    async def run(self, call: Call, *, deadline: float) -> Reply:
        """Run one script on the primary that has its keys."""

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        """Run several scripts, pipelined. Item i is the reply to call i, or its error."""

    def may_share_script(self, keys: LockKeys, others: LockKeys) -> bool:
        """Whether one script may use both: on a Cluster only if they are in one slot."""

    async def command(self, keys: LockKeys | OtherKeys, *words: Word, deadline: float) -> Reply:
        """Run one plain command on the primary that has these keys."""

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        """All primaries."""

    async def key_count(self, server: Node, *, deadline: float) -> int:
        """The number of keys of one server, for display; 0 if an ACL forbids the command."""

    async def scan(self, server: Node, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        """One step of SCAN on one server: the next cursor, b"0" at the end, and the keys that match."""

    async def subscribe_keyspace(self, server: Node, pattern: str, *, deadline: float) -> KeyspaceSubscription | None:
        """Subscribe to the keyspace notifications of one server, for keys that match."""

    def trusts_message(self, keys: LockKeys, since: float) -> bool:
        """Whether a grant that arrived as a message, for a ticket that polled at `since`, is as good as a reply."""
