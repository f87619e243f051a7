"""A primary that Sentinels monitor and replace when it fails.

A primary that was replaced while it was paused accepts writes for some seconds after the pause, and these are lost. So
a reply of the primary counts only if a Sentinel named that server less than a second before the reply arrived.
Otherwise a Sentinel is queried again before the reply counts. This costs one request to a Sentinel per second while the
client is active, and none while it is idle.

If no Sentinel answers, the last known primary stays in use as long as it answers: there is no failover while all
Sentinels are down, and if only this client cannot reach them, refusing all locks would not be safer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redis.io.topology.base import Topology
from holdfast.core.events import logger
from holdfast.errors import AccessDenied, BackendUnavailable
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.connection import Connections
    from holdfast.backends.redis.io.handshake import Handshake
    from holdfast.backends.redis.io.subscriber import SubscriberIO
    from holdfast.core.ports import Runtime

TRUST = 1.0  # seconds for which the reply of a Sentinel is trusted


class Sentinel(Topology):
    """Finds the primary by querying the Sentinels: at most once per second, and after each error of the primary."""

    def __init__(  # noqa: PLR0917  (as the base, with one more)
        self,
        config: RedisConfig,
        servers: Connections,
        sentinels: Connections,
        handshake: Handshake,
        subscriber_io: SubscriberIO,
        runtime: Runtime,
    ) -> None:
        super().__init__(config, servers, handshake, subscriber_io, runtime)
        self._sentinels = sentinels
        self._order = list(config.nodes)  # the Sentinel that replied last is the first
        self._request = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", config.service)
        self._primary: Node | None = None
        self._trusted_until = 0.0
        self._has_warned = False

    def known_primary(self, slot: int) -> Node | None:
        return self._primary if self._runtime.now() < self._trusted_until else None

    def trusts(self, node: Node, since: float) -> bool:
        return node == self._primary and self._runtime.now() < self._trusted_until

    async def find_primary(self, slot: int, deadline: float) -> Node:
        sent = self._runtime.now()
        try:
            named = await self._query_sentinels(deadline)
        except (BackendUnavailable, AccessDenied) as error:
            if self._primary is None:
                raise
            named = self._primary
            if not self._has_warned:
                self._has_warned = True
                logger().warning("no Sentinel answers, so %s stays in use as the primary: %s", named, error)
        else:
            self._has_warned = False
        if named != self._primary:
            before, self._primary = self._primary, named
            if before is not None:
                self.drop(before)
        self._trusted_until = sent + TRUST
        return named

    async def rediscover_primary(self, slot: int, node: Node, deadline: float) -> Node:
        self._trusted_until = 0.0
        self._connections.drop(node)  # in any case: the handshake of the next connection checks its role again
        named = await self._query_sentinels(deadline)
        if named != node:
            self._primary = named
            self.drop(node)
        return named

    async def close(self) -> None:
        await super().close()
        await self._sentinels.close()

    def abandon(self) -> None:
        super().abandon()
        self._sentinels.abandon()

    async def _query_sentinels(self, deadline: float) -> Node:
        sentinel, (host, port) = await self._first_reply(
            self._sentinels,
            self._order,
            self._request,
            empty=f"it monitors no service {self._config.service!r}; is the name right?",
            missing="no Sentinel knows a primary",
            deadline=deadline,
        )
        # A new list, because other threads may do the same.
        self._order = [sentinel, *(other for other in self._order if other != sentinel)]
        return Node(host.decode(), int(port))
