"""Receives watch events: all watches of one client on a few connections, by a thread or task that runs while needed.

A watch starts at a revision, so no event is missed, however late or often it is opened. The gateway accepts the watches
of a stream only at its start; a later watch gets another stream, and many streams are merged. The gateway may not
accept all of them either: it drops the part of a request that it has not read when it starts to answer. So a stream
has few watches, and a watch that is not confirmed soon is requested again.

    wanted ──▶ opened, with other new ones ──▶ confirmed ──▶ an event: the ticket is notified
        ▲                     │ not confirmed; stream lost or refused; its member did not answer a call
        └─── after a pause ◀──┘
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.backends.etcd.io.connection import Connection
from holdfast.backends.etcd.io.http import NotHttp, Response
from holdfast.backends.etcd.port import Message, Watch
from holdfast.backends.etcd.protocol.messages import encoded, watch_request
from holdfast.backends.net.poller import Background, Poller
from holdfast.backends.net.watcher import OPENING_MAX, BaseWatcher
from holdfast.core.ports import Runtime
from holdfast.core.tickets import Notification

if TYPE_CHECKING:
    from holdfast.backends.etcd.io.cluster import Cluster

WATCHES_MAX = 40  # on one stream, or a few more: those of one ticket stay together
STREAMS_MAX = 4  # streams more than needed, at which they are merged
CONFIRMED_MAX = 0.5  # seconds to the next confirmation of a watch, from the opening of its stream or the last one

_OK = 200


class WatchStream:
    """One connection and its watches."""

    def __init__(self, connection: Connection, watches: dict[str, Sequence[Watch]], opened: float) -> None:
        self.connection = connection
        self.watches = watches  # by nonce, in the order of the request
        self.response = Response()
        self._confirmed = 0  # how many of all watches, in the same order
        self._last_confirmed = opened

    def confirmed(self, now: float) -> None:
        self._confirmed += 1
        self._last_confirmed = now

    @property
    def is_confirmed(self) -> bool:
        """All watches are confirmed."""
        return self._confirmed >= sum(map(len, self.watches.values()))

    def active_watches(self, now: float) -> Iterator[tuple[str, Sequence[Watch]]]:
        """The tickets whose watches are confirmed, or can still be confirmed in time."""
        is_pending = now < self._last_confirmed + CONFIRMED_MAX
        number = 0
        for nonce, several in self.watches.items():
            number += len(several)
            if number <= self._confirmed or is_pending:
                yield nonce, several

    async def read(self) -> list[Message]:
        self.connection.read_into(self.response)
        if self.response.is_complete:  # a refusal, or the server shuts down
            raise NotHttp("the stream has ended")
        return [json.loads(line) for line in self.response.lines()]

    def nonces_for(self, event: Message) -> Iterable[str]:
        """The tickets that wait for this event."""
        key, is_delete = b64decode(event["kv"]["key"]), event.get("type") == "DELETE"
        for nonce, several in self.watches.items():
            # A watched range has the tickets of one lock. An unnecessary poll is harmless.
            if any(is_delete if watch.end else watch.key == key for watch in several):
                yield nonce


class Watcher(BaseWatcher[Sequence["Watch"], WatchStream]):
    """The watches of one client."""

    def __init__(self, url: str, cluster: Cluster, poller: Poller, background: Background, runtime: Runtime) -> None:
        super().__init__(f"on {url}", poller, background, runtime)
        self._cluster = cluster  # opens the streams

    def _is_watched(self, known: Sequence[Watch], watched: Sequence[Watch]) -> bool:
        # The known watches start at an earlier revision.
        return [watch._replace(revision=0) for watch in known] == [watch._replace(revision=0) for watch in watched]

    def _receive_max(self, streams: Sequence[WatchStream]) -> float:
        return super()._receive_max(streams) if all(stream.is_confirmed for stream in streams) else CONFIRMED_MAX

    async def _open_missing(self, streams: list[WatchStream], wanted: dict[str, Sequence[Watch]]) -> None:
        for stream in list(streams):
            if not any(wanted.get(nonce) is watches for nonce, watches in stream.watches.items()):
                self._close_stream(streams, stream)  # no waiter needs it
        now = self._runtime.now()
        opened = (pair for stream in streams for pair in stream.active_watches(now))
        active = {nonce for nonce, watches in opened if wanted.get(nonce) is watches}
        new = {nonce: watches for nonce, watches in wanted.items() if nonce not in active}
        if new and len(streams) >= STREAMS_MAX + len(list(_batches(wanted))):
            for old in list(streams):
                self._close_stream(streams, old)
            new = wanted
        for watches in _batches(new):
            body = b"".join(encoded(watch_request(watch)) for several in watches.values() for watch in several)
            connection = await self._cluster.open_stream("watch", body, self._runtime.now() + OPENING_MAX)
            streams.append(WatchStream(connection, watches, self._runtime.now()))
        self._has_warned = False

    def _lost(self, stream: WatchStream, error: Exception) -> None:
        # No event is lost: the next stream starts at the same revisions.
        if stream.response.status not in (0, _OK):  # it was refused
            self._cluster.discard_token()
        self._cluster.avoid(stream.connection.node)

    async def _handle(self, streams: list[WatchStream], stream: WatchStream, message: Message) -> None:
        result = message.get("result")
        if result is None or result.get("canceled"):
            # Refused: for example an old token, or a compacted revision. The waiters poll, and watch again.
            if result is None or "compact_revision" not in result:
                self._cluster.discard_token()
            with self._mutex:
                for nonce in stream.watches:
                    if self._wanted.get(nonce) is stream.watches[nonce]:
                        del self._wanted[nonce]
            for nonce in stream.watches:
                self.wakeups.wake(Notification(nonce))
            self._close_stream(streams, stream)
            return
        if result.get("created"):
            stream.confirmed(self._runtime.now())
        for event in result.get("events", ()):
            for nonce in stream.nonces_for(event):
                self.wakeups.wake(Notification(nonce))


def _batches(watches: Mapping[str, Sequence[Watch]]) -> Iterator[dict[str, Sequence[Watch]]]:
    """Groups of watches, each for one stream."""
    batch: dict[str, Sequence[Watch]] = {}
    number = 0
    for nonce, several in watches.items():
        batch[nonce] = several
        number += len(several)
        if number >= WATCHES_MAX:
            yield batch
            batch, number = {}, 0
    if batch:
        yield batch
