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
    from holdfast.backends.redis.config import Node, Place
    from holdfast.backends.redis.io.topology import Topology
    from holdfast.backends.redis.port import Reply
    from holdfast.backends.redis.protocol.keys import Keys
    from holdfast.core.ports import Event, Runtime

IDLE_MAX = 5.0  # seconds without anybody who waits, after which a channel is let go, and at last its connection
SILENCE_MAX = 5.0  # seconds without a word before the server is asked for one, and as many again for its answer
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to hear again
_PING = pack("PING")


class Ear(Protocol):
    """A connection that is listened on. Only its listener touches it, but for `ring` and what waits on an `event`."""

    def send(self, data: bytes) -> None: ...

    async def receive(self, until: float) -> list[Reply]:
        """What came, at once when something does; nothing at `until`, or when somebody rings."""

    def ring(self) -> None:
        """Have `receive` return soon; from anywhere."""

    def event(self, hint: Callable[[str], None]) -> Event | None:
        """To wait on for a hint; better than any other because who waits reads, and nobody has to wake it.

        What is not a hint, and what is no longer read by who waits, `receive` returns as ever.
        """

    def close(self) -> None: ...


class Ears(Protocol):
    """How to listen, on threads or on asyncio."""

    async def open(self, node: Node, deadline: float) -> Ear: ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background, on a thread or as a task."""

    async def join(self) -> None:
        """Wait a moment for what was started and has been told to end."""

    def abandon(self) -> None: ...


class _Subscription:
    """One channel, and who waits for a hint on it."""

    __slots__ = ("channel", "events", "generation", "idle_since", "is_asked", "is_gap", "node", "nonces", "trouble")

    def __init__(self, channel: Channel, now: float) -> None:
        self.channel = channel
        self.node: Node | None = None  # whose listener has it
        self.nonces: set[str] = set()
        self.idle_since = now
        self.generation = 0  # 0: not heard
        self.is_asked = False  # on the present connection
        self.is_gap = False  # it was heard once, so there may be hints that were not
        self.events: list[Event] = []  # of those who wait until it is heard
        self.trouble: HoldfastError | None = None

    def tell(self) -> None:
        for event in self.events:
            event.set()


class Hints:
    """All channels of one client."""

    def __init__(self, place: Place, topology: Topology, ears: Ears, runtime: Runtime) -> None:
        self._place, self._topology, self._ears, self._runtime = place, topology, ears, runtime
        self._mutex = runtime.mutex()
        self._own = runtime.nonce()
        # Where a message goes to several servers, each counts its own subscribers only (lua/queue/publish.lua).
        kind = "wake" if place.shape in {"single", "sentinel"} else "wake-all"
        self._channel = Channel("PUBLISH", f"{place.prefix}{kind}:{self._own}")
        self._is_sharded = place.shape == "cluster"
        self._subscriptions: dict[Channel, _Subscription] = {}
        self._attended: dict[str, Channel] = {}
        self._listeners: dict[Node, Listener] = {}
        self._generations = itertools.count(1)
        self.hint: Callable[[str], None] = lambda _: None  # where hints go
        self._missed: Callable[[], None] = lambda: None
        self._closed = False

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self.hint, self._missed = wake, missed

    def channel(self, keys: Keys) -> Channel:
        if self._is_sharded:
            standing = self._topology.known.standing
            # Before the first contact nobody knows whether it can: what all versions understand will do.
            if standing is not None and standing.has_sharded_channels:
                return Channel("SPUBLISH", channel_of(self._place.prefix, keys, self._own))
        return self._channel

    def subscription(self, channel: Channel) -> int:
        if not self._subscriptions:  # nobody waits for anything, as nearly always
            return 0
        subscription = self._subscriptions.get(channel)
        return 0 if subscription is None else subscription.generation

    async def subscribe(self, channel: Channel, nonce: str, deadline: float) -> Event | None:
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
            self._attended[nonce] = channel
            if subscription.generation:
                return self._event(subscription)
            event = self._runtime.event()
            subscription.events.append(event)
            if subscription.trouble is not None:  # of an earlier attempt: this is the next one
                subscription.trouble, subscription.is_asked = None, False
        try:
            listener = None if subscription.node is None else self._listeners.get(subscription.node)
            if listener is None:
                self._move_in(subscription, await self._topology.home(channel, deadline))
            else:
                listener.nudge()
            await event.wait(deadline)
        finally:
            with self._mutex:
                subscription.events.remove(event)
        self._refuse_closed()
        trouble = subscription.trouble
        if trouble is not None and not self.subscription(channel):
            problem = trouble.problem if isinstance(trouble, BackendError) else str(trouble)
            raise BackendUnavailable(backend=self._place.url, problem=problem) from trouble
        return self._event(subscription)

    def _event(self, subscription: _Subscription) -> Event | None:
        listener = None if subscription.node is None else self._listeners.get(subscription.node)
        return None if listener is None else listener.event()

    def unsubscribe(self, channel: Channel, nonce: str) -> None:
        with self._mutex:
            # What was attended to counts: before the first contact it may have been another channel.
            subscription = self._subscriptions.get(self._attended.pop(nonce, channel))
            if subscription is not None:
                subscription.nonces.discard(nonce)
                if not subscription.nonces:
                    subscription.idle_since = self._runtime.now()

    def leave(self, node: Node) -> None:
        """It is no primary of ours any more: what is heard there is not what others say."""
        listener = self._listeners.get(node)
        if listener is not None:
            listener.leave()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            listeners = list(self._listeners.values())
            for subscription in self._subscriptions.values():
                subscription.tell()
        for listener in listeners:
            listener.ring()
        await self._ears.join()

    def abandon(self) -> None:
        self._closed = True
        self._ears.abandon()

    # ── for the listeners ────────────────────────────────────────────────────────────────────────────────────────

    async def notifications(self, node: Node, pattern: str, deadline: float) -> KeyspaceNotifications:
        ear = await self._ears.open(node, min(deadline, self._runtime.now() + self._place.connect_timeout))
        return KeyspaceNotifications(ear, node, self._place, pattern, self._runtime)

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

    def to_ask(self, node: Node) -> list[_Subscription]:
        with self._mutex:
            wanted = [one for one in self.on(node) if one.nonces and not one.is_asked]
            for one in wanted:
                one.is_asked = True
            return wanted

    def to_drop(self, node: Node) -> list[_Subscription]:
        with self._mutex:
            now = self._runtime.now()
            idle = [one for one in self.on(node) if one.is_asked and not one.nonces and now - one.idle_since > IDLE_MAX]
            for one in idle:
                del self._subscriptions[one.channel]
            return idle

    def heard(self, channel: Channel, *, is_heard: bool) -> None:
        """The server has confirmed a channel, or taken it away."""
        with self._mutex:
            subscription = self._subscriptions.get(channel)
            if subscription is None:
                return
            was_gap = subscription.is_gap
            if is_heard:
                subscription.generation, subscription.is_gap = next(self._generations), False
                subscription.trouble = None
            else:
                self._deafen(subscription)
            subscription.tell()
        if is_heard and was_gap:
            self._missed()

    def fail(self, node: Node, error: HoldfastError) -> None:
        """Whoever waits to be heard need not wait longer; who was heard is not any more."""
        with self._mutex:
            for one in self.on(node):
                self._deafen(one)
                one.trouble = error
                one.tell()

    def ended(self, listener: Listener, node: Node) -> None:
        """This listener does not run any more, so the next one who waits starts another."""
        with self._mutex:
            if self._listeners.get(node) is listener:
                del self._listeners[node]

    def refuse(self, subscription: _Subscription, error: HoldfastError) -> None:
        with self._mutex:
            subscription.trouble = error
            subscription.tell()

    async def rehome(self, node: Node, deadline: float) -> None:
        """Channels of this listener that have another home by now go there."""
        for subscription in [one for one in self.on(node) if one.nonces and not one.generation]:
            try:
                home = await self._topology.home(subscription.channel, deadline, afresh=True)
            except BackendError:
                return  # the next round asks again
            if home != node:
                self._move_in(subscription, home)

    def _move_in(self, subscription: _Subscription, node: Node) -> None:
        with self._mutex:
            self._refuse_closed()
            if subscription.node != node:
                subscription.node, subscription.is_asked = node, False
            listener = self._listeners.get(node)
            is_new = listener is None
            if listener is None:
                listener = self._listeners[node] = Listener(node, self, self._ears, self._place, self._runtime)
        if not is_new:
            listener.nudge()
            return
        try:
            self._ears.start(listener.run)
        except BaseException as error:
            self.ended(listener, node)
            if isinstance(error, RuntimeError):
                problem = f"a listener could not be started: {error}"
                raise BackendUnavailable(backend=self._place.url, problem=problem) from error
            raise

    def _deafen(self, subscription: _Subscription) -> None:
        subscription.is_gap = subscription.is_gap or subscription.generation > 0
        subscription.generation, subscription.is_asked = 0, False

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendUnavailable(backend=self._place.url, problem="the client is closed")


class Listener:
    """Hears the channels that are on one server."""

    def __init__(self, node: Node, hints: Hints, ears: Ears, place: Place, runtime: Runtime) -> None:
        self._node, self._hints, self._ears, self._place, self._runtime = node, hints, ears, place, runtime
        self._ear: Ear | None = None
        self._bell = runtime.event()
        self._asked: list[_Subscription] = []  # in order, until the server has answered
        self._left = self._has_changed = self._has_lost_some = False

    def nudge(self) -> None:
        """There is a channel more. In a pause that is no reason to hurry."""
        self._has_changed = True
        ear = self._ear
        if ear is not None:
            ear.ring()

    def ring(self) -> None:
        """The end, or of this connection at least."""
        self._bell.set()
        self.nudge()

    def leave(self) -> None:
        """Let go of the present connection; channels that are still wanted find their home anew."""
        self._left = True
        self.ring()

    def event(self) -> Event | None:
        """For one who waits for a hint, and may read what comes itself meanwhile."""
        ear = self._ear
        return None if ear is None else ear.event(self._hints.hint)

    async def run(self) -> None:
        """Until nobody needs it any more."""
        pause, is_retry = PAUSE_MIN, False
        try:
            while not self._hints.is_done(self._node):
                began = self._runtime.now()
                try:
                    if is_retry:
                        await self._hints.rehome(self._node, began + self._place.connect_timeout)
                    await self._listen()
                except Exception as error:
                    # Of any kind (no descriptor left, a reply that makes no sense): the next attempt may succeed.
                    self._hints.fail(self._node, self._trouble(error, is_first=not is_retry))
                    if self._runtime.now() - began > PAUSE_MAX:
                        pause = PAUSE_MIN  # it was heard for a while
                    self._bell.clear()
                    await self._bell.wait(self._runtime.now() + pause)
                    pause, is_retry = min(2 * pause, PAUSE_MAX), True
        except BaseException as error:  # cancelled, for example
            self._hints.fail(self._node, self._trouble(error, is_first=False))
            self._hints.ended(self, self._node)
            raise

    def _trouble(self, error: BaseException, *, is_first: bool) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        if is_first:
            logger().warning("listening on %s failed, trying again: %r", self._place.url, error)
        return errors.not_sent(self._place.url, self._node, f"listening failed: {error!r}")

    async def _listen(self) -> None:
        ear = await self._ears.open(self._node, self._runtime.now() + self._place.connect_timeout)
        self._ear, self._left, self._has_changed = ear, False, True
        self._asked.clear()
        try:
            await self._hear(ear)
        finally:
            self._ear = None
            ear.close()

    async def _hear(self, ear: Ear) -> None:
        last_word = self._runtime.now()
        is_asked_for_one = False
        while True:
            if self._has_changed:
                self._has_changed = False
                if self._left:
                    raise errors.not_sent(self._place.url, self._node, "it is not the primary any more")
                if self._hints.is_done(self._node):
                    return
                self._subscribe(ear)
            until = last_word + SILENCE_MAX
            said = await ear.receive(until)
            now = self._runtime.now()
            for reply in said:
                self._take(reply)
            if said:
                last_word, is_asked_for_one = now, False
            elif now >= until:
                if is_asked_for_one:
                    raise errors.no_answer(self._place.url, self._node, "it was silent for too long while we listened")
                ear.send(_PING)
                last_word, is_asked_for_one, self._has_changed = now, True, True
            if self._has_lost_some:  # a slot of a Cluster has moved away, and our channels in it with it
                self._has_lost_some = False
                self._has_changed = True
                await self._hints.rehome(self._node, now + self._place.connect_timeout)

    def _subscribe(self, ear: Ear) -> None:
        for one in self._hints.to_ask(self._node):
            self._asked.append(one)
            ear.send(pack("SSUBSCRIBE" if one.channel.verb == "SPUBLISH" else "SUBSCRIBE", one.channel.name))
        for one in self._hints.to_drop(self._node):
            ear.send(pack("SUNSUBSCRIBE" if one.channel.verb == "SPUBLISH" else "UNSUBSCRIBE", one.channel.name))

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, ErrorReply):
            self._take_refusal(reply)
            return
        match reply:
            case [b"message" | b"smessage", _, said]:
                self._hints.hint(said.decode(errors="replace"))
            case [b"subscribe" | b"ssubscribe" as kind, name, _]:
                channel = Channel("PUBLISH" if kind == b"subscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._asked = [one for one in self._asked if one.channel != channel]
                self._hints.heard(channel, is_heard=True)
            case [b"unsubscribe" | b"sunsubscribe" as kind, bytes(name), _]:
                channel = Channel("PUBLISH" if kind == b"unsubscribe" else "SPUBLISH", name.decode(errors="replace"))
                self._hints.heard(channel, is_heard=False)
                self._has_lost_some = True
            case _:
                pass  # PONG, and the answer to our name

    def _take_refusal(self, reply: ErrorReply) -> None:
        if not self._asked:
            return
        refused = self._asked.pop(0)
        if errors.redirection(reply) is not None:
            raise errors.refusal(reply, self._place.url, self._node, refused.channel.name)
        self._hints.refuse(refused, errors.refusal(reply, self._place.url, self._node, refused.channel.name))


class KeyspaceNotifications:
    """A connection that is subscribed to the changes of keys: as far as `notify-keyspace-events` of the server says."""

    def __init__(self, ear: Ear, node: Node, place: Place, pattern: str, runtime: Runtime) -> None:
        self._ear, self._node, self._place, self._runtime = ear, node, place, runtime
        self._channel = f"__keyspace@{place.db}__:"
        ear.send(pack("PSUBSCRIBE", self._channel + pattern))

    async def keys(self) -> list[str]:
        found: list[str] = []
        while said := await self._ear.receive(self._runtime.now()):
            for reply in said:
                if isinstance(reply, ErrorReply):
                    raise errors.refusal(reply, self._place.url, self._node, self._channel)
                match reply:
                    case [b"pmessage", _, channel, _]:
                        found.append(channel.decode(errors="replace").removeprefix(self._channel))
                    case _:
                        pass  # the answer to PSUBSCRIBE
        return found

    def close(self) -> None:
        self._ear.close()
