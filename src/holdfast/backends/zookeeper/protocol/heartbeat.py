"""The open sessions of a client and their heartbeats: pairs of writes in the background, while a session is needed.

The writes keep a session alive and prove that it lives, for all of its tickets together; session_proof.py explains how.
session_classes.py decides which session a ticket belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.zookeeper.port import Create, Delete, Ephemerals, Refusal, Session, Set, ZookeeperPort
from holdfast.backends.zookeeper.protocol.nodes import SESSIONS
from holdfast.backends.zookeeper.protocol.session_classes import CLASSES_MAX, timeout_for
from holdfast.backends.zookeeper.protocol.session_proof import SessionProof
from holdfast.core.events import logger
from holdfast.errors import AccessDenied, BackendError, HoldfastError, ThreadStartError

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.backends.zookeeper.protocol.parents import Parents
    from holdfast.core.ports import Event, Runtime

IDLE_MAX = 10.0  # seconds without a ticket or a request before the session is closed
SPARE_AFTER = 1.0  # seconds after which an idle session makes room for one with another timeout
DEFAULT_TIMEOUT = 30.0  # seconds: requested for a request without a ttl, if no session is open
# A session without tickets is used again if at least this share of its timeout is proven. The first is more than
# GAP_SHARE, so that pairs prove more in time. A session that has only read has sent no pairs yet, so it needs more.
_PROVEN_MIN, _PROVEN_MIN_READ = 1 / 3, 1 / 2
# Seconds for a write, unless that is more than this share of the timeout.
_WRITE_TIMEOUT_MIN, _WRITE_TIMEOUT_SHARE = 0.9, 1 / 3


class HeartbeatTasks(Protocol):
    """The backend's part of a heartbeat."""

    def is_needed(self, session: Session) -> bool:
        """A ticket has a node that belongs to the session, or may have one."""

    async def sweep(self, session: Session, deadline: float) -> None:
        """Delete the nodes of leases whose deadlines have passed."""

    def next_sweep(self, session: Session) -> float:
        """When the next known deadline passes."""

    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        """The ephemeral nodes of the session, among these, that belong to no ticket and are to be deleted."""


class _TimeoutClass:
    """One requested timeout; it has one session at a time."""

    def __init__(self, timeout: float, used: float) -> None:
        self.timeout = timeout
        self.used = used
        self.shortest = timeout  # the shortest ttl of its tickets
        self.session: Session | None = None


class _Heartbeat:
    """The heartbeat of one session."""

    def __init__(self, proof: SessionProof, waker: Event) -> None:
        self.proof, self.waker = proof, waker
        self.checked = 0  # the last connection on which the session's nodes were compared with its tickets
        self.creates = False  # False while the session only reads: then its node is created only in an existing store


class Heartbeats:
    """The sessions of one client and their heartbeats."""

    def __init__(
        self, config: ZookeeperConfig, port: ZookeeperPort, parents: Parents, runtime: Runtime, tasks: HeartbeatTasks
    ) -> None:
        self._url, self._root = config.url, config.root
        self._fixed = config.session_timeout
        self._port, self._parents, self._runtime, self._tasks = port, parents, runtime, tasks
        self._mutex = runtime.mutex()
        self._classes: dict[float, _TimeoutClass] = {}
        self._heartbeats: dict[Session, _Heartbeat] = {}  # of the sessions that are open
        self._closed = False

    async def open(self, ttl: float, deadline: float) -> Session:
        """The session for a ticket with this ttl.

        Raises:
            BackendUnavailable: no server could be reached.
            ThreadStartError: no thread could be started for the heartbeat.
        """
        self._close_unproven(self._class_for(ttl))
        return await self._open_to_write(self._class_for(ttl), deadline)

    async def open_any(self, deadline: float, *, creates: bool = True) -> Session:
        """A session for a request that creates no ephemeral node: an open one, if there is one.

        Unless `creates`, the heartbeat creates no node in a store that does not exist.
        """
        sessions = sorted(self._port.sessions, key=lambda session: not session.connection)  # connected ones first
        timeouts = [*(session.requested for session in sessions), *self._classes, self._fixed or DEFAULT_TIMEOUT]
        if not creates:
            return await self._open(self._class_of(timeouts[0]), deadline)
        self._close_unproven(self._class_of(timeouts[0]))
        return await self._open_to_write(self._class_of(timeouts[0]), deadline)

    async def _open_to_write(self, timeout_class: _TimeoutClass, deadline: float) -> Session:
        session = await self._open(timeout_class, deadline)
        heartbeat = self._heartbeats.get(session)
        if heartbeat is not None and not heartbeat.creates:
            heartbeat.creates = True
            heartbeat.waker.set()
        return session

    def _close_unproven(self, timeout_class: _TimeoutClass) -> None:
        """Close a session without tickets if too little of it is proven: a proof takes seconds, a new session does not.

        That is the case if the process was paused, or has only read in the session.
        """
        session = timeout_class.session
        heartbeat = self._heartbeats.get(session) if session is not None else None
        if session is None or heartbeat is None or self._tasks.is_needed(session):
            return
        needed = _PROVEN_MIN if heartbeat.creates else _PROVEN_MIN_READ
        if heartbeat.proof.valid_until < self._runtime.now() + heartbeat.proof.timeout * needed:
            self._close(session)

    async def reopen(self, session: Session, deadline: float) -> Session:
        """The same session, connected; its successor if it is closed."""
        return await self._open_to_write(self._class_of(session.requested), deadline)

    async def _open(self, timeout_class: _TimeoutClass, deadline: float) -> Session:
        timeout_class.used = self._runtime.now()
        session = timeout_class.session = await self._port.open(timeout_class.timeout, deadline=deadline)
        heartbeat = self._heartbeats.get(session)
        if heartbeat is None:
            heartbeat = self._begin(session)
        heartbeat.proof.record_connection(session.connection, session.connected_at)
        return session

    def _class_for(self, ttl: float) -> _TimeoutClass:
        timeout_class = self._classes.get(ttl if self._fixed is None else self._fixed)
        if timeout_class is None:
            with self._mutex:
                if self._fixed is None and ttl not in self._classes and len(self._classes) == CLASSES_MAX:
                    self._make_room()
                timeout = timeout_for(ttl, self._classes) if self._fixed is None else self._fixed
                timeout_class = self._classes.setdefault(timeout, _TimeoutClass(timeout, self._runtime.now()))
        timeout_class.shortest = min(timeout_class.shortest, ttl)
        return timeout_class

    def _class_of(self, timeout: float) -> _TimeoutClass:
        with self._mutex:
            return self._classes.setdefault(timeout, _TimeoutClass(timeout, self._runtime.now()))

    def _make_room(self) -> None:
        """Close a session that has no tickets. A session that was used just now may be about to get some."""
        now = self._runtime.now()
        for timeout_class in list(self._classes.values()):
            session = timeout_class.session
            if now - timeout_class.used > SPARE_AFTER and (session is None or not self._tasks.is_needed(session)):
                del self._classes[timeout_class.timeout]
                if session is not None and not session.is_closed:
                    self._port.close_session(session)
                return

    def proven(self, session: Session) -> float:
        """Until when the ensemble is proven to keep the session."""
        heartbeat = self._heartbeats.get(session)
        return 0.0 if heartbeat is None else heartbeat.proof.valid_until

    def next_proof(self, session: Session) -> float:
        """When the next proof for the session is expected."""
        now, heartbeat = self._runtime.now(), self._heartbeats.get(session)
        return now if heartbeat is None else heartbeat.proof.next_proof_after(now)

    def node_path(self, session: Session) -> str:
        """The path of the node that the session's heartbeat writes to."""
        return f"{self._root}/{SESSIONS}/{session.id:016x}"

    def late_timeouts(self) -> Sequence[tuple[float, float]]:
        """Granted session timeouts that are longer than the shortest ttl of their tickets, each with that ttl."""
        shortest = [(known.session, known.shortest) for known in list(self._classes.values())]
        return [
            (session.timeout, ttl)
            for session, ttl in shortest
            if session is not None and session.id and not session.is_closed and session.timeout > ttl + 0.001
        ]

    def changed(self, session: Session) -> None:
        """The session or its connection was opened or closed."""
        heartbeat = self._heartbeats.get(session)
        if heartbeat is not None:
            heartbeat.waker.set()

    def check_again(self, session: Session, connection: int) -> None:
        """Compare the session's nodes with its tickets again, unless `connection` is still its connection.

        Called after a ticket was forgotten because of an answer on `connection`. The servers may have been restored
        since that answer, and the check on the next connection kept the node, because the ticket still existed.
        """
        heartbeat = self._heartbeats.get(session)
        if heartbeat is not None and session.connection != connection:
            heartbeat.checked = 0
            heartbeat.waker.set()

    def close(self) -> None:
        self._closed = True
        for heartbeat in list(self._heartbeats.values()):
            heartbeat.waker.set()

    def abandon(self) -> None:
        """In a forked child: stop without a request to the servers."""
        self._closed = True

    def _begin(self, session: Session) -> _Heartbeat:
        with self._mutex:
            heartbeat = self._heartbeats.get(session)
            if heartbeat is not None:
                return heartbeat
            heartbeat = self._heartbeats[session] = _Heartbeat(SessionProof(session.timeout), self._runtime.event())
        try:
            self._port.start(lambda: self._run(session, heartbeat))
        except ThreadStartError:  # a session without a heartbeat is useless
            self._close(session)
            raise
        return heartbeat

    def _close(self, session: Session) -> None:
        self._heartbeats.pop(session, None)
        with self._mutex:
            known = self._classes.get(session.requested)
            if known is not None and known.session is session:
                del self._classes[session.requested]
        self._port.close_session(session)

    async def _run(self, session: Session, heartbeat: _Heartbeat) -> None:
        try:
            await self._beat_until_closed(session, heartbeat)
        finally:
            self._heartbeats.pop(session, None)

    async def _beat_until_closed(self, session: Session, heartbeat: _Heartbeat) -> None:
        node_path, proof = self.node_path(session), heartbeat.proof
        has_node = False
        while not session.is_closed and not self._closed:
            await self._tasks.sweep(session, self._runtime.now() + proof.pause)
            if self._is_idle(session):
                self._close(session)
                return
            connection = session.connection
            try:
                if connection:
                    has_node = has_node or await self._create_node(
                        session, heartbeat, node_path, self._write_deadline(proof)
                    )
                if connection and has_node:
                    has_node = await self._write_pair(session, proof, node_path)
                if connection and heartbeat.checked != connection:
                    await self._check_nodes(session, heartbeat, connection, node_path)
            except AccessDenied as error:
                logger().warning("the session with %s cannot be kept: %s", self._url, error)
            except BackendError as error:
                logger().info("the heartbeat of the session with %s got no answer: %s", self._url, error)
                if session.connection == connection:
                    self._port.disconnect(session)  # another server may answer
            except HoldfastError as error:
                logger().warning("the session with %s cannot be kept: %s", self._url, error)
            # After a pause of the process its leases may end soon, so a pair is sent as soon as it can prove more.
            now = self._runtime.now()
            times = [now + proof.pause, self._tasks.next_sweep(session)]
            if proof.next_proof > now:
                times.append(proof.next_proof)
            await heartbeat.waker.wait(min(times))
            heartbeat.waker.clear()  # before the next round, which handles every event so far

    def _is_idle(self, session: Session) -> bool:
        known = self._classes.get(session.requested)
        used = known.used if known is not None and known.session is session else 0.0
        return self._runtime.now() - used > IDLE_MAX and not self._tasks.is_needed(session)

    def _write_deadline(self, proof: SessionProof) -> float:
        """The deadline of a write that starts now."""
        return self._runtime.now() + max(proof.pause, min(_WRITE_TIMEOUT_MIN, proof.timeout * _WRITE_TIMEOUT_SHARE))

    async def _create_node(self, session: Session, heartbeat: _Heartbeat, node_path: str, deadline: float) -> bool:
        above, _, _ = node_path.rpartition("/")
        create = Create(node_path, b"", is_sequential=False)
        parents = self._parents.create_requests(above) if heartbeat.creates else ()
        *answers, created = await self._port.call(session, (*parents, create), deadline=deadline)
        if created is Refusal.NO_NODE:
            if heartbeat.creates:
                self._parents.handle_missing(above, answers)
            return False  # the next heartbeat tries again
        if isinstance(created, Refusal) and created is not Refusal.EXISTS:
            raise self._parents.error_for(created, node_path)
        return True

    async def _check_nodes(self, session: Session, heartbeat: _Heartbeat, connection: int, node_path: str) -> None:
        """Once on each connection, and after `check_again`: delete nodes of the session that belong to no ticket.

        The servers may have been restored since the connection before. The write makes the server apply everything
        that was committed before it, restored nodes included; its answer does not matter.
        """
        # Before the listing, because `check_again` may reset it after that. After an error this connection is closed.
        heartbeat.checked = connection
        deadline = self._write_deadline(heartbeat.proof)
        orphans = await self._orphans(session, node_path, deadline)
        if orphans:
            # A ticket may have been released while its node was listed. It is not in a second listing.
            listed_again = await self._orphans(session, node_path, deadline)
            orphans = [path for path in listed_again if path in orphans]
        if orphans:
            logger().warning(
                "%s: deleting %d released tickets that exist again, because the servers were restored from a copy",
                self._url,
                len(orphans),
            )
            await self._port.call(session, [Delete(path) for path in orphans], deadline=deadline)

    async def _orphans(self, session: Session, node_path: str, deadline: float) -> Sequence[str]:
        _, listed = await self._port.call(session, (Set(node_path, b""), Ephemerals(self._root)), deadline=deadline)
        return self._tasks.orphans_in(session, listed) if isinstance(listed, list) else ()

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        """Two writes, one after the other: session_proof.py explains what they prove. False if the node is missing."""
        connection = session.connection
        proof.record_connection(connection, session.connected_at)
        times = []
        for _ in range(2):
            times.append(self._runtime.now())
            (answer,) = await self._port.call(session, (Set(node_path, b""),), deadline=self._write_deadline(proof))
            if answer is Refusal.NO_NODE:
                return False  # an operator deleted it, or restored data lack it
            if answer is not None:
                raise self._parents.error_for(answer, node_path)
        if connection and session.connection == connection:
            proof.record_pair(connection, times[0], times[1], self._runtime.now())
        return True
