"""A ZookeeperPort whose requests pass through a simulated network, on one connection at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.port import Answer, Request, Session
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.zookeeper.ensemble import Member, ZookeeperServer

NO_ANSWER = object()  # instead of an answer: the request gets none
REJECTED = object()  # instead of an answer: the connection is closed
CONNECT_TIMEOUT, RECONNECT_PAUSE = 0.5, 0.05
SEND_TIMEOUT = 1.0


class SimSession:
    """A session as its client knows it."""

    def __init__(self, port: SimPort, requested: float) -> None:
        self.port = port
        self.id = 0
        self.requested = self.timeout = requested
        self.is_closed = False
        self.rolled_back = False
        self.seen = 0
        self.connection = 0
        self.connected_at = 0.0
        self.dropped = 0  # the connection that is lost, which the client has not noticed
        self.is_connecting = False
        self.member: Member | None = None  # to which it is connected
        self.starts = 0  # the member's count of starts at that time


class SimConnection(NamedTuple):
    """One connection of a client to a member; `starts` is the member's count of starts when it was opened."""

    session: SimSession
    member: Member
    starts: int
    session_id: int
    connection: int


class Reply(NamedTuple):
    """The answers of a member, and the number of the last transaction that it has applied."""

    answers: list[Answer]
    zxid: int


class ConnectReply(NamedTuple):
    """The answer to a connect request."""

    session_id: int
    starts: int
    timeout: float


class SimPort:
    """The port of one client."""

    def __init__(self, server: ZookeeperServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self.connections = 0
        self._server = server
        self._runtime = runtime
        self._sessions: dict[float, SimSession] = {}  # by requested timeout
        self._changes = runtime.event()
        self._fired: Callable[[Session, str], None] = lambda *_: None
        self._changed: Callable[[Session], None] = lambda _: None
        self._closed = False

    @property
    def sessions(self) -> list[SimSession]:
        return [session for session in self._sessions.values() if not session.is_closed]

    def on_events(self, fired: Callable[[Session, str], None], changed: Callable[[Session], None]) -> None:
        self._fired, self._changed = fired, changed

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, timeout: float, *, deadline: float) -> SimSession:
        while True:
            session = self._sessions.get(timeout)
            if session is None or session.is_closed:
                session = self._sessions[timeout] = SimSession(self, timeout)
            while session.is_connecting and self._runtime.now() < deadline:
                self._changes.clear()
                await self._changes.wait(deadline)
            try:
                if not session.connection and not session.is_closed:
                    await self._connect(session, deadline)
            except BackendUnavailable:
                if not session.is_closed or self._runtime.now() >= deadline:
                    raise
            if not session.is_closed:
                return session

    async def _connect(self, session: SimSession, deadline: float) -> None:
        """One round through all members, in any order."""
        members = self._server.nodes
        first = self._server.world.choices.below(len(members))
        for number in range(len(members)):
            try:
                await self._connect_to(members[(first + number) % len(members)], session, deadline)
            except BackendUnavailable:
                if session.is_closed or number == len(members) - 1 or self._runtime.now() >= deadline:
                    raise
            else:
                return

    async def _connect_to(self, member: Member, session: SimSession, deadline: float) -> None:
        from holdfast_lab.sim.servers.zookeeper.ensemble import Expired

        server, runtime = self._server, self._runtime
        deadline = min(deadline, runtime.now() + CONNECT_TIMEOUT)
        session.is_connecting = True
        self.connections += 1
        connection, sent = self.connections, runtime.now()
        try:
            answer: Any = await self._request(lambda: server.connect(member, session, connection), deadline)
            if answer is REJECTED and await self._rolled_back(member, session, deadline):
                session.rolled_back = True
                raise Expired
            if answer is REJECTED:
                raise OutcomeUnknown(backend="sim", problem="connection reset")
        except Expired:
            session.is_closed = True
            raise BackendUnavailable(backend="sim", problem="the session has expired") from None
        except OutcomeUnknown as error:
            raise BackendUnavailable(backend="sim", problem="not connected") from error
        finally:
            session.is_connecting = False
            self._notify(session)
        session.id, session.starts, session.timeout = answer
        session.member, session.connection, session.connected_at = member, connection, sent
        self._notify(session)

    async def _rolled_back(self, member: Member, session: SimSession, deadline: float) -> bool:
        """See backends/zookeeper/io/driver.py: a write in a new session shows how many transactions there are."""
        zxid: int = await self._request(lambda: self._server.next_zxid(member), deadline)
        return zxid < session.seen

    async def call(self, session: Session, requests: Sequence[Request], *, deadline: float) -> list[Answer]:
        from holdfast_lab.sim.servers.zookeeper.ensemble import Expired

        ours, server = _ours(session), self._server
        connection, member = ours.connection, ours.member
        if session.is_closed or not connection or member is None:
            raise BackendUnavailable(backend="sim", problem="not connected")
        source = SimConnection(ours, member, ours.starts, ours.id, connection)
        try:
            reply: Reply = await self._request(lambda: server.handle(source, requests), deadline)
        except Expired:
            session.is_closed = True
            self._lose(ours, connection)
            raise BackendUnavailable(backend="sim", problem="the session has expired") from None
        except OutcomeUnknown:
            self._lose(ours, connection)
            raise
        ours.seen = reply.zxid
        return reply.answers

    async def _request(self, step: Callable[[], Any], deadline: float) -> Any:
        answer = await self.link.request(step, deadline)
        if answer is NO_ANSWER:
            await self._runtime.sleep(max(0.0, deadline - self._runtime.now()))
            raise OutcomeUnknown(backend="sim", problem="no answer in time")
        return answer

    def send(self, session: Session, request: Request) -> None:
        async def send() -> None:
            try:
                await self.call(session, (request,), deadline=self._runtime.now() + SEND_TIMEOUT)
            except BackendError:
                return  # no caller waits for it

        self._runtime.spawn(send, "send")

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────────────

    def disconnect(self, session: Session) -> None:
        self._lose(_ours(session), session.connection)

    def _lose(self, session: SimSession, connection: int) -> None:
        if not connection or session.connection != connection:
            return
        session.connection, session.member = 0, None
        self._notify(session)
        if not session.is_closed and not self._closed:
            self._runtime.spawn(lambda: self._reconnect(session), "reconnect")

    async def _reconnect(self, session: SimSession) -> None:
        while not (session.connection or session.is_closed or self._closed):
            if not session.is_connecting:
                try:
                    await self._connect(session, self._runtime.now() + len(self._server.nodes) * CONNECT_TIMEOUT)
                except BackendError:
                    pass
                else:
                    return
            await self._runtime.sleep(RECONNECT_PAUSE)

    def notice_later(self, member: Member) -> bool:
        """The member has closed the connection. The client notices it some time later."""
        return sum(self._notice_later(session, member) for session in self.sessions) > 0

    def _notice_later(self, session: SimSession, member: Member) -> bool:
        if session.member is not member:
            return False
        world, process = self.link.process.world, self.link.process
        noticed = world.now + world.choices.between(0.0, 1.0)
        world.at(noticed, process.do, self._lose, session, session.connection)
        return True

    def drop(self) -> bool:
        """Drop all connections, and with them all watches."""
        return sum(self._drop(session) for session in self.sessions) > 0

    def _drop(self, session: SimSession) -> bool:
        member = session.member
        if member is None:
            return False
        session.dropped = session.connection
        for watching in member.watches.values():
            watching.pop(session, None)
        return self._notice_later(session, member)

    def fire(self, session: SimSession, connection: int, path: str) -> None:
        if session.connection == connection:
            self._fired(session, path)

    def _notify(self, session: SimSession) -> None:
        self._changes.set()
        self._changed(session)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runtime.spawn(work, "heartbeat")

    def close_session(self, session: Session) -> None:
        session.is_closed = True
        self._notify(_ours(session))
        session_id, server = session.id, self._server

        async def close() -> None:
            try:
                await self._request(lambda: server.close(session_id), self._runtime.now() + SEND_TIMEOUT)
            except BackendError:
                return  # its timer ends it

        self._runtime.spawn(close, "close")

    async def close(self, *, keeps_session: bool = False) -> None:
        self._closed = True
        for session in self.sessions if not keeps_session else ():
            self.close_session(session)

    def without_loop(self) -> None:
        """A simulated process has no loop."""

    def abandon(self) -> None:
        """The process has ended; the session's timer ends its sessions."""
        self._closed = True


def _ours(session: Session) -> SimSession:
    if not isinstance(session, SimSession):
        raise TypeError(f"not a session of this port's: {session!r}")
    return session
