"""The port on kazoo, as far as both runtimes share it: which session is open, and who is told of what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.zookeeper.driver import KazooSession, Kept, answer
from holdfast.backends.zookeeper.port import Children, Get
from holdfast.errors import BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.address import Place
    from holdfast.backends.zookeeper.port import Answer, Request, Session
    from holdfast.core.ports import Event, Runtime

SILENCE_MAX = 0.9  # seconds without an answer after which a connection is given up; less is asked for in a hurry only
END_MAX = 1.0  # seconds that closing waits for the servers to confirm the end of the session


class Ensemble(ABC):
    """One session at a time."""

    def __init__(self, place: Place, runtime: Runtime) -> None:
        self._url = place.url
        self._place = place
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._session: KazooSession | None = None
        self._waiters: list[Event] = []  # who wants to know of any change
        self._line: list[Event] = []  # those of them who wait for a connection, in the order in which they came
        self._closed = False
        self._fired: Callable[[str], None] = _nobody
        self._changed: Callable[[], None] = _nobody

    @property
    def session(self) -> KazooSession | None:
        session = self._session
        return None if session is None or session.is_over else session

    def listen(self, fired: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._fired, self._changed = fired, changed

    async def open(self, *, deadline: float) -> KazooSession:
        session = self._session
        if session is not None and session.connection and not self._line:
            return session
        if session is None or session.is_over:
            with self._mutex:
                if self._closed:
                    raise BackendUnavailable(backend=self._url, problem="this client is closed")
                session = self._session
                if session is None or session.is_over:
                    session = self._session = KazooSession(self._place, self._runtime.now, self._told)
                    session.start()
        await self._stand_in_line(session, deadline)
        if not session.connection:
            raise session.why_not(self._url)
        return session

    async def _stand_in_line(self, session: KazooSession, deadline: float) -> None:
        """Until there is a connection, or there will be none.

        A connection comes on kazoo's thread, before those who wait for it have heard of it. Who asks in between sees it
        first; but tasks that begin one after the other stay in their order, so it lets those before it go first.
        """
        failed = session.rounds_failed
        event = self._runtime.event()
        self._line.append(event)

        def is_decided() -> bool:
            return bool(session.connection or session.is_over or session.rounds_failed > failed)

        try:
            await self._until(lambda: self._line[0] is event and is_decided(), deadline, event)
        finally:
            self._line.remove(event)
            for following in self._line[:1]:
                following.set()

    def tell(self, session: Session, request: Request) -> None:
        _ours(session).send(request, None, self._watcher)

    async def ask(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        replies = [*(Kept() for _ in requests[1:]), self._awaited()]
        ours = _ours(session)
        connection, sent = ours.connection, self._runtime.now()
        for request, reply in zip(requests, replies, strict=True):
            ours.send(request, reply, self._watcher)
        if not await self._wait(replies[-1], deadline):
            if self._runtime.now() - sent >= SILENCE_MAX and ours.connection == connection:
                ours.hang_up()  # another server, or another connection, may do better
            problem = "no answer came in time"
            if all(isinstance(request, Children | Get) for request in requests):
                raise BackendUnavailable(backend=self._url, problem=problem)
            raise OutcomeUnknown(backend=self._url, problem=problem)
        return [
            answer(request, reply.value, reply.error, self._url)
            for request, reply in zip(requests, replies, strict=True)
        ]

    @abstractmethod
    def _awaited(self) -> Kept:
        """For the last of several: the others are there by then, for answers come in order."""

    @abstractmethod
    async def _wait(self, reply: Kept, deadline: float) -> bool:
        """Whether its answer has come, at the deadline at the latest."""

    def hang_up(self, session: Session) -> None:
        _ours(session).hang_up()

    def end(self, session: Session) -> None:
        _ours(session).end()

    async def close(self, *, keeps_session: bool = False) -> None:
        with self._mutex:
            self._closed = True
            session = self._session
        if session is None:
            return
        if keeps_session:
            session.leave()
        else:
            session.end()
        await self._until(lambda: session.has_ended, self._runtime.now() + END_MAX, self._runtime.event())

    def abandon(self) -> None:
        self._closed = True
        if self._session is not None:
            self._session.abandon()

    @abstractmethod
    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it, from kazoo's thread, where the protocol's state may be touched."""

    def _told(self, session: KazooSession) -> None:
        self._post(self._tell_change)

    def _watcher(self, event: Any) -> None:
        if event.path is not None:
            self._post(self._fired, event.path)

    def _tell_change(self) -> None:
        for waiter in list(self._waiters):
            waiter.set()
        self._changed()

    async def _until(self, condition: Callable[[], bool], deadline: float, event: Event) -> None:
        """Return when it is so, or at the deadline. Any news of a session may change it, and whoever sets `event`."""
        self._waiters.append(event)
        try:
            while not condition() and self._runtime.now() < deadline:
                await event.wait(deadline)
                event.clear()
        finally:
            self._waiters.remove(event)


def _ours(session: Session) -> KazooSession:
    if not isinstance(session, KazooSession):
        raise TypeError(f"not a session of kazoo's: {session!r}")
    return session


def _nobody(*_: object) -> None:
    """Who is told before anybody listens."""
