"""Notifications that a server pushes and that a client may miss: the common part of the models with connections.

A client has one subscriber connection. Its subscriptions are made on that connection and end with it. When the
connection breaks, the server knows at once, the client some time later; the client misses all notifications that are
published in between. A restart ends all connections; requests in flight are not executed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast.errors import BackendError, BackendUnavailable
from holdfast_lab.sim.servers.base import Server

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

C = TypeVar("C")  # a channel, in the type of the backend
T = TypeVar("T")

NOTICED_MAX = 1.0  # seconds until a client notices the end of its subscriber connection
LINGER = 2.0  # seconds after which a subscription without a waiter ends
RECONNECT_TIMEOUT, RECONNECT_PAUSE = 1.0, 0.2


class PushServer(Server):
    """A server with subscriptions that can restart."""

    noticed_max: ClassVar[float] = NOTICED_MAX

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self.subscribers: list[SimSubscriber[Any]] = []  # all clients, with or without subscriptions
        self._channels: dict[str, dict[SimSubscriber[Any], int]] = {}  # by channel: each subscriber and its connection
        # Subscribers whose connection is to a replica that was the primary before. They receive the messages that are
        # published here, but are not counted.
        self._at_replica: set[SimSubscriber[Any]] = set()

    def subscribe(self, subscriber: SimSubscriber[Any], connection: int, channels: Sequence[str]) -> None:
        if connection != subscriber.connection:
            return  # it has been closed in the meantime
        for channel in channels:
            self._channels.setdefault(channel, {})[subscriber] = connection

    def unsubscribe(self, subscriber: SimSubscriber[Any], channel: str) -> None:
        self._channels.get(channel, {}).pop(subscriber, None)

    def disconnect(self, subscriber: SimSubscriber[Any]) -> bool:
        """End the subscriber connection of this client. Returns whether it had subscriptions."""
        self._at_replica.discard(subscriber)
        return sum(channel.pop(subscriber, None) is not None for channel in self._channels.values()) > 0

    def publish(self, channel: str, message: str) -> int:
        """Send a message. Returns the number of subscribers of this server."""
        for subscriber, connection in self._channels.get(channel, {}).items():
            subscriber.link.notify(subscriber.receive, connection, message)
        return self.count_subscribers(channel)

    def count_subscribers(self, channel: str) -> int:
        return len(self._channels.get(channel, {}).keys() - self._at_replica)

    def subscription_state(self) -> object:
        """All subscriptions, for `state`."""
        return [
            (
                channel,
                [
                    (subscriber.link.process.name, connection, subscriber in self._at_replica)
                    for subscriber, connection in subscribers.items()
                ],
            )
            for channel, subscribers in self._channels.items()
        ]

    def restart(self) -> None:
        self.starts += 1
        for subscriber in self.subscribers:
            self._cut(subscriber)

    def switch_to_replica(self) -> None:
        """A replica becomes the primary. The former one is a replica now, and keeps its connections."""
        self.starts += 1
        for subscriber in self.subscribers:
            if any(subscriber in channel for channel in self._channels.values()):
                self._at_replica.add(subscriber)
                self._lose_connection_later(subscriber)

    def drop(self, process: Process) -> bool:
        return sum(self._cut(subscriber) for subscriber in self.subscribers if subscriber.link.process is process) > 0

    def process_died(self, process: Process) -> None:
        for subscriber in self.subscribers:
            if subscriber.link.process is process:
                self.disconnect(subscriber)

    def _cut(self, subscriber: SimSubscriber[Any]) -> bool:
        if not self.disconnect(subscriber):
            return False
        self._lose_connection_later(subscriber)
        return True

    def _lose_connection_later(self, subscriber: SimSubscriber[Any]) -> None:
        """The client notices some time later that its connection has ended, or is to the wrong server."""
        world = self.world
        noticed = world.now + world.choices.between(0.0, self.noticed_max)
        world.at(noticed, subscriber.link.process.do, subscriber.connection_lost, subscriber.connection)


class SimSubscriber(Generic[C]):
    """The subscriber part of a port (core/notifications.py: SubscriberPort)."""

    def __init__(self, server: PushServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self.waiters: dict[str, set[str]] = {}  # by channel: the nonces that wait for notifications
        self.subscriptions = 0
        self.connection = 0  # the number of the current connection
        self._push_server = server
        self._runtime = runtime
        self.wakeups = Wakeups(runtime)
        self._subscribed: dict[str, int] = {}  # by channel: the number of the subscription
        self.channels = self._subscribed
        self._is_reconnecting = False

    @abstractmethod
    def channel_name(self, channel: C) -> str:
        """The name of the channel on the server."""

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        return await self.link.request_in_this_run(step, deadline)

    def subscription(self, channel: C) -> int:
        return self._subscribed.get(self.channel_name(channel), 0)

    async def subscribe(self, channel: C, nonce: str, *, deadline: float) -> None:
        name = self.channel_name(channel)
        if name not in self._subscribed:
            await self._subscribe([name], deadline)
        self.waiters.setdefault(name, set()).add(nonce)

    def unsubscribe(self, channel: C, nonce: str) -> None:
        name = self.channel_name(channel)
        nonces = self.waiters.get(name)
        if nonces is None:
            return
        nonces.discard(nonce)
        if not nonces:
            del self.waiters[name]
            process, number = self.link.process, self._subscribed.get(name, 0)
            process.world.at(process.world.now + LINGER, process.do, self._end_subscription, name, number)

    def receive(self, connection: int, message: str) -> None:
        """A message arrives."""
        if connection == self.connection:
            self.wakeups.wake(self.notification_of(message))

    def notification_of(self, message: str) -> Notification:
        return Notification(message)

    def connection_lost(self, connection: int) -> None:
        """The client notices that its subscriber connection has ended."""
        if connection != self.connection:
            return
        self._push_server.disconnect(self)
        self.connection += 1
        self._subscribed.clear()
        if self.waiters and not self._is_reconnecting:
            self._is_reconnecting = True
            self._runtime.spawn(self._reconnect, "listener")

    async def close(self) -> None:
        self._push_server.disconnect(self)

    def abandon(self) -> None:
        """The process has ended, so the server sees its connections end."""

    def move(self, server: PushServer, link: Link) -> None:
        """Subscribe to another server from now on."""
        self._push_server, self.link = server, link

    async def _subscribe(self, channels: Sequence[str], deadline: float) -> None:
        connection = self.connection
        try:
            await self.request(lambda: self._push_server.subscribe(self, connection, channels), deadline)
        except BackendError:
            self.connection_lost(connection)  # a driver without an answer closes the connection
            raise
        if connection != self.connection:
            raise BackendUnavailable(backend="sim", problem="the connection broke")
        for channel in channels:
            if channel not in self._subscribed:
                self.subscriptions += 1
                self._subscribed[channel] = self.subscriptions

    async def _reconnect(self) -> None:
        """Subscribe again to all channels with waiters. Then wake all waiters: they may have missed messages."""
        try:
            while wanted := sorted(set(self.waiters) - set(self._subscribed)):
                try:
                    await self._subscribe(wanted, self._runtime.now() + RECONNECT_TIMEOUT)
                except BackendError:
                    await self._runtime.sleep(RECONNECT_PAUSE)
                else:
                    self.wakeups.wake_all()
        finally:
            self._is_reconnecting = False

    def _end_subscription(self, channel: str, number: int) -> None:
        if channel not in self.waiters and self._subscribed.get(channel) == number:
            del self._subscribed[channel]
            self._push_server.unsubscribe(self, channel)
