"""Redlock for asyncio: all nodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.io.aio import TaskEars
from holdfast.backends.redis.io.pipeline import PipelineLines
from holdfast.backends.redis.io.subscriber import Hints
from holdfast.backends.redlock.config import council_of
from holdfast.backends.redlock.io.handshake import Census
from holdfast.backends.redlock.io.nodes import Nodes
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.io.connection import Parcel
    from holdfast.backends.redis.port import Reply
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


class NodeLines(PipelineLines):
    """Without a task for each node, once we are connected to all of them: that would cost more than the exchange."""

    async def each(
        self, parcels: Sequence[Parcel], deadline: float, *, alone: bool = False
    ) -> list[list[Reply] | HoldfastError]:
        pipelines = [self._shared.get(parcel.node) for parcel in parcels if parcel.count == 1]
        if alone or len(pipelines) < len(parcels) or deadline <= self._runtime.now():
            return await super().each(parcels, deadline, alone=alone)
        usable = [one for one in pipelines if one is not None and one.is_usable(deadline)]
        if len(usable) < len(parcels):
            return await super().each(parcels, deadline, alone=alone)
        futures = [one.one(parcel.request, deadline) for one, parcel in zip(usable, parcels, strict=True)]
        answers: list[list[Reply] | HoldfastError] = []
        try:
            for future in futures:
                try:
                    answers.append([await future])
                except HoldfastError as error:
                    answers.append(error)
        finally:
            for future in futures[len(answers) :]:  # cancelled: their replies are read all the same, by nobody
                if not future.cancel() and not future.cancelled():
                    future.exception()
        return answers


def open_backend(address: Address, runtime: AsyncioRuntime) -> RedlockBackend:
    runtime.waits_for_sockets = True
    council = council_of(address, is_asyncio=True)
    place, census = council.place, Census(council.place, runtime)
    port = Nodes(place, NodeLines(place, place.login, place.db, runtime, census.meet), census, runtime)
    port.ears = TaskEars(place, runtime)
    port.hints = Hints(place, port, port.ears, runtime)
    return RedlockBackend(council, port, runtime)
