"""What the redis protocols need of a deployment, whatever its shape: scripts and commands where a key is, and hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.backends.redis.config import Node
from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.protocol.keys import Keys, OtherKeys
from holdfast.backends.redis.protocol.scanning import KeyspaceSubscription
from holdfast.backends.redis.protocol.server_info import ServerInfo
from holdfast.core.notifications import SubscriberPort
from holdfast.errors import HoldfastError

Reply = Any  # int, bytes, None, or a list of these, as in RESP2

Word = str | bytes | int


class Call(NamedTuple):
    """One script on one lock, or on other keys of one slot."""

    script: Script
    keys: Keys | OtherKeys
    arguments: tuple[Word, ...]


class Channel(NamedTuple):
    """Where this client hears hints, and with which command a script sends them."""

    verb: str  # PUBLISH or SPUBLISH
    name: str


class RedisSubscriber(SubscriberPort[Channel], Protocol):
    """The subscriptions of one client."""

    def channel(self, keys: Keys) -> Channel:
        """The channel for notifications to this client's tickets of a lock."""


class RedisPort(Protocol):
    """One deployment: a server, a primary that Sentinels know, or a Cluster. Connected at first use.

    Every verb raises BackendUnavailable when nothing was changed (not connected, refused, -LOADING, -READONLY, …),
    OutcomeUnknown when a request was sent and got no answer, NameConflict for a key of another type, and
    ConfigurationError for a server that must not be used for locks as it is configured.
    """

    @property
    def subscriber(self) -> RedisSubscriber: ...

    @property
    def server_info(self) -> ServerInfo | None:
        """What the server said of itself, once it was asked."""

    async def run(self, call: Call, *, deadline: float) -> Reply:
        """Run one script on the primary that has its keys."""

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        """Run many, pipelined: each has its own answer, or its own error in its place."""

    def may_share_script(self, some: Keys, others: Keys) -> bool:
        """One script may have both: on a Cluster, if they are in one slot."""

    async def command(self, keys: Keys | OtherKeys, *words: Word, deadline: float) -> Reply:
        """One plain command on the primary that has these keys."""

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        """All primaries."""

    async def key_count(self, server: Node, *, deadline: float) -> int:
        """How many keys one of them has, for people; 0 if an ACL does not allow to ask."""

    async def scan(self, server: Node, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        """One step of SCAN on one of them: the next cursor, b"0" at the end, and keys that match."""

    async def subscribe_keyspace(self, server: Node, pattern: str, *, deadline: float) -> KeyspaceSubscription | None:
        """Subscribe to the keyspace notifications of one of them, for keys that match."""

    def trusts_message(self, keys: Keys, since: float) -> bool:
        """A grant that came by message, for a ticket that polled at `since`, counts as an answer would."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop inherited connections without a word on them."""
