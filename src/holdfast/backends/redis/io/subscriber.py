"""Hearing hints: subscriptions that come with the first who waits and go when nobody does. Written once.

One listener for each server that has channels of ours: a thread or a task that owns one connection and runs the text
below. A hint is a hint, so everything here may fail without harm but for time; what must not happen is a channel that
counts as heard and is not. So a channel is heard from the server's confirmation on, until the first sign of trouble:

    wanted ──SUBSCRIBE──▶ asked ──confirmed──▶ heard (a new generation)
       ▲                                         │ connection lost, silent for 10 s, slot moved away
       └───────────── after a pause ◀────────────┘ (a gap: once it is heard again, whoever waits looks again)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.redis.io import errors
from holdfast.backends.redis.io.resp import ErrorReply, pack
from holdfast.backends.redis.port import Channel
from holdfast.backends.redis.protocol.keys import channel_of
from holdfast.core.events import logger
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node, RedisConfig
    from holdfast.backends.redis.io.topology import Topology
    from holdfast.backends.redis.port import Reply
    from holdfast.backends.redis.protocol.keys import Keys
    from holdfast.core.ports import Event, Runtime

IDLE_MAX = 5.0  # seconds without anybody who waits, after which a channel is let go, and at last its connection
SILENCE_MAX = 5.0  # seconds without a word before the server is asked for one, and as many again for its answer
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to hear again
_PING = pack("PING")


class SubscriberConnection(Protocol):
    """A connection that is listened on. Only its listener touches it, but for `wake` and what waits on an `event`."""

    def send(self, data: bytes) -> None: ...

    async def receive(self, until: float) -> list[Reply]:
        """What came, at once when something does; nothing at `until`, or when somebody rings."""

    def wake(self) -> None:
        """Have `receive` return soon; from anywhere."""

    def event(self, notify: Callable[[str], None]) -> Event | None:
        """To wait on for a hint; better than any other because who waits reads, and nobody has to wake it.

        What is not a hint, and what is no longer read by who waits, `receive` returns as ever.
        """

    def close(self) -> None: ...


class SubscriberIO(Protocol):
    """How to listen, on threads or on asyncio."""

    async def open(self, node: Node, deadline: float) -> SubscriberConnection: ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background, on a thread or as a task."""

    async def join(self) -> None:
        """Wait a moment for what was started and has been told to end."""

    def abandon(self) -> None: ...


class _Subscription:
    """One channel, and who waits for a hint on it."""

    __slots__ = ("channel", "error", "events", "generation", "has_gap", "idle_since", "is_requested", "node", "nonces")

    def __init__(self, channel: Channel, now: float) -> None:
        self.channel = channel
        self.node: Node | None = None  # whose listener has it
        self.nonces: set[str] = set()
        self.idle_since = now
        self.generation = 0  # 0: not heard
        self.is_requested = False  # on the present connection
        self.has_gap = False  # it was heard once, so there may be hints that were not
        self.events: list[Event] = []  # of those who wait until it is heard
        self.error: HoldfastError | None = None

    def wake_waiters(self) -> None:
        for event in self.events:
            event.set()


class Subscriber:
    """All channels of one client."""

    def __init__(self, config: RedisConfig, topology: Topology, io: SubscriberIO, runtime: Runtime) -> None:
        self._config, self._topology, self._io, self._runtime = config, topology, io, runtime
        self._mutex = runtime.mutex()
        self._client_id = runtime.nonce()
        # Where a message goes to several servers, each counts its own subscribers only (lua/queue/publish.lua).
        kind = "wake" if config.shape in {"single", "sentinel"} else "wake-all"
        self._channel = Channel("PUBLISH", f"{config.prefix}{kind}:{self._client_id}")
        self._is_sharded = config.shape == "cluster"
        self._subscriptions: dict[Channel, _Subscription] = {}
        self._subscribed: dict[str, Channel] = {}
        self._listeners: dict[Node, Listener] = {}
        self._generations = itertools.count(1)
        self.notify: Callable[[str], None] = lambda _: None  # where hints go
        self._missed: Callable[[], None] = lambda: None
        self._closed = False

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self.notify, self._missed = wake, missed

    def channel(self, keys: Keys) -> Channel:
        if self._is_sharded:
            server_info = self._topology.handshake.server_info
            # Before the first contact nobody knows whether it can: what all versions understand will do.
            if server_info is not None and server_info.has_sharded_channels:
                return Channel("SPUBLISH", channel_of(self._config.prefix, keys, self._client_id))
        return self._channel

    def subscription(self, channel: Channel) -> int:
        if not self._subscriptions:  # nobody waits for anything, as nearly always
            return 0
        subscription = self._subscriptions.get(channel)
        return 0 if subscription is None else subscription.generation

    async def subscribe(self, channel: Channel, nonce: str, *, deadline: float) -> Event | None:
        """Returns when the channel is heard; at the deadline too, and then `subscription` says that it is not.

        Raises:
            BackendUnavailable: it cannot be heard: no connection, or this user may not.
        """
        with self._mutex:
            self._refuse_closed()
            subscription = self._subscriptions.get(channel)
            if subscription is None:
                subscription = self._subscriptions[channel] = _Subscription(channel, self._runtime.now())
            subscription.nonces.add(nonce)
            self._subscribed[nonce] = channel
            if subscription.generation:
                return self._event(subscription)
            event = self._runtime.event()
            subscription.events.append(event)
            if subscription.error is not None:  # of an earlier attempt: this is the next one
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
            # What was attended to counts: before the first contact it may have been another channel.
            subscription = self._subscriptions.get(self._subscribed.pop(nonce, channel))
            if subscription is not None:
                subscription.nonces.discard(nonce)
                if not subscription.nonces:
                    subscription.idle_since = self._runtime.now()

    def drop(self, node: Node) -> None:
        """It is no primary of ours any more: what is heard there is not what others say."""
        listener = self._listeners.get(node)
        if listener is not None:
            listener.disconnect()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            listeners = list(self._listeners.values())
            for subscription in self._subscriptions.values():
                subscription.wake_waiters()
        for listener in listeners:
            listener.wake()
        await self._io.join()

    def abandon(self) -> None:
        self._closed = True
        self._io.abandon()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until it ends by itself, or `close` ends it."""
        self._io.start(work)

    # ── for the listeners ────────────────────────────────────────────────────────────────────────────────────────

    async def subscribe_keyspace(self, node: Node, pattern: str, deadline: float) -> RedisKeyspaceSubscription:
        connection = await self._io.open(node, min(deadline, self._runtime.now() + self._config.connect_timeout))
        return RedisKeyspaceSubscription(connection, node, self._config, pattern, self._runtime)

    def on(self, node: Node) -> list[_Subscription]:
        return [one for one in list(self._subscriptions.values()) if one.node == node]

    def is_done(self, node: Node) -> bool:
        """Nobody needs this server's listener any more; if so, it is not there any more for who comes next."""
        with self._mutex:
            now = self._runtime.now()
            mine = self.on(node)
            if not self._closed and any(one.nonces or now - one.idle_since < IDLE_MAX for one in mine):
                return False
            for one in mine:
                del self._subscriptions[one.channel]
            self._listeners.pop(node, None)
            return True

    def to_subscribe(self, node: Node) -> list[_Subscription]:
        with self._mutex:
            wanted = [one for one in self.on(node) if one.nonces and not one.is_requested]
            for one in wanted:
                one.is_requested = True
            return wanted

    def to_unsubscribe(self, node: Node) -> list[_Subscription]:
        with self._mutex:
            now = self._runtime.now()
            idle = [
                one for one in self.on(node) if one.is_requested and not one.nonces and now - one.idle_since > IDLE_MAX
            ]
            for one in idle:
                del self._subscriptions[one.channel]
            return idle

    def set_subscribed(self, channel: Channel, *, is_subscribed: bool) -> None:
        """The server has confirmed a channel, or taken it away."""
        with self._mutex:
            subscription = self._subscriptions.get(channel)
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
            self._missed()

    def fail(self, node: Node, error: HoldfastError) -> None:
        """Whoever waits to be heard need not wait longer; who was heard is not any more."""
        with self._mutex:
            for one in self.on(node):
                self._mark_unsubscribed(one)
                one.error = error
                one.wake_waiters()

    def ended(self, listener: Listener, node: Node) -> None:
        """This listener does not run any more, so the next one who waits starts another."""
        with self._mutex:
            if self._listeners.get(node) is listener:
                del self._listeners[node]

    def refuse(self, subscription: _Subscription, error: HoldfastError) -> None:
        with self._mutex:
            subscription.error = error
            subscription.wake_waiters()

    async def relocate(self, node: Node, deadline: float) -> None:
        """Channels of this listener that have another home by now go there."""
        for subscription in [one for one in self.on(node) if one.nonces and not one.generation]:
            try:
                channel_node = await self._topology.channel_node(subscription.channel, deadline, refresh=True)
            except BackendError:
                return  # the next round asks again
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
            self._io.start(listener.run)
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
    """Hears the channels that are on one server."""

    def __init__(
        self, node: Node, subscriber: Subscriber, io: SubscriberIO, config: RedisConfig, runtime: Runtime
    ) -> None:
        self._node, self._subscriber, self._io, self._config, self._runtime = node, subscriber, io, config, runtime
        self._connection: SubscriberConnection | None = None
        self._wakeup = runtime.event()
        self._requested: list[_Subscription] = []  # in order, until the server has answered
        self._left = self._has_changed = self._has_lost_some = False

    def nudge(self) -> None:
        """There is a channel more. In a pause that is no reason to hurry."""
        self._has_changed = True
        connection = self._connection
        if connection is not None:
            connection.wake()

    def wake(self) -> None:
        """The end, or of this connection at least."""
        self._wakeup.set()
        self.nudge()

    def disconnect(self) -> None:
        """Let go of the present connection; channels that are still wanted find their home anew."""
        self._left = True
        self.wake()

    def event(self) -> Event | None:
        """For one who waits for a hint, and may read what comes itself meanwhile."""
        connection = self._connection
        return None if connection is None else connection.event(self._subscriber.notify)

    async def run(self) -> None:
        """Until nobody needs it any more."""
        pause, is_retry = PAUSE_MIN, False
        try:
            while not self._subscriber.is_done(self._node):
                began = self._runtime.now()
                try:
                    if is_retry:
                        await self._subscriber.relocate(self._node, began + self._config.connect_timeout)
                    await self._listen()
                except Exception as error:
                    # Of any kind (no descriptor left, a reply that makes no sense): the next attempt may succeed.
                    self._subscriber.fail(self._node, self._error_of(error, is_first=not is_retry))
                    if self._runtime.now() - began > PAUSE_MAX:
                        pause = PAUSE_MIN  # it was heard for a while
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
            logger().warning("listening on %s failed, trying again: %r", self._config.url, error)
        return errors.not_sent(self._config.url, self._node, f"listening failed: {error!r}")

    async def _listen(self) -> None:
        connection = await self._io.open(self._node, self._runtime.now() + self._config.connect_timeout)
        self._connection, self._left, self._has_changed = connection, False, True
        self._requested.clear()
        try:
            await self._receive(connection)
        finally:
            self._connection = None
            connection.close()

    async def _receive(self, connection: SubscriberConnection) -> None:
        last_word = self._runtime.now()
        is_asked_for_one = False
        while True:
            if self._has_changed:
                self._has_changed = False
                if self._left:
                    raise errors.not_sent(self._config.url, self._node, "it is not the primary any more")
                if self._subscriber.is_done(self._node):
                    return
                self._subscribe(connection)
            until = last_word + SILENCE_MAX
            said = await connection.receive(until)
            now = self._runtime.now()
            for reply in said:
                self._take(reply)
            if said:
                last_word, is_asked_for_one = now, False
            elif now >= until:
                if is_asked_for_one:
                    raise errors.no_answer(self._config.url, self._node, "it was silent for too long while we listened")
                connection.send(_PING)
                last_word, is_asked_for_one, self._has_changed = now, True, True
            if self._has_lost_some:  # a slot of a Cluster has moved away, and our channels in it with it
                self._has_lost_some = False
                self._has_changed = True
                await self._subscriber.relocate(self._node, now + self._config.connect_timeout)

    def _subscribe(self, connection: SubscriberConnection) -> None:
        for one in self._subscriber.to_subscribe(self._node):
            self._requested.append(one)
            connection.send(pack("SSUBSCRIBE" if one.channel.verb == "SPUBLISH" else "SUBSCRIBE", one.channel.name))
        for one in self._subscriber.to_unsubscribe(self._node):
            connection.send(pack("SUNSUBSCRIBE" if one.channel.verb == "SPUBLISH" else "UNSUBSCRIBE", one.channel.name))

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, ErrorReply):
            self._take_refusal(reply)
            return
        match reply:
            case [b"message" | b"smessage", _, said]:
                self._subscriber.notify(said.decode(errors="replace"))
            case [b"subscribe" | b"ssubscribe" as kind, name, _]:
                channel = Channel("PUBLISH" if kind == b"subscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._requested = [one for one in self._requested if one.channel != channel]
                self._subscriber.set_subscribed(channel, is_subscribed=True)
            case [b"unsubscribe" | b"sunsubscribe" as kind, bytes(name), _]:
                channel = Channel("PUBLISH" if kind == b"unsubscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._subscriber.set_subscribed(channel, is_subscribed=False)
                self._has_lost_some = True
            case _:
                pass  # PONG, and the answer to our name

    def _take_refusal(self, reply: ErrorReply) -> None:
        if not self._requested:
            return
        refused = self._requested.pop(0)
        if errors.redirection(reply) is not None:
            raise errors.refusal(reply, self._config.url, self._node, refused.channel.name)
        self._subscriber.refuse(refused, errors.refusal(reply, self._config.url, self._node, refused.channel.name))


class RedisKeyspaceSubscription:
    """A connection that is subscribed to the changes of keys: as far as `notify-keyspace-events` of the server says."""

    def __init__(
        self, connection: SubscriberConnection, node: Node, config: RedisConfig, pattern: str, runtime: Runtime
    ) -> None:
        self._connection, self._node, self._config, self._runtime = connection, node, config, runtime
        self._channel = f"__keyspace@{config.db}__:"
        connection.send(pack("PSUBSCRIBE", self._channel + pattern))

    async def keys(self) -> list[str]:
        found: list[str] = []
        while said := await self._connection.receive(self._runtime.now()):
            for reply in said:
                if isinstance(reply, ErrorReply):
                    raise errors.refusal(reply, self._config.url, self._node, self._channel)
                match reply:
                    case [b"pmessage", _, channel, _]:
                        found.append(channel.decode(errors="replace").removeprefix(self._channel))
                    case _:
                        pass  # the answer to PSUBSCRIBE
        return found

    def close(self) -> None:
        self._connection.close()
