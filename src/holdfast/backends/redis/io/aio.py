"""Redis for asyncio: all tasks on one connection to each server, hints heard by one task for each."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.backends.redis.config import Login, Node, Place, place_of
from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.handshake import Acquaintance
from holdfast.backends.redis.io.pipeline import Channel, PipelineLines
from holdfast.backends.redis.io.resp import pack
from holdfast.backends.redis.io.subscriber import Hints
from holdfast.backends.redis.io.topology import Topology, topology_of
from holdfast.backends.redis.protocol.queue import backend_on
from holdfast.runtimes.aio import AsyncioEvent

if TYPE_CHECKING:
    from holdfast.backends.redis.io.connection import Lines, Meet
    from holdfast.backends.redis.port import Reply
    from holdfast.core.ports import Backend
    from holdfast.runtimes.aio import AsyncioRuntime
    from holdfast.url import Address


def open_backend(address: Address, runtime: AsyncioRuntime) -> Backend:
    place = place_of(address, is_asyncio=True)
    return backend_on(open_port(place, runtime), place, runtime)


def open_port(place: Place, runtime: AsyncioRuntime) -> Topology:
    """One deployment, used by the tasks of one loop."""
    runtime.waits_for_sockets = True

    def open_lines(login: Login, db: int, meet: Meet | None) -> Lines:
        return PipelineLines(place, login, db, runtime, meet)

    port = topology_of(place, Acquaintance(place), runtime, open_lines)
    port.hints = Hints(place, port, TaskEars(place, runtime), runtime)
    return port


class TaskEars:
    """A task for each server that is listened to."""

    def __init__(self, place: Place, runtime: AsyncioRuntime) -> None:
        self._place, self._runtime = place, runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[TransportEar] = set()

    async def open(self, node: Node, deadline: float) -> TransportEar:
        ear = TransportEar(self._place, node, self._runtime)
        await ear.open(self._place.login_of(node), 0, deadline - self._runtime.now())
        self._open.add(ear)
        ear.ended.add_done_callback(lambda _: self._open.discard(ear))
        ear.send(pack("CLIENT", "SETNAME", self._place.client_name))
        try:
            if not await ear.receive(deadline):
                raise errors.not_sent(self._place.url, node, "no answer in time")
        except BaseException:
            ear.close()
            raise
        return ear

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # In a context of its own: what the caller's context holds must not live as long as the client does.
        task = self._runtime.loop.create_task(work(), name="holdfast-listener", context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        ending = [*self._tasks, *(ear.ended for ear in self._open)]
        if ending:
            await asyncio.wait(ending)

    def abandon(self) -> None:
        for ear in self._open:
            ear.abandon()


class TransportEar(Channel):
    """One connection that is listened on."""

    def __init__(self, place: Place, node: Node, runtime: AsyncioRuntime) -> None:
        super().__init__(place, node, runtime)
        self._said: list[Reply] = []
        self._bell = AsyncioEvent()
        self._why = ""

    def send(self, data: bytes) -> None:
        if self.is_open:
            self._transport.write(data)

    async def receive(self, until: float) -> list[Reply]:
        if not self._said and self.is_open:
            await self._bell.wait(until)
        self._bell.clear()
        if not self._said and not self.is_open:
            raise errors.no_answer(self._place.url, self._node, f"{self._why} while we listened")
        said, self._said = self._said, []
        return said

    def event(self, hint: Callable[[str], None]) -> None:
        """Who waits is on the same loop as who reads: any event will do."""

    def ring(self) -> None:
        self._bell.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                self._said.append(reply)
        except Exception as error:
            self.broken(f"its answer makes no sense: {error!r}")
            self.close()
        self._bell.set()

    def broken(self, why: str) -> None:
        self._why = self._why or why
        self._bell.set()
