"""A Cluster: keys are distributed over several primaries by slot, and slots may move at any time.

The client keeps a map from slots to primaries. The map may be out of date: a server that does not have a slot replies
with the one that has it (MOVED) or is getting it (ASK), and executes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redis.io.topology.base import Topology
from holdfast.backends.redis.protocol.keys import SLOTS, LockKeys, slot_of
from holdfast.errors import BackendError, BackendUnavailable
from holdfast.url_parts import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.backends.redis.port import Channel, Reply

TRUST = 1.0  # seconds: a slower reply counts only after a check that its server is still a primary
_MAP = pack("CLUSTER", "SLOTS")


class Cluster(Topology):
    """Keeps the map of slots, and updates it after redirections."""

    _map: list[Node | None]
    _is_outdated = True  # there is no map yet, or MOVED has redirected one slot, so more slots may have moved
    _primaries: frozenset[Node] = frozenset()

    def known_primary(self, slot: int) -> Node | None:
        return None if self._is_outdated else self._map[slot]

    def trusts(self, node: Node, since: float) -> bool:
        return self._runtime.now() < since + TRUST

    def may_share_script(self, keys: LockKeys, others: LockKeys) -> bool:
        return keys.slot == others.slot

    async def find_primary(self, slot: int, deadline: float) -> Node:
        await self._load_map(deadline, not_first=None)
        return self._primary_of(slot)

    async def recheck_primary(self, slot: int, node: Node, deadline: float) -> Node:
        """A primary that was paused and replaced still considers itself one, so only other servers are queried."""
        await self._load_map(deadline, not_first=node, may_use_last=self._nodes() == [node])
        return self._primary_of(slot)

    async def rediscover_primary(self, slot: int, node: Node, deadline: float) -> Node:
        self._connections.drop(node)
        try:
            await self._load_map(deadline, not_first=node)
        except BackendError:
            return node  # the caller reports the first error
        return self._map[slot] or node

    async def servers(self, *, deadline: float) -> Sequence[Node]:
        await self.find_primary(0, deadline)
        return list(self._primaries)

    async def channel_node(self, channel: Channel, deadline: float, *, refresh: bool = False) -> Node:
        if channel.verb == "SPUBLISH":
            return await super().channel_node(channel, deadline, refresh=refresh)
        # A message is forwarded to all servers, so any primary will do.
        slot = slot_of(channel.name)
        if refresh or not self._primaries:
            await self.find_primary(slot, deadline)
        nodes = sorted(self._primaries)
        return nodes[slot % len(nodes)]

    def _redirect(self, slot: int, host: str, port: int, node: Node, *, is_final: bool) -> tuple[Node, bool]:
        target = Node(host or node.host, port)
        if is_final:
            self._map[slot] = target
            self._primaries |= {target}
            self._is_outdated = True
        return target, not is_final

    def _primary_of(self, slot: int) -> Node:
        node = self._map[slot]
        if node is None:
            raise BackendUnavailable(backend=self._config.url, problem=f"no server of the Cluster has slot {slot}")
        return node

    def _nodes(self) -> list[Node]:
        return [*self._primaries, *(node for node in self._config.nodes if node not in self._primaries)]

    async def _load_map(self, deadline: float, *, not_first: Node | None, may_use_last: bool = True) -> None:
        """Load the map from the first server that answers. `not_first` is queried last, or not at all."""
        known = [node for node in self._nodes() if may_use_last or node != not_first]
        known.sort(key=lambda node: node == not_first)
        node, reply = await self._first_reply(
            self._connections,
            known,
            _MAP,
            empty="it knows no slots; is it part of a Cluster?",
            missing="no map of the Cluster",
            deadline=deadline,
        )
        self._read_map(reply, node)

    def _read_map(self, reply: Reply, source: Node) -> None:
        """Parse [[first, last, [host, port, id, …], replicas …], …]. An empty host means the server that replied."""
        slots: list[Node | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in reply:
            name = host.decode() if host else ""
            node = Node(source.host if name in {"", "?"} else name, port)
            slots[first : last + 1] = [node] * (last + 1 - first)
        before = self._primaries
        self._map, self._primaries = slots, frozenset(node for node in slots if node is not None)
        self._is_outdated = False
        for node in before - self._primaries:
            self.drop(node)
