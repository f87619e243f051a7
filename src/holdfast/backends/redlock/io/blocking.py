"""Redlock for threads: all nodes are written to before the first is read from, on the caller's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.io.blocking import ThreadEars
from holdfast.backends.redis.io.sockets import SocketLines, SocketWire
from holdfast.backends.redis.io.subscriber import Hints
from holdfast.backends.redlock.config import council_of
from holdfast.backends.redlock.io.handshake import Census
from holdfast.backends.redlock.io.nodes import Nodes
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.net.pool import ConnectionPool
    from holdfast.backends.redis.io.connection import Parcel
    from holdfast.backends.redis.port import Reply
    from holdfast.runtimes.threads import ThreadRuntime
    from holdfast.url import Address


class NodeLines(SocketLines):
    """As fast as five servers can be written to and read from, once we are connected to all of them."""

    async def each(
        self, parcels: Sequence[Parcel], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        now = self._now()
        taken: list[tuple[ConnectionPool[SocketWire], SocketWire]] = []
        for parcel in parcels:
            pool = self._pool(parcel.node)
            wire = pool.get_idle(now)
            if wire is None:
                for other, idle in taken:
                    other.put(idle)
                return await super().each(parcels, deadline, alone=alone)
            taken.append((pool, wire))
        answers: list[list[Reply] | HoldfastError] = [[] for _ in parcels]
        try:
            _exchange(parcels, [wire for _, wire in taken], deadline, answers)
        except BaseException:
            for pool, wire in taken:
                pool.discard(wire)
            raise
        for (pool, wire), answer in zip(taken, answers, strict=True):
            pool.put_after(wire, answer)
        return answers


def open_backend(address: Address, runtime: ThreadRuntime) -> RedlockBackend:
    council = council_of(address, is_asyncio=False)
    place, census = council.place, Census(council.place, runtime)
    port = Nodes(place, NodeLines(place, place.login, place.db, runtime, census.meet), census, runtime)
    port.ears = ThreadEars(place, runtime)
    port.hints = Hints(place, port, port.ears, runtime)
    return RedlockBackend(council, port, runtime)


def _exchange(
    parcels: Sequence[Parcel],
    wires: Sequence[SocketWire],
    deadline: float,
    answers: list[list[Reply] | HoldfastError],
) -> None:
    for place, parcel in enumerate(parcels):
        try:
            wires[place].send(parcel.request, deadline)
        except HoldfastError as error:
            answers[place] = error
    # From the last one first: when it has answered, the others mostly have too, and we sleep once, not five
    # times.
    for place in reversed(range(len(parcels))):
        if answers[place] == []:
            try:
                answers[place] = wires[place].receive(parcels[place].count, deadline)
            except HoldfastError as error:
                answers[place] = error
