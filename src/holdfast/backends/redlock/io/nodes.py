"""Independent servers as one port: the topology of the redis backend, with the number of a node as the slot."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.io.connection import Batch
from holdfast.backends.redis.io.resp import ErrorReply, pack_call, pack_text
from holdfast.backends.redis.io.topology.base import Topology, is_unknown_script

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Call, Channel, Reply
    from holdfast.backends.redlock.io.handshake import NodeHandshake
    from holdfast.backends.redlock.port import ServerRun
    from holdfast.errors import HoldfastError
    from holdfast.url_parts import Node


class Nodes(Topology):
    """Node n has slot n. Requests are never redirected to another node."""

    handshake: NodeHandshake
    _subscribed_at = 0  # number of the node with the subscriptions

    @functools.cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(map(str, self._config.nodes))

    def known_primary(self, slot: int) -> Node:
        return self._config.nodes[slot]

    async def find_primary(self, slot: int, deadline: float) -> Node:
        return self._config.nodes[slot]

    async def channel_node(self, channel: Channel, deadline: float, *, refresh: bool = False) -> Node:
        """All nodes publish every notification, so one is enough: the first, or the next one after an error."""
        if refresh:
            self._subscribed_at += 1
        return self._config.nodes[self._subscribed_at % len(self._config.nodes)]

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        outcomes = await self._broadcast(calls, pack_call, deadline)
        if not any(outcome.__class__ is ErrorReply for outcome in outcomes):
            return outcomes
        unknown = [index for index, outcome in enumerate(outcomes) if is_unknown_script(outcome)]
        if unknown:
            again = await self._broadcast([calls[index] for index in unknown], pack_text, deadline)
            for index, outcome in zip(unknown, again, strict=True):
                outcomes[index] = outcome
        return [
            self._refusal(outcome, self._config.nodes[number], call.keys.lock)
            if outcome.__class__ is ErrorReply
            else outcome
            for (number, call), outcome in zip(calls, outcomes, strict=True)
        ]

    async def _broadcast(
        self, calls: Sequence[tuple[int, Call]], form: Callable[[Call], bytes], deadline: float
    ) -> list[Reply | HoldfastError]:
        """The replies. Error replies are returned as they are."""
        nodes = self._config.nodes
        last: Call | None = None
        request = b""
        requests: dict[int, list[bytes]] = {}
        for number, call in calls:
            if call is not last:  # most nodes get the same request
                last, request = call, form(call)
            requests.setdefault(number, []).append(request)
        results = await self._connections.exchange_batches(
            [
                Batch(nodes[number], texts[0] if len(texts) == 1 else b"".join(texts), len(texts))
                for number, texts in requests.items()
            ],
            deadline,
        )
        if len(results) == len(calls):
            return [result[0] if result.__class__ is list else result for result in results]
        replies = {
            number: iter(result) if isinstance(result, list) else itertools.repeat(result)
            for number, result in zip(requests, results, strict=True)
        }
        return [next(replies[number]) for number, _ in calls]

    async def key_count_at(self, number: int, *, deadline: float) -> int:
        return await self.key_count(self._config.nodes[number], deadline=deadline)

    async def scan_at(self, number: int, cursor: bytes, pattern: str, *, deadline: float) -> tuple[bytes, list[str]]:
        return await self.scan(self._config.nodes[number], cursor, pattern, deadline=deadline)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.subscriber.start(work)  # `close` ends it with the listeners

    def server_run(self, number: int) -> ServerRun | None:
        return self.handshake.server_runs[number]
