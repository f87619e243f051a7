"""Receives notifications: subscriptions for all waiting tickets of a client on one connection, while there are any.

The servers send a message for every entry that was stored. A message that was sent before a subscription began, or
while its connection was broken, is lost. So a ticket is notified once when its subscription has begun, and polls.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.nats.protocol import wire
from holdfast.backends.nats.protocol.bucket import is_marker
from holdfast.backends.net.listener import IDLE_MAX, Listener
from holdfast.backends.net.poller import READ
from holdfast.core.events import logger
from holdfast.core.tickets import Notification
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.nats.io.connection import Connection
    from holdfast.backends.nats.protocol.bucket import Bucket
    from holdfast.backends.nats.protocol.wire import Message
    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.net.waker import Waker
    from holdfast.core.ports import Runtime
    from holdfast.url_parts import Node

_OPENING_MAX = 3.0  # seconds
_PAUSE = 0.5  # seconds between attempts to connect


class Opener(Protocol):
    """Opens connections."""

    async def open_any(self, until: float) -> Connection: ...


class _Subscriptions:
    """The subscriptions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sids: dict[str, int] = {}  # by subject
        self.nonces: dict[str, str] = {}  # the subject of each ticket
        self.unconfirmed: deque[list[str]] = deque()  # the tickets of each PING without a PONG
        self.last_sid = 1  # 1 is the inbox

    def changes(self, wanted: dict[str, str]) -> bytes:
        """The bytes that subscribe to what is wanted: subjects by nonce."""
        new = [nonce for nonce in wanted if nonce not in self.nonces]
        self.nonces = wanted
        data, subjects = b"", set(wanted.values())
        for subject in [subject for subject in self.sids if subject not in subjects]:
            data += wire.unsubscribe(self.sids.pop(subject))
        for subject in subjects - self.sids.keys():
            self.last_sid += 1
            self.sids[subject] = self.last_sid
            data += wire.subscribe(subject, self.last_sid)
        if new:
            self.unconfirmed.append(new)
            data += wire.PING
        return data


class Watcher(Listener):
    """The watches of one client."""

    def __init__(
        self, bucket: Bucket, opener: Opener, poller: Poller, background: Background, runtime: Runtime
    ) -> None:
        super().__init__(poller, background, runtime)
        self._bucket, self._opener = bucket, opener
        self._wanted: dict[str, str] = {}  # subjects by nonce
        self._avoided: Node | None = None
        self._has_warned = False

    def watch(self, nonce: str, key: str) -> None:
        with self._mutex:
            if self._closed or nonce in self._wanted:
                return
            self._wanted[nonce] = self._bucket.notifications(key)
            if not self._start() and self._waker is not None:
                self._waker.wake()

    def unwatch(self, nonce: str) -> None:
        with self._mutex:
            self._wanted.pop(nonce, None)
            self._idle_since = self._runtime.now()

    def avoid(self, node: Node) -> None:
        """This server does not answer: watch on another one."""
        with self._mutex:
            if self._waker is not None:
                self._avoided = node
                self._waker.wake()

    async def _run(self, waker: Waker) -> None:
        subscriptions: _Subscriptions | None = None
        try:
            while not self._is_done(waker):
                try:
                    if subscriptions is None:
                        connection = await self._opener.open_any(self._runtime.now() + _OPENING_MAX)
                        subscriptions = _Subscriptions(connection)
                    await self._receive(subscriptions, waker)
                except (OSError, ValueError, HoldfastError) as error:
                    if subscriptions is not None:
                        subscriptions.connection.close()
                        subscriptions = None
                    if not self._has_warned:
                        logger().warning("cannot watch the bucket %s, so waiters poll: %s", self._bucket.name, error)
                    self._has_warned = True
                    await self._poller.poll([(waker.fileno(), READ)], self._runtime.now() + _PAUSE)
                    waker.drain()
        finally:
            if subscriptions is not None:
                subscriptions.connection.close()
            with self._mutex:
                self._close_waker(waker)

    async def _receive(self, subscriptions: _Subscriptions, waker: Waker) -> None:
        """Subscribe, then handle messages until the connection or the waker is ready."""
        connection, now = subscriptions.connection, self._runtime.now()
        with self._mutex:
            wanted, avoided, self._avoided = dict(self._wanted), self._avoided, None
        if avoided == connection.node:
            raise ConnectionError(f"{avoided} does not answer")
        if changes := subscriptions.changes(wanted):
            await connection.send(changes, now + _OPENING_MAX)
        ready = await self._poller.poll([(waker.fileno(), READ), (connection.fileno(), READ)], now + IDLE_MAX / 2)
        if waker.fileno() in ready:
            waker.drain()
        if connection.fileno() in ready:
            connection.read()
            for message in connection.messages():
                await self._handle(subscriptions, message)

    async def _handle(self, subscriptions: _Subscriptions, message: Message) -> None:
        if message.verb == "PING":
            await subscriptions.connection.send(wire.PONG, self._runtime.now() + _OPENING_MAX)
        elif message.verb == "-ERR":
            raise ConnectionError(message.data.decode(errors="replace"))
        elif message.verb == "PONG" and subscriptions.unconfirmed:
            self._has_warned = False
            for nonce in subscriptions.unconfirmed.popleft():
                self.wakeups.wake(Notification(nonce))
        elif message.verb == "MSG" and is_marker(message.headers):
            seq = int(message.headers.get("Nats-Sequence", 0))
            for nonce, subject in subscriptions.nonces.items():
                if subject == message.subject:
                    self.wakeups.wake(Notification(nonce, seq))

    def _has_waiters(self) -> bool:
        return bool(self._wanted)
