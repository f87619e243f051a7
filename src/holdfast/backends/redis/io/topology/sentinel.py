"""A primary that Sentinels watch and replace when it fails.

A primary that was replaced may not know it yet: one that was stopped and goes on takes writes for seconds more, and
promises what nobody will keep. So an answer of the primary counts only if a Sentinel named that server within the last
second, before the request was sent; if the answer took longer, a Sentinel is asked again before it is believed. That is
one request to a Sentinel for each second in which there is something to do, and none when there is not.

If no Sentinel answers, the primary that was named last goes on being used for as long as it does answer: a failover is
impossible while all Sentinels are down, and if only we cannot reach them, doing without locks would be no safer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.config import Node
from holdfast.backends.redis.io.resp import ErrorReply, pack
from holdfast.backends.redis.io.topology.base import Topology
from holdfast.core.events import logger
from holdfast.errors import BackendError, BackendUnavailable

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.connection import Connections
    from holdfast.backends.redis.io.handshake import Handshake
    from holdfast.backends.redis.io.subscriber import SubscriberIO
    from holdfast.core.ports import Runtime

TRUST = 1.0  # seconds for which what a Sentinel said is taken for true


class Sentinel(Topology):
    """Asks the Sentinels where the primary is, and does so again and again."""

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
        self._order = list(config.nodes)  # the one that answered last comes first
        self._question = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", config.service)
        self._primary: Node | None = None
        self._trusted_until = 0.0
        self._warned = False

    def known_primary(self, slot: int) -> Node | None:
        return self._primary if self._runtime.now() < self._trusted_until else None

    def trusts(self, node: Node, since: float) -> bool:
        return node == self._primary and self._runtime.now() < self._trusted_until

    async def find_primary(self, slot: int, deadline: float) -> Node:
        asked_at = self._runtime.now()
        try:
            named = await self._query_sentinels(deadline)
        except BackendUnavailable as error:
            if self._primary is None:
                raise
            named = self._primary
            if not self._warned:
                self._warned = True
                logger().warning("no Sentinel answers, so %s goes on being the primary: %s", named, error)
        else:
            self._warned = False
        if named != self._primary:
            before, self._primary = self._primary, named
            if before is not None:
                self.drop(before)
        self._trusted_until = asked_at + TRUST
        return named

    async def rediscover_primary(self, slot: int, node: Node, deadline: float) -> Node:
        self._trusted_until = 0.0
        self._connections.drop(node)  # whatever the Sentinels say: the next connection asks it for its role again
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
        problems = []
        for number, sentinel in enumerate(list(self._order)):
            left = deadline - self._runtime.now()
            # One that is silent must leave time for the others, and for the primary.
            share = min(self._config.connect_timeout, left / (len(self._order) - number + 1))
            try:
                reply = await self._sentinels.exchange(sentinel, self._question, self._runtime.now() + share)
            except BackendError as error:
                problems.append(error.problem)
                continue
            if isinstance(reply, ErrorReply):
                problems.append(f"{sentinel}: {reply}")
            elif reply is None:
                problems.append(f"{sentinel}: it watches no service {self._config.service!r}; is that its name?")
            else:
                # A new list, because other threads may be doing the same.
                self._order = [sentinel, *(one for one in self._order if one != sentinel)]
                return Node(reply[0].decode(), int(reply[1]))
        raise BackendUnavailable(
            backend=self._config.url, problem=f"no Sentinel knows a primary: {'; '.join(problems)}"
        )
