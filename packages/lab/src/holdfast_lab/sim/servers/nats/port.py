"""A NatsPort whose requests pass through a simulated network, and whose notifications can be lost.

A read that has no answer in half of its time is sent again, as the real port does to another server. A client
receives notifications on one connection. When it breaks, the server knows at once and the client some time later; the
client then subscribes again, and has missed what was published in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.nats.port import Entry, Put
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast.errors import BackendError, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.nats.server import NatsServer

T = TypeVar("T")

REPLICAS = 3
RECONNECT_TIMEOUT, RECONNECT_PAUSE = 1.0, 0.2  # seconds


class SimPort:
    """The port of one client."""

    replicas = REPLICAS

    def __init__(self, server: NatsServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self._server = server
        self._runtime = runtime
        self.wakeups = Wakeups(runtime)
        self._wanted: dict[str, str] = {}  # keys by nonce
        self._subscribed: set[str] = set()
        self.connection = 0  # the number of the connection that receives notifications
        self._is_opening = False

    async def put(self, puts: Sequence[Put], *, deadline: float) -> list[int | BackendError | None]:
        return await self.link.request_in_this_run(lambda: [self._server.put(put) for put in puts], deadline)

    async def get(self, keys: Sequence[str], *, deadline: float, timed: bool = False) -> list[Entry]:
        return await self._request(lambda: self._server.get(keys), deadline)

    async def keys(self, subjects: str, *, deadline: float) -> list[str]:
        start = subjects.removesuffix(">")
        return await self._request(
            lambda: [key for key in self._server.store.entries if key.startswith(start)], deadline
        )

    async def _request(self, step: Callable[[], T], deadline: float) -> T:
        """Read."""
        now = self._runtime.now()
        try:
            return await self.link.request_in_this_run(step, now + (deadline - now) / 2)
        except OutcomeUnknown:
            return await self.link.request_in_this_run(step, deadline)

    # ── notifications ────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, nonce: str, key: str) -> None:
        if nonce not in self._wanted:
            self._wanted[nonce] = key
            self._open()

    def unwatch(self, nonce: str) -> None:
        self._wanted.pop(nonce, None)
        self._subscribed.discard(nonce)

    def receive(self, connection: int, key: str, seq: int) -> None:
        """A notification arrives: the key has a new marker."""
        if connection == self.connection:
            for nonce in self._subscribed:
                if self._wanted[nonce] == key:
                    self.wakeups.wake(Notification(nonce, seq))

    def connection_lost(self, connection: int) -> None:
        """The client notices that the connection that receives notifications is lost."""
        if connection == self.connection:
            self.connection += 1
            self._subscribed.clear()
            self._open()

    def _open(self) -> None:
        if not self._is_opening:
            self._is_opening = True
            self._runtime.spawn(self._subscribe_all, "listener")

    async def _subscribe_all(self) -> None:
        try:
            while new := [nonce for nonce in self._wanted if nonce not in self._subscribed]:
                connection, until = self.connection, self._runtime.now() + RECONNECT_TIMEOUT
                try:
                    await self.link.request_in_this_run(lambda: self._server.subscribe(self), until)
                except BackendError:
                    await self._runtime.sleep(RECONNECT_PAUSE)
                    continue
                if connection == self.connection:
                    for nonce in new:
                        if nonce in self._wanted:
                            self._subscribed.add(nonce)
                            self.wakeups.wake(Notification(nonce))
        finally:
            self._is_opening = False

    async def close(self) -> None:
        self._server.disconnect(self)

    def abandon(self) -> None:
        """The process has ended; the server sees its connections close."""
