"""A ZookeeperPort whose requests travel through a simulated network, on one connection after the other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.port import Answer, Request, Session
    from holdfast.sim.network import Link
    from holdfast.sim.runtime import SimRuntime
    from holdfast.sim.servers.zookeeper.ensemble import Member, ZookeeperServer

HANGS = object()  # in place of an answer: none comes
CONNECT_TIMEOUT, RECONNECT_PAUSE = 0.5, 0.05
TELL_TIMEOUT = 1.0


class SimSession:
    """What a client knows of its session."""

    def __init__(self, timeout: float) -> None:
        self.number = 0
        self.timeout = timeout
        self.is_over = False
        self.connection = 0
        self.connected = 0.0


class Way(NamedTuple):
    """One connection of a client, to a member since its so-manieth start."""

    port: SimPort
    member: Member
    starts: int
    session: int
    connection: int


class SimPort:
    """The way of one client to the ensemble."""

    def __init__(self, server: ZookeeperServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self.connections = 0
        self.dropped = 0  # the connection that has ended, and it does not know
        self._server = server
        self._runtime = runtime
        self._session: SimSession | None = None
        self._member: Member | None = None  # to which it is connected,
        self._starts = 0  # since its so-manieth start
        self._is_connecting = False
        self._news = runtime.event()
        self._fired: Callable[[str], None] = lambda _: None
        self._changed: Callable[[], None] = lambda: None
        self._closed = False

    @property
    def session(self) -> SimSession | None:
        session = self._session
        return None if session is None or session.is_over else session

    def listen(self, fired: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._fired, self._changed = fired, changed

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, *, deadline: float) -> SimSession:
        session = self.session
        if session is not None and session.connection:
            return session
        while self._is_connecting and self._runtime.now() < deadline:
            self._news.clear()
            await self._news.wait(deadline)
        session = self.session
        if session is None:
            session = self._session = SimSession(self._server.timeout)
        if not session.connection:
            await self._connect(session, deadline)
        return session

    async def _connect(self, session: SimSession, deadline: float) -> None:
        """One round through all members, in any order."""
        members = self._server.nodes
        first = self._server.world.choices.below(len(members))
        for number in range(len(members)):
            try:
                await self._connect_to(members[(first + number) % len(members)], session, deadline)
            except BackendUnavailable:
                if session.is_over or number == len(members) - 1 or self._runtime.now() >= deadline:
                    raise
            else:
                return

    async def _connect_to(self, member: Member, session: SimSession, deadline: float) -> None:
        from holdfast.sim.servers.zookeeper.ensemble import Expired

        server, runtime = self._server, self._runtime
        deadline = min(deadline, runtime.now() + CONNECT_TIMEOUT)
        self._is_connecting = True
        self.connections += 1
        connection, sent = self.connections, runtime.now()
        try:
            answer: Any = await self._ask(lambda: server.connect(member, session.number, connection), deadline)
        except Expired:
            session.is_over = True
            raise BackendUnavailable(backend="sim", problem="the session has expired") from None
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend="sim", problem="not connected") from error
        finally:
            self._is_connecting = False
            self._tell()
        session.number, self._starts = answer
        self._member, session.connection, session.connected = member, connection, sent
        self._tell()

    async def ask(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        from holdfast.sim.servers.zookeeper.ensemble import Expired

        connection, member, server = session.connection, self._member, self._server
        if session.is_over or not connection or member is None:
            raise BackendUnavailable(backend="sim", problem="not connected")
        way = Way(self, member, self._starts, session.number, connection)
        try:
            answers: Any = await self._ask(lambda: server.handle(way, requests), deadline)
        except Expired:
            session.is_over = True
            self._lose(connection)
            raise BackendUnavailable(backend="sim", problem="the session has expired") from None
        except OutcomeUnknown:
            self._lose(connection)
            raise
        result: list[Answer] = answers
        return result

    async def _ask(self, step: Callable[[], Any], deadline: float) -> Any:
        answer = await self.link.request(step, deadline)
        if answer is HANGS:
            await self._runtime.sleep(max(0.0, deadline - self._runtime.now()))
            raise OutcomeUnknown(backend="sim", problem="no answer in time")
        return answer

    def tell(self, session: Session, request: Request) -> None:
        async def send() -> None:
            try:
                await self.ask(session, (request,), deadline=self._runtime.now() + TELL_TIMEOUT)
            except BackendError:
                return  # nobody waits for it

        self._runtime.spawn(send, "tell")

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────────────

    def hang_up(self, session: Session) -> None:
        self._lose(session.connection)

    def _lose(self, connection: int) -> None:
        session = self._session
        if session is None or not connection or session.connection != connection:
            return
        session.connection, self._member = 0, None
        self._tell()
        if not session.is_over and not self._closed:
            self._runtime.spawn(lambda: self._reconnect(session), "reconnect")

    async def _reconnect(self, session: SimSession) -> None:
        while not (session.connection or session.is_over or self._closed):
            if not self._is_connecting:
                try:
                    await self._connect(session, self._runtime.now() + len(self._server.nodes) * CONNECT_TIMEOUT)
                except BackendError:
                    pass
                else:
                    return
            await self._runtime.sleep(RECONNECT_PAUSE)

    def will_notice(self, member: Member) -> bool:
        """The other end has gone. It takes a while until this is seen here."""
        session = self._session
        if self._member is not member or session is None:
            return False
        world, process = self.link.process.world, self.link.process
        noticed = world.now + world.choices.between(0.0, 1.0)
        world.at(noticed, process.do, self._lose, session.connection)
        return True

    def drop(self) -> bool:
        """It has ended, and with it all watches."""
        member, session = self._member, self._session
        if member is None or session is None:
            return False
        self.dropped = session.connection
        for watching in member.watches.values():
            watching.pop(self, None)
        return self.will_notice(member)

    def fire(self, connection: int, path: str) -> None:
        session = self._session
        if session is not None and session.connection == connection:
            self._fired(path)

    def _tell(self) -> None:
        self._news.set()
        self._changed()

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work, "pulse")

    def end(self, session: Session) -> None:
        session.is_over = True
        number, server = session.number, self._server

        async def close() -> None:
            try:
                await self._ask(lambda: server.close(number), self._runtime.now() + TELL_TIMEOUT)
            except BackendError:
                return  # its timer ends it

        self._runtime.spawn(close, "close")

    async def close(self, *, keeps_session: bool = False) -> None:
        self._closed = True
        if self._session is not None and not keeps_session:
            self.end(self._session)

    def abandon(self) -> None:
        """The process is gone; the session's timer ends it."""
        self._closed = True
