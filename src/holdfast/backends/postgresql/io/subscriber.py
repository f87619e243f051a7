"""Hearing hints: one connection that comes with the first who waits and goes when nobody does. Written once.

A hint is a hint, so everything here may fail without harm but for time; what must not happen is that the channel counts
as heard and is not. So it is heard from the answer to LISTEN on, until the first sign of trouble:

    wanted ──LISTEN──▶ heard (a new generation)
      ▲                   │ connection lost, or silent for 10 s
      └── after a pause ◀─┘ (a gap: once it is heard again, whoever waits looks again)
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from holdfast.backends.net.poller import READ
from holdfast.backends.net.waker import Waker
from holdfast.backends.postgresql.io import errors
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.net.poller import Background, Poller
    from holdfast.backends.postgresql.io.connection import Connection
    from holdfast.backends.postgresql.io.connections import Connections
    from holdfast.core.ports import Event, Runtime

IDLE_MAX = 2.0  # seconds without anybody who waits, after which the connection, a process of the server, is let go
SILENCE_MAX = 5.0  # seconds without a word before the server is asked for one, and as many again for its answer
PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between attempts to hear again


class Subscriber:
    """What one client hears."""

    def __init__(
        self, url: str, connections: Connections, poller: Poller, background: Background, runtime: Runtime
    ) -> None:
        self.channel = connections.channel
        self._url, self._connections, self._poller, self._background, self._runtime = (
            url,
            connections,
            poller,
            background,
            runtime,
        )
        self._mutex = runtime.mutex()
        self._nonces: set[str] = set()
        self._idle_since = 0.0
        self._generation = 0  # 0: not heard
        self._generations = itertools.count(1)
        self._events: list[Event] = []  # of those who wait until it is heard
        self._error: HoldfastError | None = None
        self._waker: Waker | None = None  # while the listener runs
        self._wake: Callable[[str], None] = lambda _: None
        self._missed: Callable[[], None] = lambda: None
        self._closed = False

    def listen(self, wake: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._wake, self._missed = wake, missed

    def subscription(self) -> int:
        return self._generation

    async def subscribe(self, nonce: str, deadline: float) -> None:
        """Returns when hints are heard; at the deadline too, and then `subscription` says that they are not.

        Raises:
            BackendUnavailable: they cannot be heard.
        """
        event = self._runtime.event()
        with self._mutex:
            if self._closed:
                return
            self._nonces.add(nonce)
            if self._generation:
                return
            self._error = None  # of an earlier attempt: this is the next one
            self._events.append(event)
            if self._waker is None:
                self._waker = waker = Waker()
                try:
                    self._background.start(lambda: self._run(waker), "listener")
                except BaseException:
                    self._close_waker(waker)
                    raise
        try:
            await event.wait(deadline)
        finally:
            with self._mutex:
                self._events.remove(event)
        if self._error is not None and not self._generation:
            problem = self._error.problem if isinstance(self._error, BackendError) else str(self._error)
            raise BackendUnavailable(backend=self._url, problem=problem) from self._error

    def unsubscribe(self, nonce: str) -> None:
        with self._mutex:
            self._nonces.discard(nonce)
            self._idle_since = self._runtime.now()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._wake_subscribers()
            if self._waker is not None:
                self._waker.wake()
        await self._background.join()

    def abandon(self) -> None:
        self._closed, self._generation = True, 0
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.abandon()

    # ── on its own thread or task ────────────────────────────────────────────────────────────────────────────────

    async def _run(self, waker: Waker) -> None:
        pause, is_gap = PAUSE_MIN, False
        try:
            while not self._is_done(waker):
                connection: Connection | None = None
                try:
                    connection = await self._connections.open(self._runtime.now() + SILENCE_MAX)
                    await connection.query(f'LISTEN "{self.channel}"', self._runtime.now() + SILENCE_MAX)
                    self._set_subscribed()
                    if is_gap:
                        self._missed()
                    pause, is_gap = PAUSE_MIN, True
                    await self._read_loop(connection, waker)
                except HoldfastError as error:
                    self._set_unsubscribed(error)
                finally:
                    if connection is not None:
                        connection.close()
                if not self._is_done(waker):
                    await self._poller.poll([(waker.fileno(), READ)], self._runtime.now() + pause)
                    pause = min(2 * pause, PAUSE_MAX)
        except BaseException as error:
            self._set_unsubscribed(errors.unavailable(self._url, f"the listener ended: {error!r}"))
            with self._mutex:
                self._close_waker(waker)
            raise

    async def _read_loop(self, connection: Connection, waker: Waker) -> None:
        received_at = self._runtime.now()
        while not self._is_done(waker) and connection.pgconn is not None:
            until = self._runtime.now() + IDLE_MAX / 2  # to see whether it is needed still: nobody rings for that
            ready = await self._poller.poll([(connection.pgconn.socket, READ), (waker.fileno(), READ)], until)
            now = self._runtime.now()
            if ready:
                received_at = now
            elif now - received_at >= SILENCE_MAX and not self._is_done(waker):
                await connection.query("SELECT 1", now + SILENCE_MAX)
                received_at = self._runtime.now()
            for nonce in connection.read_notifications():
                self._wake(nonce)

    def _is_done(self, waker: Waker) -> bool:
        """Nobody needs it any more; if so, it is not there any more for who comes next."""
        with self._mutex:
            if self._waker is not waker:
                return True  # found so before; there may be another one by now
            is_idle = not self._nonces and self._runtime.now() - self._idle_since > IDLE_MAX
            if self._closed or is_idle:
                self._generation = 0
                self._close_waker(waker)
                self._wake_subscribers()
                return True
            return False

    def _set_subscribed(self) -> None:
        with self._mutex:
            self._generation, self._error = next(self._generations), None
            self._wake_subscribers()

    def _set_unsubscribed(self, error: HoldfastError) -> None:
        with self._mutex:
            self._generation, self._error = 0, error
            self._wake_subscribers()

    def _wake_subscribers(self) -> None:
        for event in self._events:
            event.set()

    def _close_waker(self, waker: Waker) -> None:
        if self._waker is waker:
            self._waker = None
            waker.close()
