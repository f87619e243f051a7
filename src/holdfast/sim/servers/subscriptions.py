"""Hints that a server pushes, and that may be missed: what the models have in common of servers with connections.

A client has one connection on which it hears; what it subscribes to is asked for on that, and lost with it. When that
connection breaks, the server knows at once, the client some time later: what was published meanwhile, it has missed.
A restart ends all connections: what was on its way is not done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast.sim.network import Link
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.world import World

C = TypeVar("C")  # a channel, in the backend's own words
T = TypeVar("T")

NOTICED_MAX = 1.0  # seconds until a client sees that the connection on which it hears has ended
LINGER = 2.0  # seconds for which a channel is heard that nobody waits for
RECONNECT_TIMEOUT, RECONNECT_PAUSE = 1.0, 0.2


class PushServer(Server):
    """A server that knows who hears what, and that can go down."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.listeners: list[Listening[Any]] = []  # all clients, whether they listen or not
        self._subscribers: dict[str, dict[Listening[Any], int]] = {}  # channel -> who hears it, on which connection

    def subscribe(self, listening: Listening[Any], connection: int, channels: Sequence[str]) -> None:
        if connection != listening.connection:
            return  # it has been closed since: the answer finds nobody
        for channel in channels:
            self._subscribers.setdefault(channel, {})[listening] = connection

    def unsubscribe(self, listening: Listening[Any], channel: str) -> None:
        self._subscribers.get(channel, {}).pop(listening, None)

    def hang_up(self, listening: Listening[Any]) -> bool:
        """The connection on which this client hears has ended. Whether it heard anything."""
        return sum(heard.pop(listening, None) is not None for heard in self._subscribers.values()) > 0

    def publish(self, channel: str, message: str) -> int:
        """How many it is sent to."""
        heard = self._subscribers.get(channel, {})
        for listening, connection in heard.items():
            listening.link.notify(listening.hear, connection, message)
        return len(heard)

    def subscribed(self) -> object:
        """Who hears what; for `state`."""
        return [
            (channel, [(listening.link.process.name, connection) for listening, connection in heard.items()])
            for channel, heard in self._subscribers.items()
        ]

    def restart(self) -> None:
        self.starts += 1
        for listening in self.listeners:
            self._cut(listening)

    def drop(self, process: Process) -> bool:
        return sum(self._cut(one) for one in self.listeners if one.link.process is process) > 0

    def process_died(self, process: Process) -> None:
        for listening in self.listeners:
            if listening.link.process is process:
                self.hang_up(listening)

    def _cut(self, listening: Listening[Any]) -> bool:
        if not self.hang_up(listening):
            return False
        world = self.world
        noticed = world.now + world.choices.between(0.0, NOTICED_MAX)
        world.at(noticed, listening.link.process.do, listening.broken, listening.connection)
        return True


class Listening(Generic[C]):
    """The part of a port that asks and listens: an Ear, as core/notifications.py has it."""

    def __init__(self, server: PushServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self.attended: dict[str, set[str]] = {}  # channel -> who waits for hints there
        self.subscriptions = 0
        self.connection = 0  # the one that hears is the so-manieth
        self._push_server = server
        self._runtime = runtime
        self._wake: Callable[[str], None] = lambda _: None
        self._missed: Callable[[], None] = lambda: None
        self._heard: dict[str, int] = {}  # channel -> the number of its subscription
        self._is_reconnecting = False

    @abstractmethod
    def name_of(self, channel: C) -> str:
        """By which the server knows it."""

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        return await self.link.request_in_this_run(step, deadline)

    def subscription(self, channel: C) -> int:
        return self._heard.get(self.name_of(channel), 0)

    async def subscribe(self, channel: C, nonce: str, *, deadline: float) -> None:
        name = self.name_of(channel)
        if name not in self._heard:
            await self._subscribe([name], deadline)
        self.attended.setdefault(name, set()).add(nonce)

    def unsubscribe(self, channel: C, nonce: str) -> None:
        name = self.name_of(channel)
        waiting = self.attended.get(name)
        if waiting is None:
            return
        waiting.discard(nonce)
        if not waiting:
            del self.attended[name]
            process, heard = self.link.process, self._heard.get(name, 0)
            process.world.at(process.world.now + LINGER, process.do, self._let_go, name, heard)

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._wake, self._missed = wake, missed

    def hear(self, connection: int, message: str) -> None:
        """Something was published."""
        if connection == self.connection:
            self._wake(message)

    def broken(self, connection: int) -> None:
        """It turns out that the connection that hears is no more."""
        if connection != self.connection:
            return
        self._push_server.hang_up(self)
        self.connection += 1
        self._heard.clear()
        if self.attended and not self._is_reconnecting:
            self._is_reconnecting = True
            self._runtime.spawn(self._reconnect, "listener")

    async def close(self) -> None:
        self._push_server.hang_up(self)

    def abandon(self) -> None:
        """The process is gone; the server sees its connections end."""

    def move(self, server: PushServer, link: Link) -> None:
        """From now on it hears another server."""
        self._push_server, self.link = server, link

    async def _subscribe(self, channels: Sequence[str], deadline: float) -> None:
        connection = self.connection
        try:
            await self.request(lambda: self._push_server.subscribe(self, connection, channels), deadline)
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
            self._push_server.unsubscribe(self, channel)
