"""A RedisPort whose requests travel through a simulated network, and whose hints may be missed.

A client has one connection on which it hears; what it subscribes to is asked for on that, and lost with it. When that
connection breaks, the server knows at once, the client some time later: what was published meanwhile, it has missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.redis.keys import Keys, channel_of
from holdfast.backends.redis.port import Call, Channel, Reply, Word
from holdfast.backends.redis.standing import Standing
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, NameConflict, OutcomeUnknown
from holdfast.sim.servers.redis.commands import Refused

if TYPE_CHECKING:
    from holdfast.sim.network import Link
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.servers.redis.server import RedisServer

T = TypeVar("T")

PREFIX = "sim:"
LINGER = 2.0  # seconds for which a channel is heard that nobody waits for
RECONNECT_TIMEOUT, RECONNECT_PAUSE = 1.0, 0.2


class ScriptFailed(AssertionError):
    """The server refused what a protocol of ours must never ask for: nothing that a client should be able to handle."""


class SimPort:
    """The way of one client to the server."""

    def __init__(self, server: RedisServer, link: Link, runtime: SimRuntime, number: int) -> None:
        self.link = link
        self.standing: Standing | None = None
        self._server = server
        self._runtime = runtime
        self._listener = f"{link.process.name}.{number}"
        self._wake: Callable[[str], None] = lambda _: None
        self._missed: Callable[[], None] = lambda: None
        self.attended: dict[str, set[str]] = {}  # channel -> who waits for hints there
        self._heard: dict[str, int] = {}  # channel -> the number of its subscription
        self.subscriptions = 0
        self.connection = 0  # the one that hears is the so-manieth
        self._is_reconnecting = False

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, call: Call, *, deadline: float) -> Reply:
        return await self._ask(lambda: self._server.run(call), deadline)

    async def run_all(self, calls: Sequence[Call], *, deadline: float) -> list[Reply | HoldfastError]:
        """On a Cluster each slot is asked on its own, so some may answer and some not."""
        groups: dict[int, list[Call]] = {}
        for call in calls:
            groups.setdefault(call.keys.slot if self._server.is_cluster else 0, []).append(call)
        answers = {slot: iter(await self._run_group(group, deadline)) for slot, group in groups.items()}
        return [next(answers[call.keys.slot if self._server.is_cluster else 0]) for call in calls]

    async def _run_group(self, calls: list[Call], deadline: float) -> list[Reply | HoldfastError]:
        try:
            return await self._ask(lambda: [self._server.run(call) for call in calls], deadline)
        except HoldfastError as error:
            return [error] * len(calls)

    async def command(self, keys: Keys, *words: Word, deadline: float) -> Reply:
        return await self._ask(lambda: self._server.command(keys, words), deadline)

    async def scan(self, pattern: str, *, deadline: float) -> list[str]:
        reply: Reply = await self._ask(lambda: self._server.machine.command(["SCAN", 0, "MATCH", pattern]), deadline)
        return [key.decode() for key in reply[1]]

    async def _ask(self, step: Callable[[], T], deadline: float) -> T:
        """Have it done, unless the server goes down while it is on its way: that ends its connection."""
        server, before = self._server, self._server.starts

        def arrived() -> T:
            if server.starts != before:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
            return step()

        try:
            return await self.link.request(arrived, deadline)
        except Refused as refused:
            if refused.code == "WRONGTYPE":
                raise NameConflict(lock="?", reason=str(refused)) from refused
            raise ScriptFailed(str(refused)) from refused

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────

    def channel(self, keys: Keys) -> Channel:
        if self._server.is_cluster:
            return Channel("SPUBLISH", channel_of(PREFIX, keys, self._listener))
        return Channel("PUBLISH", f"{PREFIX}wake:{self._listener}")

    def hearing(self, channel: Channel) -> int:
        return self._heard.get(channel.name, 0)

    async def attend(self, channel: Channel, nonce: str, *, deadline: float) -> None:
        if channel.name not in self._heard:
            await self._subscribe([channel.name], deadline)
        self.attended.setdefault(channel.name, set()).add(nonce)

    def dismiss(self, channel: Channel, nonce: str) -> None:
        waiting = self.attended.get(channel.name)
        if waiting is None:
            return
        waiting.discard(nonce)
        if not waiting:
            del self.attended[channel.name]
            process, heard = self.link.process, self._heard.get(channel.name, 0)
            process.world.at(process.world.now + LINGER, process.do, self._let_go, channel.name, heard)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._wake, self._missed = wake, missed

    def hear(self, connection: int, message: bytes) -> None:
        """Something was published."""
        if connection == self.connection:
            self._wake(message.decode())

    def broken(self, connection: int) -> None:
        """It turns out that the connection that hears is no more."""
        if connection != self.connection:
            return
        self._server.hang_up(self)
        self.connection += 1
        self._heard.clear()
        if self.attended and not self._is_reconnecting:
            self._is_reconnecting = True
            self._runtime.spawn(self._reconnect, "listener")

    async def _subscribe(self, channels: Sequence[str], deadline: float) -> None:
        connection = self.connection
        try:
            await self._ask(lambda: self._server.subscribe(self, connection, channels), deadline)
        except BackendError:
            self.broken(connection)  # a driver that has no answer closes the connection
            raise
        if connection != self.connection:
            raise BackendUnavailable(backend="sim", problem="the connection broke meanwhile")
        for channel in channels:
            if channel not in self._heard:
                self.subscriptions += 1
                self._heard[channel] = self.subscriptions

    async def _reconnect(self) -> None:
        """Until all that somebody waits for is heard again; then they look, for what was missed."""
        try:
            while wanted := sorted(set(self.attended) - set(self._heard)):
                try:
                    await self._subscribe(wanted, self._runtime.now() + RECONNECT_TIMEOUT)
                except BackendError:
                    await self._runtime.sleep(RECONNECT_PAUSE)
                else:
                    self._missed()
        finally:
            self._is_reconnecting = False

    def _let_go(self, channel: str, heard: int) -> None:
        if channel not in self.attended and self._heard.get(channel) == heard:
            del self._heard[channel]
            self._server.unsubscribe(self, channel)

    async def close(self) -> None:
        self._server.hang_up(self)

    def abandon(self) -> None:
        """The process is gone; the server sees its connections end."""
