"""Independent servers as one port: the connections of the redis backend, with a node in the place of a slot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.topology.base import Topology

if TYPE_CHECKING:
    from holdfast.backends.redis.address import Node
    from holdfast.backends.redis.keys import Keys
    from holdfast.backends.redis.listening import Ears
    from holdfast.backends.redis.port import Call, Channel, Reply
    from holdfast.backends.redlock.census import Census
    from holdfast.backends.redlock.port import Life
    from holdfast.errors import HoldfastError


class Nodes(Topology):
    """Node n is where slot n would be. Nothing is ever sent elsewhere: each is on its own."""

    known: Census
    ears: Ears  # whoever makes this puts it here
    _heard_at = 0  # which node is listened to

    @functools.cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(map(str, self._place.nodes))

    def at_hand(self, slot: int) -> Node:
        return self._place.nodes[slot]

    async def find(self, slot: int, deadline: float) -> Node:
        return self._place.nodes[slot]

    async def reconsider(self, slot: int, node: Node, deadline: float) -> Node:
        return node

    async def home(self, channel: Channel, deadline: float, *, afresh: bool = False) -> Node:
        """All nodes are told, so one is enough to hear it: the first, or the next one after trouble with it."""
        if afresh:
            self._heard_at += 1
        return self._place.nodes[self._heard_at % len(self._place.nodes)]

    async def ask(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Reply | HoldfastError]:
        return await self.run_all(
            [call._replace(keys=_at(call.keys, number)) for number, call in calls], deadline=deadline
        )

    async def scan_at(self, number: int, pattern: str, *, deadline: float) -> set[str]:
        return await self.scan_one(self._place.nodes[number], pattern, deadline)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.ears.start(work)  # ended with the listeners, by close()

    def life(self, number: int) -> Life | None:
        return self.known.life(self._place.nodes[number])


@functools.lru_cache(maxsize=8192)
def _at(keys: Keys, number: int) -> Keys:
    return keys._replace(slot=number)
