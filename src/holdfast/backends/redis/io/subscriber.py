"""Subscriptions to notifications, for threads and asyncio. A channel is subscribed while tickets wait on it.

Each server with channels of this client has one listener: a thread or a task that owns one connection. Correctness does
not depend on notifications, so a failure here costs only time. But a channel must never count as subscribed when it is
not. So it counts from the server's confirmation until the first error:

    wanted ──SUBSCRIBE──▶ requested ──confirmed──▶ subscribed (a new generation)
       ▲                                              │ connection lost, silent for 10 s, slot moved away
       └──────────────── after a pause ◀──────────────┘ (a gap: after it, all waiters poll)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.net.poller import Background
from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.resp import ErrorReply, pack
from holdfast.backends.redis.port import Channel, Reply
from holdfast.backends.redis.protocol.keys import LockKeys, channel_of
from holdfast.core.events import logger
from holdfast.core.handovers import notification_of
from holdfast.core.notifications import Wakeups
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.config import RedisConfig
    from holdfast.backends.redis.io.topology import Topology
    from holdfast.core.ports import Event, Runtime
    from holdfast.core.tickets import Notification
    from holdfast.url_parts import Node

IDLE_MAX = 5.0  # seconds without waiters after which a channel is unsubscribed, and the last one's connection closed
SILENCE_MAX = 5.0  # seconds without a message before a PING, and as many again for its reply
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to subscribe again
_PING = pack("PING")


class SubscriberConnection(Protocol):
    """A connection with subscriptions. Only its listener uses it, except for `wake` and the waiters on an `event`."""

    def send(self, data: bytes) -> None: ...

    async def receive(self, until: float) -> list[Reply]:
        """The next messages, as soon as there are any; an empty list at `until` or after `wake`."""

    def wake(self) -> None:
        """Make `receive` return soon. May be called from any thread."""

    def event(self, notify: Callable[[Notification], None]) -> Event | None:
        """An event to wait on for a notification. The waiting thread itself reads the connection, so no thread has to
        wake it. None if there is no such event.

        Messages that are not notifications, and those that no waiter reads, are still returned by `receive`.
        """

    def close(self) -> None: ...


class SubscriberIO(Background, Protocol):
    """Opens subscriber connections and runs listeners, on threads or asyncio."""

    async def open(self, node: Node, deadline: float) -> SubscriberConnection: ...

    def abandon(self) -> None: ...


class _Subscription:
    """One channel, and the tickets that wait for a notification on it."""

    __slots__ = ("channel", "error", "events", "generation", "has_gap", "idle_since", "is_requested", "node", "nonces")

    def __init__(self, channel: Channel, now: float) -> None:
        self.channel = channel
        self.node: Node | None = None  # the server whose listener has it
        self.nonces: set[str] = set()
        self.idle_since = now
        self.generation = 0  # 0: not subscribed
        self.is_requested = False  # on the current connection
        self.has_gap = False  # it was subscribed before, so notifications may have been missed
        self.events: list[Event] = []  # of callers that wait for the confirmation
        self.error: HoldfastError | None = None

    def wake_waiters(self) -> None:
        for event in self.events:
            event.set()


class Subscriber:
    """The subscriptions of one client."""

    def __init__(self, config: RedisConfig, topology: Topology, io: SubscriberIO, runtime: Runtime) -> None:
        self._config, self._topology, self._io, self._runtime = config, topology, io, runtime
        self.wakeups = Wakeups(runtime)
        self._mutex = runtime.mutex()
        self._client_id = runtime.nonce()
        # If several servers get a message, each counts only its own subscribers (lua/queue/publish.lua).
        kind = "wake" if config.shape in {"single", "sentinel"} else "wake-all"
        self._channel = Channel("PUBLISH", f"{config.prefix}{kind}:{self._client_id}")
        self._is_sharded = config.shape == "cluster"
        self.channels: dict[Channel, _Subscription] = {}
        self._listeners: dict[Node, Listener] = {}
        self._generations = itertools.count(1)
        self._closed = False

    def channel(self, keys: LockKeys) -> Channel:
        if self._is_sharded:
            server_info = self._topology.handshake.server_info
            # Before the first connection the version is not known, so use the channel that all versions support.
            if server_info is not None and server_info.has_sharded_channels:
                return Channel("SPUBLISH", channel_of(self._config.prefix, keys, self._client_id))
        return self._channel

    def subscription(self, channel: Channel) -> int:
        if not self.channels:  # no ticket waits, the usual case
            return 0
        subscription = self.channels.get(channel)
        return 0 if subscription is None else subscription.generation

    async def subscribe(self, channel: Channel, nonce: str, *, deadline: float) -> Event | None:
        """Return when the channel is subscribed, or at the deadline; then `subscription` is 0.

        Raises:
            BackendUnavailable: it cannot be subscribed: no connection, or no permission.
        """
        with self._mutex:
            self._refuse_closed()
            subscription = self.channels.get(channel)
            if subscription is None:
                subscription = self.channels[channel] = _Subscription(channel, self._runtime.now())
            subscription.nonces.add(nonce)
            if subscription.generation:
                return self._event(subscription)
            event = self._runtime.event()
            subscription.events.append(event)
            if subscription.error is not None:  # of an earlier attempt: try again
                subscription.error, subscription.is_requested = None, False
        try:
            listener = None if subscription.node is None else self._listeners.get(subscription.node)
            if listener is None:
                self._assign(subscription, await self._topology.channel_node(channel, deadline))
            else:
                listener.nudge()
            await event.wait(deadline)
        finally:
            with self._mutex:
                subscription.events.remove(event)
        self._refuse_closed()
        error = subscription.error
        if error is not None and not self.subscription(channel):
            problem = error.problem if isinstance(error, BackendError) else str(error)
            raise BackendUnavailable(backend=self._config.url, problem=problem) from error
        return self._event(subscription)

    def _event(self, subscription: _Subscription) -> Event | None:
        listener = None if subscription.node is None else self._listeners.get(subscription.node)
        return None if listener is None else listener.event()

    def unsubscribe(self, channel: Channel, nonce: str) -> None:
        with self._mutex:
            subscription = self.channels.get(channel)
            if subscription is not None:
                subscription.nonces.discard(nonce)
                if not subscription.nonces:
                    subscription.idle_since = self._runtime.now()

    def drop(self, node: Node) -> None:
        """The server is no longer a primary of this deployment, so notifications no longer arrive there."""
        listener = self._listeners.get(node)
        if listener is not None:
            listener.disconnect()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            listeners = list(self._listeners.values())
            for subscription in self.channels.values():
                subscription.wake_waiters()
        for listener in listeners:
            listener.wake()
        await self._io.join()

    def abandon(self) -> None:
        self._closed = True
        self._io.abandon()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until it ends by itself, or `close` ends it."""
        self._io.start(work, "listener")

    # ── for the listeners ────────────────────────────────────────────────────────────────────────────────────────

    async def subscribe_keyspace(self, node: Node, pattern: str, deadline: float) -> RedisKeyspaceSubscription:
        connection = await self._io.open(node, min(deadline, self._runtime.now() + self._config.connect_timeout))
        return RedisKeyspaceSubscription(connection, node, self._config, pattern, self._runtime)

    def on(self, node: Node) -> list[_Subscription]:
        return [subscription for subscription in list(self.channels.values()) if subscription.node == node]

    def is_done(self, node: Node) -> bool:
        """Whether this server's listener is no longer needed. If so, it is removed."""
        with self._mutex:
            now = self._runtime.now()
            mine = self.on(node)
            if not self._closed and any(
                subscription.nonces or now - subscription.idle_since < IDLE_MAX for subscription in mine
            ):
                return False
            for subscription in mine:
                del self.channels[subscription.channel]
            self._listeners.pop(node, None)
            return True

    def changes(self, node: Node) -> tuple[list[_Subscription], list[_Subscription]]:
        """The channels to subscribe and to unsubscribe now. They count as requested, or as gone, from now on."""
        with self._mutex:
            now, mine = self._runtime.now(), self.on(node)
            wanted = [subscription for subscription in mine if subscription.nonces and not subscription.is_requested]
            idle = [
                subscription
                for subscription in mine
                if subscription.is_requested and not subscription.nonces and now - subscription.idle_since > IDLE_MAX
            ]
            for subscription in wanted:
                subscription.is_requested = True
            for subscription in idle:
                del self.channels[subscription.channel]
            return wanted, idle

    def set_subscribed(self, channel: Channel, *, is_subscribed: bool) -> None:
        """The server has confirmed or ended the subscription of a channel."""
        with self._mutex:
            subscription = self.channels.get(channel)
            if subscription is None:
                return
            was_gap = subscription.has_gap
            if is_subscribed:
                subscription.generation, subscription.has_gap = next(self._generations), False
                subscription.error = None
            else:
                self._mark_unsubscribed(subscription)
            subscription.wake_waiters()
        if is_subscribed and was_gap:
            self.wakeups.wake_all()

    def fail(self, node: Node, error: HoldfastError) -> None:
        """All subscriptions on this server have ended. Wake the callers that wait for a confirmation."""
        with self._mutex:
            for subscription in self.on(node):
                self._mark_unsubscribed(subscription)
                subscription.error = error
                subscription.wake_waiters()

    def ended(self, listener: Listener, node: Node) -> None:
        """This listener has stopped, so the next waiter starts another."""
        with self._mutex:
            if self._listeners.get(node) is listener:
                del self._listeners[node]

    def refuse(self, subscription: _Subscription, error: HoldfastError) -> None:
        with self._mutex:
            subscription.error = error
            subscription.wake_waiters()

    async def relocate(self, node: Node, deadline: float) -> None:
        """Move channels whose server has changed to the listener of the new subscription."""
        for subscription in [
            subscription for subscription in self.on(node) if subscription.nonces and not subscription.generation
        ]:
            try:
                channel_node = await self._topology.channel_node(subscription.channel, deadline, refresh=True)
            except BackendError:
                return  # the next attempt repeats this
            if channel_node != node:
                self._assign(subscription, channel_node)

    def _assign(self, subscription: _Subscription, node: Node) -> None:
        with self._mutex:
            self._refuse_closed()
            if subscription.node != node:
                subscription.node, subscription.is_requested = node, False
            listener = self._listeners.get(node)
            is_new = listener is None
            if listener is None:
                listener = self._listeners[node] = Listener(node, self, self._io, self._config, self._runtime)
        if not is_new:
            listener.nudge()
            return
        try:
            self._io.start(listener.run, "listener")
        except BaseException as error:
            self.ended(listener, node)
            if isinstance(error, RuntimeError):
                problem = f"a listener could not be started: {error}"
                raise BackendUnavailable(backend=self._config.url, problem=problem) from error
            raise

    def _mark_unsubscribed(self, subscription: _Subscription) -> None:
        subscription.has_gap = subscription.has_gap or subscription.generation > 0
        subscription.generation, subscription.is_requested = 0, False

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendUnavailable(backend=self._config.url, problem="the client is closed")


class Listener:
    """Receives the messages of all channels on one server."""

    def __init__(
        self, node: Node, subscriber: Subscriber, io: SubscriberIO, config: RedisConfig, runtime: Runtime
    ) -> None:
        self._node, self._subscriber, self._io, self._config, self._runtime = node, subscriber, io, config, runtime
        self._connection: SubscriberConnection | None = None
        self._wakeup = runtime.event()
        self._requested: list[_Subscription] = []  # in order, until the server has replied
        self._must_disconnect = self._has_changed = self._has_lost_channels = False

    def nudge(self) -> None:
        """A channel was added. This does not shorten a pause between attempts."""
        self._has_changed = True
        connection = self._connection
        if connection is not None:
            connection.wake()

    def wake(self) -> None:
        """Stop waiting, because the client or this connection is being closed."""
        self._wakeup.set()
        self.nudge()

    def disconnect(self) -> None:
        """Close the current connection. Channels that are still wanted are assigned to a server again."""
        self._must_disconnect = True
        self.wake()

    def event(self) -> Event | None:
        """The event for a waiter, which may read the connection itself while it waits."""
        connection = self._connection
        return None if connection is None else connection.event(self._subscriber.wakeups.wake)

    async def run(self) -> None:
        """Run until the listener is no longer needed."""
        pause, is_retry = PAUSE_MIN, False
        try:
            while not self._subscriber.is_done(self._node):
                began = self._runtime.now()
                try:
                    if is_retry:
                        await self._subscriber.relocate(self._node, began + self._config.connect_timeout)
                    await self._connect_and_receive()
                except Exception as error:
                    # Any error (no descriptors left, a message that cannot be parsed): the next attempt may succeed.
                    self._subscriber.fail(self._node, self._error_of(error, is_first=not is_retry))
                    if self._runtime.now() - began > PAUSE_MAX:
                        pause = PAUSE_MIN  # it was subscribed for a while
                    self._wakeup.clear()
                    await self._wakeup.wait(self._runtime.now() + pause)
                    pause, is_retry = min(2 * pause, PAUSE_MAX), True
        except BaseException as error:  # cancelled, for example
            self._subscriber.fail(self._node, self._error_of(error, is_first=False))
            self._subscriber.ended(self, self._node)
            raise

    def _error_of(self, error: BaseException, *, is_first: bool) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        if is_first:
            logger().warning("the subscription on %s failed, trying again: %r", self._config.url, error)
        return not_sent(self._config.url, self._node, f"the subscription failed: {error!r}")

    async def _connect_and_receive(self) -> None:
        connection = await self._io.open(self._node, self._runtime.now() + self._config.connect_timeout)
        self._connection, self._must_disconnect, self._has_changed = connection, False, True
        self._requested.clear()
        try:
            await self._receive(connection)
        finally:
            self._connection = None
            connection.close()

    async def _receive(self, connection: SubscriberConnection) -> None:
        last_message = self._runtime.now()
        is_pinged = False
        while True:
            if self._has_changed:
                self._has_changed = False
                if self._must_disconnect:
                    raise not_sent(self._config.url, self._node, "it is no longer the primary")
                if self._subscriber.is_done(self._node):
                    return
                self._subscribe(connection)
            until = last_message + SILENCE_MAX
            messages = await connection.receive(until)
            now = self._runtime.now()
            for reply in messages:
                self._handle(reply)
            if messages:
                last_message, is_pinged = now, False
            elif now >= until:
                if is_pinged:
                    raise no_answer(self._config.url, self._node, "it did not answer a PING while it was subscribed")
                connection.send(_PING)
                last_message, is_pinged, self._has_changed = now, True, True
            if self._has_lost_channels:  # a slot of a Cluster was moved, and its channels with it
                self._has_lost_channels = False
                self._has_changed = True
                await self._subscriber.relocate(self._node, now + self._config.connect_timeout)

    def _subscribe(self, connection: SubscriberConnection) -> None:
        wanted, idle = self._subscriber.changes(self._node)
        for subscription in wanted:
            self._requested.append(subscription)
            connection.send(
                pack(
                    "SSUBSCRIBE" if subscription.channel.verb == "SPUBLISH" else "SUBSCRIBE", subscription.channel.name
                )
            )
        for subscription in idle:
            connection.send(
                pack(
                    "SUNSUBSCRIBE" if subscription.channel.verb == "SPUBLISH" else "UNSUBSCRIBE",
                    subscription.channel.name,
                )
            )

    def _handle(self, reply: Reply) -> None:
        if isinstance(reply, ErrorReply):
            self._handle_error(reply)
            return
        match reply:
            case [b"message" | b"smessage", _, payload]:
                self._subscriber.wakeups.wake(notification_of(payload))
            case [b"subscribe" | b"ssubscribe" as kind, name, _]:
                channel = Channel("PUBLISH" if kind == b"subscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._requested = [subscription for subscription in self._requested if subscription.channel != channel]
                self._subscriber.set_subscribed(channel, is_subscribed=True)
            case [b"unsubscribe" | b"sunsubscribe" as kind, bytes(name), _]:
                channel = Channel("PUBLISH" if kind == b"unsubscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._subscriber.set_subscribed(channel, is_subscribed=False)
                self._has_lost_channels = True
            case _:
                pass  # PONG, and the reply to CLIENT SETNAME

    def _handle_error(self, reply: ErrorReply) -> None:
        if not self._requested:
            return
        refused = self._requested.pop(0)
        if errors.redirection(reply) is not None:
            raise errors.refusal(reply, self._config.url, self._node, refused.channel.name)
        self._subscriber.refuse(refused, errors.refusal(reply, self._config.url, self._node, refused.channel.name))


class RedisKeyspaceSubscription:
    """A connection that is subscribed to keyspace notifications, as far as `notify-keyspace-events` enables them."""

    def __init__(
        self, connection: SubscriberConnection, node: Node, config: RedisConfig, pattern: str, runtime: Runtime
    ) -> None:
        self._connection, self._node, self._config, self._runtime = connection, node, config, runtime
        self._channel = f"__keyspace@{config.db}__:"
        connection.send(pack("PSUBSCRIBE", self._channel + pattern))

    async def keys(self) -> list[str]:
        keys: list[str] = []
        while messages := await self._connection.receive(self._runtime.now()):
            for reply in messages:
                if isinstance(reply, ErrorReply):
                    raise errors.refusal(reply, self._config.url, self._node, self._channel)
                match reply:
                    case [b"pmessage", _, channel, _]:
                        keys.append(channel.decode(errors="replace").removeprefix(self._channel))
                    case _:
                        pass  # the reply to PSUBSCRIBE
        return keys

    def close(self) -> None:
        self._connection.close()
