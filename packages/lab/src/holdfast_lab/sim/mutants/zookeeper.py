"""Mutants of the ZooKeeper protocol, each with one bug: some from libraries in use, some from earlier versions.

STAGED are mutants that need several events at once, which random worlds rarely have, and one that breaks no guarantee
but wakes all waiters. test_zookeeper_worlds.py has scenarios for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.backends.zookeeper.port import Children, Get, Refusal, Set
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.backends.zookeeper.protocol.base import TicketNode
from holdfast.backends.zookeeper.protocol.heartbeat import Heartbeats
from holdfast.backends.zookeeper.protocol.nodes import QueueEntry
from holdfast.errors import BackendError, BackendUnavailable
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast_lab.sim.servers.zookeeper.port import SimPort

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.backends.zookeeper.port import Answer, Session, ZookeeperPort
    from holdfast.backends.zookeeper.protocol.session_proof import SessionProof
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim, Granted, Waiting
    from holdfast_lab.sim.servers.zookeeper.ensemble import Member
    from holdfast_lab.sim.servers.zookeeper.port import SimSession


def _with(backend: Callable[..., Any]) -> type[ZookeeperServer]:
    return type("Mutated", (ZookeeperServer,), {"backend": backend})


class PingsOnly(Heartbeats):
    """Like libraries that rely on the driver: an answer of the client's own server counts as proof."""

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        sent = self._runtime.now()
        await self._port.call(session, (Get(node_path),), deadline=sent + proof.pause)
        proof._timer_started = max(proof._timer_started, sent)
        return True


class PingAsRenewal(ZookeeperBackend):
    heartbeats_type = PingsOnly


class SingleWrites(Heartbeats):
    """Writes three times in a timeout, and counts from the last committed write, minus a tick."""

    tick = 0.25

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        sent = self._runtime.now()
        proof.pause = proof.timeout / 3
        await self._port.call(session, (Set(node_path, b""),), deadline=sent + proof.pause)
        proof._timer_started = max(proof._timer_started, sent - self.tick)
        return True


class OneWriteIsProof(ZookeeperBackend):
    heartbeats_type = SingleWrites


class NodeOfOldSession(ZookeeperBackend):
    """Like Curator's protection once: a node with our nonce counts, in any session."""

    def _is_current(self, entry: QueueEntry, session: Session) -> bool:
        return True


class UnansweredDeleteIsRelease(ZookeeperBackend):
    """Like kazoo's Lock: a failed delete is not reported."""

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        try:
            return await super().release(claims, deadline=deadline)
        except BackendError:
            return [True] * len(claims)


class ChildrenSortedByName(ZookeeperBackend):
    """Sorts the children by name."""

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        own = ticket_node.path.rpartition("/")[2]
        return sorted(entry for entry in ordered if entry.node < own)


class NumbersAsText(ZookeeperBackend):
    """Sorts the children by number, but as text."""

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        return [entry for entry in ordered if f"{entry.number:010d}" < f"{ticket_node.number:010d}"]


class NothingChanged(ZookeeperBackend):
    """Reports that nothing was changed, because the request that failed changed nothing."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        session = await self._session_of(claim, deadline)
        return await self._try_acquire(claim, session, queue=queue, deadline=deadline)


class SearchesLaggingServer(ZookeeperBackend):
    """Searches for the node of an unanswered create on any server, which may not have applied it yet."""

    async def _children_after_write(self, session: Session, lock: str, deadline: float) -> list[str]:
        return await self._tree.children(session, lock, deadline)

    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        return []  # otherwise the next connection deletes the node that was not found


class RenewsByStaleRead(ZookeeperBackend):
    """Renews by a read alone. A server that is cut off from the leader answers it without knowing of a break."""

    async def _listed_after_write(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        return await self._port.call(session, [Children(path) for path in paths], deadline=deadline)


class SessionsOfThirtySeconds(ZookeeperBackend):
    """An earlier version: the session of a dead holder does not end with the ttl."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(replace(config, session_timeout=30.0), port, runtime)


class EndReportedAtRenewal(ZookeeperBackend):
    """Knows that a session is closed, but reports the loss of its leases only at their renewal."""

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        pass


class ForgetsWithoutThread(ZookeeperBackend):
    """Keeps the session, and with it the node of a ticket that the keeper could not release for lack of a thread."""

    def release_later(self, claim: Claim) -> None:
        pass


class AcquireFailsWithSession(ZookeeperBackend):
    """Treats a closed session as an outage of the servers."""

    async def _retry_on_reconnect(self, open_session: Any, work: Any, deadline: float) -> Any:
        return await work(await open_session())


class TriesTheSameSession(SimPort):
    """Like kazoo: a server that closes the connection may lag behind, so it tries again forever."""

    async def _rolled_back(self, member: Member, session: SimSession, deadline: float) -> bool:
        return False


class RetriesEndedSession(ZookeeperBackend):
    def __init__(self, config: ZookeeperConfig, port: SimPort, runtime: Runtime) -> None:
        port.__class__ = TriesTheSameSession
        super().__init__(config, port, runtime)


class OwnNodeForGood(Heartbeats):
    """Assumes that a node that was created once exists."""

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        if not await super()._write_pair(session, proof, node_path):
            raise BackendUnavailable(backend=self._url, problem="no such node")
        return True


class OwnNodeNotRecreated(ZookeeperBackend):
    heartbeats_type = OwnNodeForGood


class RootNotRecreated(ZookeeperBackend):
    """Assumes that the root node exists forever, once something was created below it."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        missed = self._parents.handle_missing

        def mistaken(path: str, answers: Sequence[Answer]) -> None:
            if Refusal.NO_NODE not in answers:
                missed(path, answers)

        self._parents.handle_missing = mistaken  # type: ignore[method-assign]


class LeaseWithoutProof(ZookeeperBackend):
    """Grants a lease that ends before more of its session can be proven."""

    def _wait_for_proof(self, ticket_node: TicketNode, *, queue: bool) -> Waiting | None:
        return None


class FencesGoBackUnreported(ZookeeperBackend):
    """Grants fences that are smaller than earlier ones, without a warning."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        self._fences.check_fence = lambda *_: None  # type: ignore[method-assign]  # the mistake


class AllWatchTheHolder(ZookeeperBackend):
    """Correct, but wakes all waiters at each release; test_zookeeper_worlds.py counts the polls."""

    def _watch(self, lock: str, claim: Claim, ahead: Sequence[QueueEntry], blocker: QueueEntry) -> Children | Get:
        return Children(f"{lock}/{ahead[0].node}", watch=True)


class KeepsRestoredTickets(ZookeeperBackend):
    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        return []


class ChecksOnceOnAConnection(Heartbeats):
    def check_again(self, session: Session, connection: int) -> None:
        return


class CheckedDuringARelease(ZookeeperBackend):
    heartbeats_type = ChecksOnceOnAConnection


ZOOKEEPER = [
    Mutant(
        name="unanswered-delete-is-release",
        mistake="a ticket whose delete had no answer is reported as released",
        backend="zookeeper",
        server=_with(UnansweredDeleteIsRelease),
        kinds=frozenset({"lose_request", "lose_reply"}),
    ),
    Mutant(
        name="children-sorted-by-name",
        mistake="children are ordered by their whole names",
        backend="zookeeper",
        server=_with(ChildrenSortedByName),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="numbers-as-text",
        mistake="the numbers of nodes are compared as text, which fails when they wrap around",
        backend="zookeeper",
        server=_with(NumbersAsText),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="searches-lagging-server",
        mistake="the node of an unanswered create is searched on a server that may lag behind",
        backend="zookeeper",
        server=_with(SearchesLaggingServer),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="nothing-changed-after-create",
        mistake="an acquire that created its node, and then failed, reports that nothing was changed",
        backend="zookeeper",
        server=_with(NothingChanged),
        kinds=frozenset({"slow", "refuse", "drop"}),
    ),
    Mutant(
        name="renews-by-stale-read",
        mistake="a lease is renewed because the client's own server, which may be cut off, still shows its node",
        backend="zookeeper",
        server=_with(RenewsByStaleRead),
        kinds=frozenset({"break_lock", "stall"}),
    ),
    Mutant(
        name="session-longer-than-ttl",
        mistake="every session lasts 30 s, so a dead holder keeps its lock for longer than its ttl",
        backend="zookeeper",
        server=_with(SessionsOfThirtySeconds),
        kinds=frozenset({"crash"}),
    ),
    Mutant(
        name="no-thread-no-release",
        mistake="a release for which no thread can be started waits for the next use, while the session lives",
        backend="zookeeper",
        server=_with(ForgetsWithoutThread),
        kinds=frozenset({"no_thread", "lose_reply"}),
    ),
    Mutant(
        name="restored-tickets-stay",
        mistake="a released ticket exists again after a restore, and its session, which exists too, keeps it",
        backend="zookeeper",
        server=_with(KeepsRestoredTickets),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="retries-ended-session",
        mistake="a client whose servers were restored from older data tries forever to continue its session",
        backend="zookeeper",
        server=_with(RetriesEndedSession),
        kinds=frozenset({"lose_data", "old_data"}),
    ),
]

# Not in MUTANTS, which random and small worlds have to find.
STAGED = [
    Mutant(
        name="checked-during-a-release",
        mistake="a restored node stays, because nodes and tickets were compared while its release waited for an answer",
        backend="zookeeper",
        server=_with(CheckedDuringARelease),
    ),
    Mutant(
        name="ping-as-renewal",
        mistake="an answer of the client's own server counts as proof that the session lives",
        backend="zookeeper",
        server=_with(PingAsRenewal),
    ),
    Mutant(
        name="one-write-is-proof",
        mistake="the deadline is counted from the last committed write, minus a tick",
        backend="zookeeper",
        server=_with(OneWriteIsProof),
    ),
    Mutant(
        name="node-of-old-session",
        mistake="the node of an unanswered create is used although it belongs to an older session",
        backend="zookeeper",
        server=_with(NodeOfOldSession),
    ),
    Mutant(
        name="end-reported-at-renewal",
        mistake="the end of a session is known, but its leases are reported as lost only at their renewal",
        backend="zookeeper",
        server=_with(EndReportedAtRenewal),
    ),
    Mutant(
        name="acquire-fails-with-session",
        mistake="an acquire fails because the servers have closed the session, although they would open another",
        backend="zookeeper",
        server=_with(AcquireFailsWithSession),
    ),
    Mutant(
        name="own-node-not-recreated",
        mistake="a client whose own node was deleted, or is missing after a restore, reconnects endlessly",
        backend="zookeeper",
        server=_with(OwnNodeNotRecreated),
    ),
    Mutant(
        name="root-not-recreated",
        mistake="a deleted root node is not created again for a lock that is new to the client",
        backend="zookeeper",
        server=_with(RootNotRecreated),
    ),
    Mutant(
        name="lease-without-proof",
        mistake="a waiter that was paused gets a lease for the short time that is proven, and cannot renew it",
        backend="zookeeper",
        server=_with(LeaseWithoutProof),
    ),
    Mutant(
        name="fences-go-back-unreported",
        mistake="fences go back, and neither warnings nor guarantees report it",
        backend="zookeeper",
        server=_with(FencesGoBackUnreported),
    ),
    Mutant(
        name="all-watch-the-holder",
        mistake="all waiters watch the holder, so all of them poll at each hand-over",
        backend="zookeeper",
        server=_with(AllWatchTheHolder),
    ),
]
