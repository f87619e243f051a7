"""Receives notifications: subscriptions for all waiting tickets of a client on one connection, while there are any.

The servers send a message for every entry that was stored. A message that was sent before a subscription began, or
while its connection was broken, is lost. So a ticket is notified once when its subscription has begun, and polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.backends.nats.io.connection import Connection
from holdfast.backends.nats.protocol import wire
from holdfast.backends.nats.protocol.bucket import is_marker
from holdfast.backends.net.poller import Background, Poller
from holdfast.backends.net.watcher import OPENING_MAX, BaseWatcher
from holdfast.core.ports import Runtime
from holdfast.core.tickets import Notification


class Subscriptions:
    """The subscriptions of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.read = connection.read_messages
        self.sids: dict[str, int] = {}  # by subject
        self.subjects: dict[str, str] = {}  # of each ticket, by nonce
        self.unconfirmed: deque[list[str]] = deque()  # the tickets of each PING without a PONG
        self.last_sid = 1  # 1 is the inbox

    def changes(self, wanted: dict[str, str]) -> bytes:
        """The requests after which exactly the wanted subjects are subscribed. `wanted` has them by nonce."""
        new = [nonce for nonce in wanted if nonce not in self.subjects]
        self.subjects = wanted
        data, subjects = b"", set(wanted.values())
        for subject in self.sids.keys() - subjects:
            data += wire.unsubscribe(self.sids.pop(subject))
        for subject in subjects - self.sids.keys():
            self.last_sid += 1
            self.sids[subject] = self.last_sid
            data += wire.subscribe(subject, self.last_sid)
        if new:
            self.unconfirmed.append(new)
            data += wire.PING
        return data


class Watcher(BaseWatcher[str, Subscriptions]):
    """The watches of one client: the subject for each ticket."""

    def __init__(
        self,
        bucket: str,
        open_any: Callable[[float], Awaitable[Connection]],
        poller: Poller,
        background: Background,
        runtime: Runtime,
    ) -> None:
        super().__init__(f"the bucket {bucket}", poller, background, runtime)
        self._open_any = open_any

    async def _open_missing(self, streams: list[Subscriptions], wanted: dict[str, str]) -> None:
        until = self._runtime.now() + OPENING_MAX
        if not streams:
            streams.append(Subscriptions(await self._open_any(until)))
        (stream,) = streams
        try:
            await stream.connection.send(stream.changes(wanted), until)
        except BaseException:
            self._close_stream(streams, stream)
            raise

    def _lost(self, stream: Subscriptions, error: Exception) -> None:
        self._warn(error)

    async def _handle(self, streams: list[Subscriptions], stream: Subscriptions, message: wire.Message) -> None:
        if message.verb == "PONG" and stream.unconfirmed:
            self._has_warned = False
            for nonce in stream.unconfirmed.popleft():
                self.wakeups.wake(Notification(nonce))
        elif message.verb == "MSG" and is_marker(message.headers):
            seq = int(message.headers.get("Nats-Sequence", 0))
            for nonce, subject in stream.subjects.items():
                if subject == message.subject:
                    self.wakeups.wake(Notification(nonce, seq))
