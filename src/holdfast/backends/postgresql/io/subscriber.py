"""The connection on which a client receives notifications: opened for the first waiter, closed when none is left.

A lost notification costs only time. But the channel must never count as subscribed when it is not. So it counts as
subscribed from the answer to LISTEN until the connection fails:

    wanted ──LISTEN──▶ subscribed (a new generation)
      ▲                   │ connection lost, or silent for 10 s
      └── after a pause ◀─┘ (a gap: after the next LISTEN, all waiters poll)
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from holdfast.backends.net.listener import IDLE_MAX, Listener
from holdfast.backends.net.poller import READ, Background, Poller
from holdfast.backends.postgresql.port import Statement
from holdfast.backends.sql_connections import unavailable
from holdfast.core.notifications import UNSUBSCRIBED_POLL
from holdfast.core.tickets import Notification
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.net.waker import Waker
    from holdfast.backends.postgresql.io.connection import Connection
    from holdfast.backends.postgresql.io.connections import Connections
    from holdfast.core.ports import Event, Runtime

SILENCE_MAX = 5.0  # seconds without data after which a ping is sent, and the timeout of its answer
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to subscribe
LISTEN_URL_PAUSE_MAX = 10.0  # the same for a listen_url, without which waiters poll
CHECK_MAX = 1.0  # seconds for a notification to arrive by way of a listen_url
_NOTIFY = Statement("holdfast_notify", "SELECT pg_notify($1::text, $2::text)", reads=True)


class Subscriber(Listener):
    """The subscription of one client to its only channel."""

    def __init__(
        self,
        url: str,
        connections: Connections,
        poller: Poller,
        background: Background,
        runtime: Runtime,
        *,
        listening: Connections | None = None,
    ) -> None:
        """`listening` opens the connection of the subscription, if `connections` are those of a pooler."""
        super().__init__(poller, background, runtime)
        self.channel = connections.channel
        self._url, self._connections, self._listening = url, connections, listening or connections
        self._has_listen_url = listening is not None
        self._nonces: set[str] = set()
        self._generation = 0  # 0: not subscribed
        self._generations = itertools.count(1)
        self._events: list[Event] = []  # of callers that wait until it is subscribed
        self._error: HoldfastError | None = None

    def subscription(self, channel: str) -> int:
        return self._generation

    async def subscribe(self, channel: str, nonce: str, *, deadline: float) -> None:
        """Return when the channel is subscribed, or at the deadline; then `subscription` is 0.

        Raises:
            BackendUnavailable: it cannot be subscribed.
        """
        event = self._runtime.event()
        with self._mutex:
            if self._closed:
                return
            self._nonces.add(nonce)
            if self._generation:
                return
            self._error = None  # of an earlier attempt
            self._events.append(event)
            self._start()
        if self._has_listen_url:  # the locks may work while it does not
            deadline = min(deadline, self._runtime.now() + UNSUBSCRIBED_POLL)
        try:
            await event.wait(deadline)
        finally:
            with self._mutex:
                self._events.remove(event)
        if self._error is not None and not self._generation:
            problem = self._error.problem if isinstance(self._error, BackendError) else str(self._error)
            raise BackendUnavailable(backend=self._url, problem=problem) from self._error

    def unsubscribe(self, channel: str, nonce: str) -> None:
        with self._mutex:
            self._nonces.discard(nonce)
            self._idle_since = self._runtime.now()

    # ── on its own thread or task ────────────────────────────────────────────────────────────────────────────────

    async def _run(self, waker: Waker) -> None:
        pause, is_gap = PAUSE_MIN, False
        try:
            while not self._is_done(waker):
                connection: Connection | None = None
                try:
                    connection = await self._listening.open(self._runtime.now() + SILENCE_MAX)
                    await connection.query(f'LISTEN "{self.channel}"', self._runtime.now() + SILENCE_MAX)
                    if self._has_listen_url:
                        await self._check(connection, self._runtime.now() + CHECK_MAX)
                    self._set_generation(next(self._generations))
                    if is_gap:
                        self.wakeups.wake_all()
                    pause, is_gap = PAUSE_MIN, True
                    await self._read_loop(connection, waker)
                except HoldfastError as error:
                    self._set_generation(0, error)
                finally:
                    if connection is not None:
                        connection.close()
                if not self._is_done(waker):
                    await self._poller.poll([(waker.fileno(), READ)], self._runtime.now() + pause)
                    pause = min(2 * pause, LISTEN_URL_PAUSE_MAX if self._has_listen_url else PAUSE_MAX)
        except BaseException as error:
            self._set_generation(0, unavailable(self._url, f"the subscriber ended: {error!r}"))
            with self._mutex:
                self._close_waker(waker)
            raise

    async def _check(self, connection: Connection, deadline: float) -> None:
        """Raise BackendUnavailable unless a notification of the other connections arrives on this one.

        None arrives if `listen_url` leads to another database, where LISTEN succeeds too.
        """
        nonce = self._runtime.nonce()
        await self._connections.execute(_NOTIFY, (self.channel, nonce), deadline=deadline)
        while connection.pgconn is not None:
            payloads = connection.read_notifications()
            for payload in payloads:
                self.wakeups.wake(Notification(payload))
            if nonce in payloads:
                return
            if not await self._poller.poll([(connection.pgconn.socket, READ)], deadline):
                break
        problem = "no notification arrives by way of listen_url: it must lead to the same database as url"
        raise unavailable(self._url, problem)

    async def _read_loop(self, connection: Connection, waker: Waker) -> None:
        received_at = self._runtime.now()
        while not self._is_done(waker) and connection.pgconn is not None:
            until = self._runtime.now() + IDLE_MAX / 2  # nothing wakes the loop when it is not needed any more
            ready = await self._poller.poll([(connection.pgconn.socket, READ), (waker.fileno(), READ)], until)
            now = self._runtime.now()
            if ready:
                received_at = now
            elif now - received_at >= SILENCE_MAX and not self._is_done(waker):
                await connection.query("SELECT 1", now + SILENCE_MAX)
                received_at = self._runtime.now()
            for nonce in connection.read_notifications():
                self.wakeups.wake(Notification(nonce))

    def _has_waiters(self) -> bool:
        return bool(self._nonces)

    def _ended(self) -> None:
        self._generation = 0
        self._wake_callers()

    def _set_generation(self, generation: int, error: HoldfastError | None = None) -> None:
        with self._mutex:
            self._generation, self._error = generation, error
            self._wake_callers()

    def _wake_callers(self) -> None:
        for event in self._events:
            event.set()
