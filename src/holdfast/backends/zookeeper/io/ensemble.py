"""The port on kazoo: the open sessions, their requests, and the callbacks. It serves threads; aio.py adapts it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from holdfast.backends.net.poller import Background
from holdfast.backends.zookeeper.config import ZookeeperConfig
from holdfast.backends.zookeeper.io.driver import KazooSession, Reply, answer
from holdfast.backends.zookeeper.port import Answer, Children, Ephemerals, Get, Request, Session
from holdfast.core.ports import Event, Runtime
from holdfast.errors import BackendUnavailable, OutcomeUnknown

SILENCE_MAX = 0.9  # seconds without an answer after which a connection is closed; a shorter deadline leaves it open
CLOSE_MAX = 1.0  # seconds that closing waits for the servers to confirm the end of the session


class Ensemble:
    """The sessions of one client, one at a time for each timeout."""

    def __init__(self, config: ZookeeperConfig, background: Background, runtime: Runtime) -> None:
        self._url = config.url
        self._config = config
        self._background = background
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._sessions: dict[float, KazooSession] = {}  # by requested timeout
        self._waiters: list[Event] = []  # set at every change of a session
        # By session: the events of callers that wait for its connection, in the order in which they started to wait.
        self._connect_queues: dict[KazooSession, list[Event]] = {}
        self._closed = False
        self._fired: Callable[[Session, str], None] = lambda *_: None
        self._changed: Callable[[Session], None] = lambda _: None

    @property
    def sessions(self) -> list[KazooSession]:
        return [session for session in list(self._sessions.values()) if not session.is_closed]

    def on_events(self, fired: Callable[[Session, str], None], changed: Callable[[Session], None]) -> None:
        self._fired, self._changed = fired, changed

    async def open(self, timeout: float, *, deadline: float) -> KazooSession:
        while True:
            session = self._sessions.get(timeout)
            if (
                session is not None
                and session.connection
                and not session.is_closed
                and session not in self._connect_queues
            ):
                return session
            if session is None or session.is_closed:
                session = self._start(timeout)
            await self._wait_for_connection(session, deadline)
            if session.connection and not session.is_closed:
                return session
            # A session that the servers closed does not mean that they are unavailable: a new one may open at once.
            if not session.is_closed or session.login_refused or self._closed or self._runtime.now() >= deadline:
                raise session.connect_error(self._url)

    def _start(self, timeout: float) -> KazooSession:
        """Start a session, unless another thread has just started one."""
        with self._mutex:
            if self._closed:
                raise BackendUnavailable(backend=self._url, problem="this client is closed")
            session = self._sessions.get(timeout)
            if session is None or session.is_closed:
                self._forget_ended()
                on_change, fired = partial(self._post, self._on_change), partial(self._post, self._fired)
                session = KazooSession(self._config, timeout, self._runtime.now, on_change, fired)
                self._sessions[timeout] = session  # first, so that it can be closed if its start is interrupted
                session.start()
            return session

    def _forget_ended(self) -> None:
        self._sessions = {timeout: session for timeout, session in self._sessions.items() if not session.thread_ended}

    async def _wait_for_connection(self, session: KazooSession, deadline: float) -> None:
        """Wait until the session is connected, or has failed to connect.

        kazoo's thread sets the connection before it wakes the waiting tasks, so a new task can see it first. But tasks
        keep the order in which they started, so the new task waits until the earlier ones have continued.
        """
        failed = session.rounds_failed
        event = self._runtime.event()
        with self._mutex:
            queue = self._connect_queues.setdefault(session, [])
            queue.append(event)

        def is_decided() -> bool:
            return bool(session.connection or session.is_closed or session.rounds_failed > failed)

        try:
            await self._until(lambda: queue[0] is event and is_decided(), deadline, event)
        finally:
            with self._mutex:
                queue.remove(event)
                if not queue:
                    self._connect_queues.pop(session, None)
            for following in queue[:1]:
                following.set()

    def send(self, session: Session, request: Request) -> None:
        _kazoo_session(session).send(request, Reply())

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        event, wake = self._new_event()
        replies = [*(Reply() for _ in requests[1:]), Reply(wake)]  # answers arrive in order
        ours = _kazoo_session(session)
        connection, sent = ours.connection, self._runtime.now()
        for request, reply in zip(requests, replies, strict=True):
            ours.send(request, reply)
        if not await event.wait(deadline):
            if self._runtime.now() - sent >= SILENCE_MAX and ours.connection == connection:
                ours.disconnect()  # another server or another connection may answer
            problem = "no answer in time"
            if all(isinstance(request, Children | Get | Ephemerals) for request in requests):
                raise BackendUnavailable(backend=self._url, problem=problem)
            raise OutcomeUnknown(backend=self._url, problem=problem)
        return [
            answer(request, reply.value, reply.error, self._url)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def _new_event(self) -> tuple[Event, Callable[[], object]]:
        """An event for the caller, and the function that sets it: called from any thread, perhaps more than once."""
        event = self._runtime.event()
        return event, event.set

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._background.start(work, "heartbeat")

    def disconnect(self, session: Session) -> None:
        _kazoo_session(session).disconnect()

    def close_session(self, session: Session) -> None:
        _kazoo_session(session).close()

    async def close(self, *, keeps_session: bool = False) -> None:
        with self._mutex:
            self._closed = True
            sessions = list(self._sessions.values())
        for session in sessions:
            if keeps_session:
                session.detach()
            else:
                session.close()
        until, event = self._runtime.now() + CLOSE_MAX, self._runtime.event()
        await self._until(lambda: all(session.thread_ended for session in sessions), until, event)
        await self._background.join()

    def without_loop(self) -> None:
        """Threads need no loop."""

    def abandon(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            session.abandon()

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Called on kazoo's thread: call the function where the protocol's state may be changed."""
        function(*arguments)

    def _on_change(self, session: KazooSession) -> None:
        for waiter in list(self._waiters):
            waiter.set()
        self._changed(session)

    async def _until(self, condition: Callable[[], bool], deadline: float, event: Event) -> None:
        """Wait for the condition until the deadline. It is checked when a session changes or `event` is set."""
        self._waiters.append(event)
        try:
            await self._wait_for(condition, deadline, event)
        finally:
            self._waiters.remove(event)

    async def _wait_for(self, condition: Callable[[], bool], deadline: float, event: Event) -> None:
        while not condition() and self._runtime.now() < deadline:
            await event.wait(deadline)
            event.clear()


def _kazoo_session(session: Session) -> KazooSession:
    if not isinstance(session, KazooSession):
        raise TypeError(f"not a kazoo session: {session!r}")
    return session
