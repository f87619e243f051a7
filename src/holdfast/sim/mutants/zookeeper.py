"""The zookeeper protocol with one bug each: what libraries that people use today got wrong, and what we nearly did.

STAGED are those that need several things at once which chance hardly brings together, or break no promise but are a
herd: test_zookeeper_worlds.py has their scenes.
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
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast.sim.servers.zookeeper.port import SimPort

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.backends.zookeeper.port import Answer, Session, ZookeeperPort
    from holdfast.backends.zookeeper.protocol.session_proof import SessionProof
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Granted, Ticket, Waiting
    from holdfast.sim.servers.zookeeper.ensemble import Member
    from holdfast.sim.servers.zookeeper.port import SimSession


def _with(backend: Callable[..., Any]) -> type[ZookeeperServer]:
    return type("Mutated", (ZookeeperServer,), {"backend": backend})


class PingsOnly(Heartbeats):
    """As every library does that leaves it to its driver: the own server has answered, so the session lives."""

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        sent = self._runtime.now()
        await self._port.call(session, (Get(node_path),), deadline=sent + proof.pause)
        proof._timer_started = max(proof._timer_started, sent)
        return True


class PingAsRenewal(ZookeeperBackend):
    heartbeats_type = PingsOnly


class SingleWrites(Heartbeats):
    """Writes three times in a timeout, and counts from the last write that was committed, less a tick."""

    tick = 0.25

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        sent = self._runtime.now()
        proof.pause = proof.timeout / 3
        await self._port.call(session, (Set(node_path, b""),), deadline=sent + proof.pause)
        proof._timer_started = max(proof._timer_started, sent - self.tick)
        return True


class OneWriteIsProof(ZookeeperBackend):
    heartbeats_type = SingleWrites


class OldNodeReused(ZookeeperBackend):
    """As Curator's protection did: a node with our nonce is ours, whichever session it goes with."""

    def _is_current(self, one: QueueEntry, session: Session) -> bool:
        return True


class CleanUpSwallowed(ZookeeperBackend):
    """As kazoo's Lock does: best effort, and no word about it."""

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        try:
            return await super().release(tickets, deadline=deadline)
        except BackendError:
            return [True] * len(tickets)


class NamesInOrder(ZookeeperBackend):
    """Sorts the children as they are called."""

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        node_path = ticket_node.path.rpartition("/")[2]
        return sorted(one for one in ordered if one.node < node_path)


class NumbersAsText(ZookeeperBackend):
    """Sorts them by their numbers, but as text."""

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        return [one for one in ordered if f"{one.number:010d}" < f"{ticket_node.number:010d}"]


class NothingChanged(ZookeeperBackend):
    """Says that nothing was changed, because nothing was by the request that failed."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        session = await self._session_of(ticket, deadline)
        return await self._try_acquire(ticket, session, queue=queue, deadline=deadline)


class SearchesLaggingServer(ZookeeperBackend):
    """Looks for what a lost create has left on whatever server it finds, which may not have heard of it yet."""

    async def _children_after_write(self, session: Session, lock: str, deadline: float) -> list[str]:
        return await self._tree.children(session, lock, deadline)

    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        return []  # else the next connection deletes the node that was not found


class RenewsByStaleRead(ZookeeperBackend):
    """Renews by a read alone, which a server answers that is cut off from the leader and does not know of a break."""

    async def _listed_after_write(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        return await self._port.call(session, [Children(path) for path in paths], deadline=deadline)


class SessionsOfThirtySeconds(ZookeeperBackend):
    """As it was: the ttl has nothing to do with when a dead holder's lock is free."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(replace(config, session_timeout=30.0), port, runtime)


class EndReportedAtRenewal(ZookeeperBackend):
    """Knows that a session is over, and does not report the loss of its leases before they are to be renewed."""

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        pass


class ForgetsWithoutThread(ZookeeperBackend):
    """Keeps the session, and with it the node of a release that the keeper has no thread for."""

    def release_later(self, ticket: Ticket) -> None:
        pass


class FailsWithItsSession(ZookeeperBackend):
    """Takes the end of a session for an outage of the servers."""

    async def _retry_on_reconnect(self, open_session: Any, work: Any, deadline: float) -> Any:
        return await work(await open_session())


class TriesTheSameSession(SimPort):
    """As kazoo does: a server that closes the connection may lag behind, so it is asked again, for ever."""

    async def _rolled_back(self, member: Member, session: SimSession, deadline: float) -> bool:
        return False


class StuckWithItsSession(ZookeeperBackend):
    def __init__(self, config: ZookeeperConfig, port: SimPort, runtime: Runtime) -> None:
        port.__class__ = TriesTheSameSession
        super().__init__(config, port, runtime)


class OwnNodeForGood(Heartbeats):
    """Takes a node that was made once for one that is there."""

    async def _write_pair(self, session: Session, proof: SessionProof, node_path: str) -> bool:
        if not await super()._write_pair(session, proof, node_path):
            raise BackendUnavailable(backend=self._url, problem="no such node")
        return True


class OwnNodeNotMadeAgain(ZookeeperBackend):
    heartbeats_type = OwnNodeForGood


class RootTakenForGranted(ZookeeperBackend):
    """Believes in the root node for ever, once something was created below it."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        missed = self._parents.handle_missing

        def mistaken(path: str, answers: Sequence[Answer]) -> None:
            if Refusal.NO_NODE not in answers:
                missed(path, answers)

        self._parents.handle_missing = mistaken  # type: ignore[method-assign]


class LeaseWithoutProof(ZookeeperBackend):
    """Grants a lease although it ends before more of its session can be proven."""

    def _wait_for_proof(self, ticket_node: TicketNode, *, queue: bool) -> Waiting | None:
        return None


class SilentAboutFences(ZookeeperBackend):
    """Gives fences that are smaller than those before, as if nothing had happened."""

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        super().__init__(config, port, runtime)
        self._fences.check_fence = lambda *_: None  # type: ignore[method-assign]  # the mistake


class AllWatchTheFirst(ZookeeperBackend):
    """Correct, and a herd: test_zookeeper_worlds.py counts."""

    def _watch(self, lock: str, ticket: Ticket, ahead: Sequence[QueueEntry], blocker: QueueEntry) -> Children | Get:
        return Children(f"{lock}/{ahead[0].node}", watch=True)


class KeepsRestoredTickets(ZookeeperBackend):
    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        return []


ZOOKEEPER = [
    Mutant(
        name="clean-up-swallowed",
        mistake="a ticket whose delete got no answer is said to be gone",
        backend="zookeeper",
        server=_with(CleanUpSwallowed),
        kinds=frozenset({"lose_request", "lose_reply"}),
    ),
    Mutant(
        name="names-in-order",
        mistake="children are ordered by their whole names",
        backend="zookeeper",
        server=_with(NamesInOrder),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="numbers-as-text",
        mistake="the numbers of nodes are compared as text, which goes wrong where they go round",
        backend="zookeeper",
        server=_with(NumbersAsText),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="looks-where-it-lags",
        mistake="a lost create's node is looked for on a server that may lag behind, and no connection checks nodes",
        backend="zookeeper",
        server=_with(SearchesLaggingServer),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="nothing-changed-after-create",
        mistake="an enter that made its node, and then could not be answered, says that nothing was changed",
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
        mistake="a release that no thread can be started for waits for the next use, and the session lives on",
        backend="zookeeper",
        server=_with(ForgetsWithoutThread),
        kinds=frozenset({"no_thread", "lose_reply"}),
    ),
    Mutant(
        name="restored-tickets-stay",
        mistake="a released ticket that restored servers have again is kept by the session, which they have too",
        backend="zookeeper",
        server=_with(KeepsRestoredTickets),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="stuck-with-its-session",
        mistake="a client whose servers came back with older data tries to go on with its session, for ever",
        backend="zookeeper",
        server=_with(StuckWithItsSession),
        kinds=frozenset({"lose_data", "old_data"}),
    ),
]

# Not among MUTANTS, which chance and small worlds have to find.
STAGED = [
    Mutant(
        name="ping-as-renewal",
        mistake="the session is believed to live because the client's own server has answered",
        backend="zookeeper",
        server=_with(PingAsRenewal),
    ),
    Mutant(
        name="one-write-is-proof",
        mistake="the deadline is counted from the last write that was committed, less a tick",
        backend="zookeeper",
        server=_with(OneWriteIsProof),
    ),
    Mutant(
        name="old-session-s-node",
        mistake="a node that a lost create has left is used although it goes with an older session",
        backend="zookeeper",
        server=_with(OldNodeReused),
    ),
    Mutant(
        name="end-reported-at-renewal",
        mistake="the end of a session is known, and its leases are reported as lost only when they are to be renewed",
        backend="zookeeper",
        server=_with(EndReportedAtRenewal),
    ),
    Mutant(
        name="fails-with-its-session",
        mistake="an acquire fails because the servers have ended the session, although they would open another",
        backend="zookeeper",
        server=_with(FailsWithItsSession),
    ),
    Mutant(
        name="own-node-not-made-again",
        mistake="a client whose own node was deleted, or is not in restored data, connects again and again",
        backend="zookeeper",
        server=_with(OwnNodeNotMadeAgain),
    ),
    Mutant(
        name="root-taken-for-granted",
        mistake="the root node that was deleted is not created again for a lock that is new to the client",
        backend="zookeeper",
        server=_with(RootTakenForGranted),
    ),
    Mutant(
        name="lease-without-proof",
        mistake="a waiter that was paused gets a lease for the little that was proven before, and cannot renew it",
        backend="zookeeper",
        server=_with(LeaseWithoutProof),
    ),
    Mutant(
        name="silent-about-fences",
        mistake="fences begin again below those before, and neither warnings nor guarantees say so",
        backend="zookeeper",
        server=_with(SilentAboutFences),
    ),
    Mutant(
        name="all-watch-the-first",
        mistake="who waits watches the holder: all of them look at each hand-over",
        backend="zookeeper",
        server=_with(AllWatchTheFirst),
    ),
]
