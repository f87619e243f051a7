"""The sessions that are open, and their pulse: pairs of writes in the background, while anybody needs the session.

They keep it and prove that it is kept, for all of its tickets together; standing.py says how. classes.py says which
session a ticket belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.zookeeper.port import Create, Delete, Ephemerals, Refusal, Set
from holdfast.backends.zookeeper.protocol.nodes import SESSIONS
from holdfast.backends.zookeeper.protocol.session_classes import CLASSES_MAX, timeout_for
from holdfast.backends.zookeeper.protocol.session_proof import Standing
from holdfast.core.events import logger
from holdfast.errors import BackendError, HoldfastError, ThreadStartError

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import Place
    from holdfast.backends.zookeeper.port import Session, ZookeeperPort
    from holdfast.backends.zookeeper.protocol.parents import Parents
    from holdfast.core.ports import Event, Runtime

IDLE_MAX = 10.0  # seconds without a ticket or a question before the session is ended
SPARE_AFTER = 1.0  # seconds after which an idle session makes room for one with another timeout
DEFAULT_TIMEOUT = 30.0  # seconds: requested for what has no ttl, if no session is open
# A session without tickets is used again if at least this share of its timeout is proven. The first is more than
# APART_SHARE, so that pairs prove more in time. A session that was only read in has sent none yet, so it needs more.
_PROVEN_MIN, _PROVEN_MIN_READ = 1 / 3, 1 / 2
_PATIENCE_MIN, _PATIENCE_SHARE = 0.9, 1 / 3  # seconds for a write, unless that is more than this share of the timeout


class Chores(Protocol):
    """What its users have done at each pulse."""

    def needs(self, session: Session) -> bool:
        """Somebody has a node that goes with the session, or may have one."""

    async def sweep(self, session: Session, deadline: float) -> None:
        """Take away what nobody believes in any longer."""

    def next_sweep(self, session: Session) -> float:
        """When there will be such, as far as is known."""

    def released_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        """Which of these ephemeral nodes of the session are to be deleted: they belong to no ticket."""


class _Class:
    """One timeout that sessions are requested with, one session after the other."""

    def __init__(self, timeout: float, used: float) -> None:
        self.timeout = timeout
        self.used = used
        self.shortest = timeout  # the shortest ttl of its tickets
        self.session: Session | None = None


class _Beat:
    """The pulse of one session."""

    def __init__(self, standing: Standing, waker: Event) -> None:
        self.standing, self.waker = standing, waker
        self.checked = 0  # the last connection on which the session's nodes were compared with its tickets
        self.creates = False  # while the session is only read in, its node is made only in a store that exists


class Pulse:
    """Of one client."""

    def __init__(self, place: Place, port: ZookeeperPort, parents: Parents, runtime: Runtime, chores: Chores) -> None:
        self._url, self._root = place.url, place.root
        self._fixed = place.session_timeout
        self._port, self._parents, self._runtime, self._chores = port, parents, runtime, chores
        self._mutex = runtime.mutex()
        self._classes: dict[float, _Class] = {}
        self._beats: dict[Session, _Beat] = {}  # of the sessions that are open
        self._closed = False

    async def open(self, ttl: float, deadline: float) -> Session:
        """The session for a ticket with this ttl.

        Raises:
            BackendUnavailable: no server could be reached.
            ThreadStartError: there is no room for a thread that keeps the session.
        """
        self._end_unproven(self._class_for(ttl))
        return await self._open_to_write(self._class_for(ttl), deadline)

    async def open_any(self, deadline: float, *, creates: bool = True) -> Session:
        """A session for a request that leaves nothing behind: one that is open, if there is one.

        Unless it `creates`, the heartbeat makes no node in a store that does not exist.
        """
        there = self._port.sessions
        timeouts = [*(one.requested for one in there if one.connection), *(one.requested for one in there)]
        timeouts += [*self._classes, self._fixed or DEFAULT_TIMEOUT]
        if not creates:
            return await self._open(self._class_of(timeouts[0]), deadline)
        self._end_unproven(self._class_of(timeouts[0]))
        return await self._open_to_write(self._class_of(timeouts[0]), deadline)

    async def _open_to_write(self, of: _Class, deadline: float) -> Session:
        session = await self._open(of, deadline)
        beat = self._beats.get(session)
        if beat is not None and not beat.creates:
            beat.creates = True
            beat.waker.set()
        return session

    def _end_unproven(self, of: _Class) -> None:
        """End a session without tickets of which too little is proven: a proof would take seconds, a new one does not.

        The process was paused, or has only read in that session.
        """
        session = of.session
        beat = self._beats.get(session) if session is not None else None
        if session is None or beat is None or self._chores.needs(session):
            return
        needed = _PROVEN_MIN if beat.creates else _PROVEN_MIN_READ
        if beat.standing.until < self._runtime.now() + beat.standing.timeout * needed:
            self._end(session)

    async def reopen(self, session: Session, deadline: float) -> Session:
        """The same session, connected; the one that follows it if it is over."""
        return await self._open_to_write(self._class_of(session.requested), deadline)

    async def _open(self, of: _Class, deadline: float) -> Session:
        of.used = self._runtime.now()
        session = of.session = await self._port.open(of.timeout, deadline=deadline)
        beat = self._beats.get(session)
        if beat is None:
            beat = self._begin(session)
        beat.standing.connected(session.connection, session.connected)
        return session

    def _class_for(self, ttl: float) -> _Class:
        found = self._classes.get(ttl if self._fixed is None else self._fixed)
        if found is None:
            with self._mutex:
                if self._fixed is None and ttl not in self._classes and len(self._classes) == CLASSES_MAX:
                    self._make_room()
                timeout = timeout_for(ttl, self._classes) if self._fixed is None else self._fixed
                found = self._classes.setdefault(timeout, _Class(timeout, self._runtime.now()))
        found.shortest = min(found.shortest, ttl)
        return found

    def _class_of(self, timeout: float) -> _Class:
        with self._mutex:
            return self._classes.setdefault(timeout, _Class(timeout, self._runtime.now()))

    def _make_room(self) -> None:
        """End a session that has no tickets. One that was used just now may be about to get some."""
        now = self._runtime.now()
        for one in list(self._classes.values()):
            session = one.session
            if now - one.used > SPARE_AFTER and (session is None or not self._chores.needs(session)):
                del self._classes[one.timeout]
                if session is not None and not session.is_over:
                    self._port.end(session)
                return

    def proven(self, session: Session) -> float:
        """Until when the ensemble certainly keeps it."""
        beat = self._beats.get(session)
        return 0.0 if beat is None else beat.standing.until

    def next_proof(self, session: Session) -> float:
        """When more of it is expected to be proven."""
        now, beat = self._runtime.now(), self._beats.get(session)
        return now if beat is None else beat.standing.next_proof_after(now)

    def own(self, session: Session) -> str:
        """The path of the node that the session's heartbeat writes to."""
        return f"{self._root}/{SESSIONS}/{session.number:016x}"

    def late(self) -> Sequence[tuple[float, float]]:
        """Session timeouts, as granted by the servers, that are longer than the shortest ttl in them; and that ttl."""
        there = [(one.session, one.shortest) for one in list(self._classes.values())]
        return [
            (session.timeout, ttl)
            for session, ttl in there
            if session is not None and session.number and not session.is_over and session.timeout > ttl + 0.001
        ]

    def changed(self, session: Session) -> None:
        """The session or its connection came or went."""
        beat = self._beats.get(session)
        if beat is not None:
            beat.waker.set()

    def close(self) -> None:
        self._closed = True
        for beat in list(self._beats.values()):
            beat.waker.set()

    def abandon(self) -> None:
        """In a forked child, which has nobody to tell."""
        self._closed = True

    def _begin(self, session: Session) -> _Beat:
        with self._mutex:
            beat = self._beats.get(session)
            if beat is not None:
                return beat
            beat = self._beats[session] = _Beat(Standing(session.timeout), self._runtime.event())
        try:
            self._port.start(lambda: self._run(session, beat))
        except ThreadStartError:  # without its pulse a session is of no use
            self._end(session)
            raise
        return beat

    def _end(self, session: Session) -> None:
        self._beats.pop(session, None)
        with self._mutex:
            known = self._classes.get(session.requested)
            if known is not None and known.session is session:
                del self._classes[session.requested]
        self._port.end(session)

    async def _run(self, session: Session, beat: _Beat) -> None:
        try:
            await self._keep(session, beat)
        finally:
            self._beats.pop(session, None)

    async def _keep(self, session: Session, beat: _Beat) -> None:
        own, standing = self.own(session), beat.standing
        is_there = False
        while not session.is_over and not self._closed:
            await self._chores.sweep(session, self._runtime.now() + standing.pause)
            if self._is_idle(session):
                self._end(session)
                return
            connection = session.connection
            try:
                if connection:
                    is_there = is_there or await self._make_own(session, beat, own, self._backoff(standing))
                if connection and is_there:
                    is_there = await self._pair(session, standing, own)
                if connection and beat.checked != connection:
                    await self._check_nodes(session, beat, own)
            except BackendError as error:
                logger().info("the pulse of the session with %s got no answer: %s", self._url, error)
                if session.connection == connection:
                    self._port.hang_up(session)  # another server may answer; this one has had its time
            except HoldfastError as error:
                logger().warning("the session with %s cannot be kept: %s", self._url, error)
            # After a pause of the process its leases may end soon, so a pair is sent as soon as it proves more.
            now = self._runtime.now()
            times = [now + standing.pause, self._chores.next_sweep(session)]
            if standing.next_proof > now:
                times.append(standing.next_proof)
            await beat.waker.wait(min(times))
            beat.waker.clear()  # what rang until now is looked at after this

    def _is_idle(self, session: Session) -> bool:
        known = self._classes.get(session.requested)
        used = known.used if known is not None and known.session is session else 0.0
        return self._runtime.now() - used > IDLE_MAX and not self._chores.needs(session)

    def _backoff(self, standing: Standing) -> float:
        """When to give up a write that begins now."""
        return self._runtime.now() + max(standing.pause, min(_PATIENCE_MIN, standing.timeout * _PATIENCE_SHARE))

    async def _make_own(self, session: Session, beat: _Beat, own: str, deadline: float) -> bool:
        above, _, _ = own.rpartition("/")
        create = Create(own, b"", is_numbered=False)
        parents = self._parents.made(above) if beat.creates else ()
        *answers, created = await self._port.ask(session, (*parents, create), deadline=deadline)
        if created is Refusal.NO_NODE and not beat.creates:
            return False
        if created is Refusal.NO_NODE:
            self._parents.missed(above, answers)
            return False  # the next pulse tries again
        if isinstance(created, Refusal) and created is not Refusal.EXISTS:
            raise self._parents.refused(created, own)
        return True

    async def _check_nodes(self, session: Session, beat: _Beat, own: str) -> None:
        """Once on each connection: delete nodes of the session that belong to no ticket.

        The servers may have been restored since the connection before. The write makes the server apply everything
        that was committed before it, restored nodes included; its answer does not matter.
        """
        connection, deadline = session.connection, self._backoff(beat.standing)
        _, listed = await self._port.ask(session, (Set(own, b""), Ephemerals(self._root)), deadline=deadline)
        released = self._chores.released_in(session, listed) if isinstance(listed, list) else ()
        if released:
            logger().warning(
                "%s: deleting %d released tickets that exist again, because the servers were restored from a copy",
                self._url,
                len(released),
            )
            await self._port.ask(session, [Delete(path) for path in released], deadline=deadline)
        beat.checked = connection

    async def _pair(self, session: Session, standing: Standing, own: str) -> bool:
        """Two writes, one after the other: what that proves, standing.py says. False if the node is not there."""
        connection = session.connection
        standing.connected(connection, session.connected)
        times = []
        for _ in range(2):
            times.append(self._runtime.now())
            (answer,) = await self._port.ask(session, (Set(own, b""),), deadline=self._backoff(standing))
            if answer is Refusal.NO_NODE:
                return False  # it was deleted by hand, or is not in older data that were restored
            if answer is not None:
                raise self._parents.refused(answer, own)
        if connection and session.connection == connection:
            standing.pair(connection, times[0], times[1], self._runtime.now())
        return True
