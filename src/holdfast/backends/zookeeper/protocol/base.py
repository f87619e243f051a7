"""State and mechanisms that all verbs of the ZooKeeper backend share: ticket nodes, sessions, watches, closing.

leases.py adds release and renew, queue.py acquire, acquire_all.py several locks at once, backend.py operators,
registers and records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, ClassVar, TypeVar

from holdfast.backends.zookeeper.port import Children, Get, Session, ZookeeperPort
from holdfast.backends.zookeeper.protocol import nodes
from holdfast.backends.zookeeper.protocol.fences import Fences
from holdfast.backends.zookeeper.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.zookeeper.protocol.heartbeat import Heartbeats, HeartbeatTasks
from holdfast.backends.zookeeper.protocol.parents import Parents
from holdfast.backends.zookeeper.protocol.records import Records
from holdfast.backends.zookeeper.protocol.registers import Registers
from holdfast.backends.zookeeper.protocol.tree import Tree
from holdfast.core.clock import before_delay
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Claim, Notification
from holdfast.errors import BackendError
from holdfast.guarantees import FenceOrder, Guarantees

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.core.ports import Runtime

# A share of the session's timeout. At any time half of the timeout is proven, and half of that is for the holder.
DELAY_SHARE = 0.25
SESSION_CLOSED = "the session with ZooKeeper is closed: it expired, or was closed"
ROLLED_BACK = "the session with ZooKeeper is closed: the servers have older data than this client has seen"
CONNECTIONS_MAX = 3  # connections on which a request is tried, if each is lost before the answer

Watch = tuple[Session, type[Children | Get], str]
T = TypeVar("T")


class TicketNode:
    """The node of a ticket, as far as this client knows it."""

    __slots__ = ("claim", "czxid", "deadline", "granted", "number", "path", "session", "waited")

    def __init__(self, claim: Claim, session: Session, path: str, czxid: int) -> None:
        self.claim = claim
        self.session = session
        self.path = path
        self.czxid = czxid
        entry = nodes.parse_node(path.rpartition("/")[2])
        self.number = 0 if entry is None else entry.number
        self.granted = False
        self.waited = False
        self.deadline = 0.0  # the latest deadline that was returned for it: no holder relies on it longer

    @property
    def kept_until(self) -> float:
        """When a node that is not released may be deleted: after the holder's deadline and the lock's delay."""
        return before_delay(self.deadline, self.claim.delay) + self.claim.delay


class ZookeeperBase(HeartbeatTasks):
    """The tickets, sessions and watches of one client."""

    lacks = LACKS
    liveness_fds: tuple[int, ...] = ()  # the ensemble sees only the connection of this process
    heartbeats_type: ClassVar[type[Heartbeats]] = Heartbeats

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        self.url = config.url
        self._layout = config.layout
        self._port = port
        self._runtime = runtime
        self._wakeups = Wakeups(runtime)
        self._mutex = runtime.mutex()
        self._ticket_nodes: dict[str, TicketNode] = {}  # by nonce
        # By nonce: the session of a create that has no answer yet, or never got one. Its node may exist.
        self._unanswered: dict[str, Session] = {}
        self._released_later: dict[str, Claim] = {}  # tickets that the heartbeat of their session has to release
        self._watched: dict[Watch, list[str]] = {}  # watches that are set, and the nonces of their waiters, in order
        self._gone: Callable[[Hashable, str], None] = lambda *_: None
        self._fences = Fences(config.url)
        self._parents = Parents(config.url)
        self._tree = Tree(config, port, self._parents)
        self._registers = Registers(config.url, config.root, port, runtime, self._parents)
        self._records = Records(config.url, config.root, port, runtime, self._parents)
        self._heartbeats = self.heartbeats_type(config, port, self._parents, runtime, self)
        port.on_events(self._on_watch, self._on_session_change)

    @property
    def guarantees(self) -> Guarantees:
        return GUARANTEES._replace(fence=FenceOrder.BEST_EFFORT) if self._fences.problem else GUARANTEES

    @property
    def warnings(self) -> tuple[str, ...]:
        late = tuple(
            f"{self.url}: the servers end the session of a dead holder after {timeout:g} s, so its lock is free later "
            f"than its ttl of {ttl:g} s says (minSessionTimeout, session_timeout=, or more than three ttls in use)"
            for timeout, ttl in self._heartbeats.late_timeouts()
        )
        return (*late, self._fences.problem) if self._fences.problem else late

    def intact(self, store: Hashable) -> bool:
        return not getattr(store, "is_closed", False)

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        self._gone = report

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _retry_on_reconnect(
        self, open_session: Callable[[], Awaitable[Session]], work: Callable[[Session], Awaitable[T]], deadline: float
    ) -> T:
        """The result of `work`, if necessary on the next connection or in the next session.

        A process that was paused may find its connection or its session closed by the servers. That does not mean that
        the servers are unavailable, so the request is repeated while there is time.
        """
        for _ in range(CONNECTIONS_MAX - 1):
            session = await open_session()
            connection = session.connection
            try:
                return await work(session)
            except BackendError:
                is_lost = session.is_closed or session.connection != connection
                if not is_lost or self._runtime.now() >= deadline:
                    raise
        return await work(await open_session())

    async def _session_of(self, claim: Claim, deadline: float) -> Session:
        """The session that the ticket's node belongs to, or may belong to.

        A listing is certain to show such a node only if it follows the create in the same session.
        """
        ticket_node = self._ticket_nodes.get(claim.nonce)
        session = self._unanswered.get(claim.nonce) if ticket_node is None else ticket_node.session
        if session is not None and not session.is_closed:
            return await self._heartbeats.reopen(session, deadline)
        return await self._heartbeats.open(session_timeout(claim), deadline)

    async def _children_after_write(self, session: Session, lock: str, deadline: float) -> list[str]:
        """The children of a lock's node, including every node that this client has created on any server.

        After a move to another server, that server may lag behind what the first one did for us. The write before the
        listing makes it apply everything that was committed before. The leader refuses requests of the session that
        are still on their way from the first server.
        """
        write = self._parents.create_request(lock)  # in most cases it exists
        _, children = await self._port.call(session, (write, Children(lock)), deadline=deadline)
        return self._tree.children_of(children)

    def _forget(self, claim: Claim) -> None:
        self._ticket_nodes.pop(claim.nonce, None)
        self._wakeups.forget(claim)

    # ── events of the port ───────────────────────────────────────────────────────────────────────────────────────

    def _on_watch(self, session: Session, path: str) -> None:
        self._wake_watchers((session, Children, path))
        self._wake_watchers((session, Get, path))

    def _wake_watchers(self, watch: Watch) -> None:
        with self._mutex:
            waiting = self._watched.pop(watch, ())
        for nonce in waiting:
            self._wakeups.wake(Notification(nonce))

    def _on_session_change(self, session: Session) -> None:
        """A session or its connection was opened or closed, which drops its watches: all waiters poll."""
        with self._mutex:
            self._forget_watches(session)
        self._wakeups.wake_all()
        self._heartbeats.changed(session)
        if session.is_closed:
            self._fences.observe(session.seen)
            self._gone(session, close_reason(session))  # last, because the callback may take long

    def _forget_watches(self, session: Session) -> None:
        self._watched = {watch: waiting for watch, waiting in self._watched.items() if watch[0] is not session}

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        self._heartbeats.close()
        self._wakeups.wake_all()
        # A lease that was lost and not released blocks the lock for its delay, so its session must not be closed.
        is_delayed = any(node.granted and node.claim.delay for node in list(self._ticket_nodes.values()))
        await self._port.close(keeps_session=is_delayed)

    def without_loop(self) -> None:
        self._port.without_loop()

    def abandon(self) -> None:
        self._heartbeats.abandon()
        self._port.abandon()


def close_reason(session: Session) -> str:
    return ROLLED_BACK if session.rolled_back else SESSION_CLOSED


def session_timeout(claim: Claim) -> float:
    """Seconds that a session has to outlive its client: the ticket's ttl, and enough for the lock's delay."""
    return max(claim.ttl, claim.delay / DELAY_SHARE)
