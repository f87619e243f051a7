"""Release and renew tickets on ZooKeeper, and delete the nodes that no holder relies on any more.

release   delete the ticket's node.
renew     write, then check that the node exists. The session keeps the node, and the heartbeat proves that the
session lives: pairs of writes in the background, committed by a quorum, for all tickets (heartbeat.py).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from holdfast.backends.zookeeper.port import Answer, Children, Delete, Refusal, Request, Session, Set
from holdfast.backends.zookeeper.protocol.base import TicketNode, ZookeeperBase, close_reason
from holdfast.backends.zookeeper.protocol.nodes import parse_node, queue_entries
from holdfast.backends.zookeeper.protocol.parents import reason_of
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Claim, LeaseGone, Live
from holdfast.errors import AccessDenied, BackendError, BackendUnavailable

_Request = Callable[[Session, Sequence[str], float], Awaitable[list[Answer]]]  # about some paths of one session


class Leases(ZookeeperBase):
    """Release, renew, and the tasks of the heartbeat."""

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        for claim in claims:
            if claim.nonce in self._unanswered:
                await self._delete_unanswered(claim, deadline)
        known = [self._ticket_nodes.get(claim.nonce) for claim in claims]
        connections = {node.session: node.session.connection for node in known if node is not None}
        answers = await self._for_each_session(known, self._delete, deadline)
        outcomes: list[bool | BackendError] = []
        for claim, ticket_node in zip(claims, known, strict=True):
            answer = answers.get(ticket_node.path, Refusal.NO_NODE) if ticket_node is not None else Refusal.NO_NODE
            if answer is None or answer is Refusal.NO_NODE:
                self._forget(claim)
                outcomes.append(ticket_node is not None and ticket_node.granted and answer is None)
            elif isinstance(answer, BackendError):
                outcomes.append(answer)
            else:
                outcomes.append(self._refusal(answer, ticket_node, "not deleted"))
        for session, connection in connections.items():
            self._heartbeats.check_again(session, connection)
        return outcomes

    async def _delete(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        return await self._port.call(session, [Delete(path) for path in paths], deadline=deadline)

    async def _delete_unanswered(self, claim: Claim, deadline: float) -> None:
        """Delete the node that a create without an answer may have left."""
        session = await self._session_of(claim, deadline)
        connection = session.connection
        lock = self._tree.lock_path(claim.name)
        entries = queue_entries(await self._children_after_write(session, lock, deadline))
        paths = [f"{lock}/{entry.node}" for entry in entries if entry.nonce == claim.nonce]
        if paths:
            await self._delete(session, paths, deadline)
        self._unanswered.pop(claim.nonce, None)
        self._heartbeats.check_again(session, connection)

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        sent = self._runtime.now()
        known = [self._ticket_nodes.get(claim.nonce) for claim in claims]
        answers = await self._for_each_session(known, self._listed_after_write, deadline)
        outcomes: list[Live | LeaseGone | BackendError] = []
        for ticket_node in known:
            if ticket_node is None:
                outcomes.append(LeaseGone())
            elif ticket_node.session.is_closed:
                outcomes.append(LeaseGone(close_reason(ticket_node.session)))
            elif isinstance(answer := answers.get(ticket_node.path), list):
                ticket_node.deadline = max(ticket_node.deadline, self._deadline(ticket_node, sent))
                outcomes.append(Live(ticket_node.deadline))
            elif isinstance(answer, BackendError):
                outcomes.append(answer)
            elif answer is Refusal.NO_RIGHT:  # the node may exist
                outcomes.append(self._refusal(answer, ticket_node, "not renewed"))
            else:
                outcomes.append(LeaseGone())
        return outcomes

    def _refusal(self, answer: Answer, ticket_node: TicketNode | None, problem: str) -> BackendError:
        error = self._parents.error_for(answer, ticket_node.path) if ticket_node is not None else None
        if isinstance(error, AccessDenied):
            return error
        return BackendUnavailable(backend=self.url, problem=f"{problem}: {reason_of(answer)}")

    async def _listed_after_write(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        """The children of tickets' nodes, which have none: an empty list proves that the node exists.

        The write before the listings makes the server apply everything that was committed before it. Without it, a
        server that is cut off from the leader would show a node forever that an operator has deleted. Its answer does
        not matter: a refused write is ordered by the leader too.
        """
        requests: list[Request] = [Set(self._heartbeats.node_path(session), b""), *map(Children, paths)]
        _, *answers = await self._port.call(session, requests, deadline=deadline)
        return answers

    def _deadline(self, ticket_node: TicketNode, sent: float) -> float:
        """The end of the ttl, or the time until which the session is proven to live, if that is earlier."""
        return min(lease_deadline(sent, ticket_node.claim.ttl, 0.0), self._heartbeats.proven(ticket_node.session))

    async def _for_each_session(
        self, ticket_nodes: Sequence[TicketNode | None], request: _Request, deadline: float
    ) -> dict[str, Answer | BackendError]:
        """By path: the answer for each node, or the error of its session. Nodes of closed sessions are left out.

        Each session gets its share of the time, so that a server that does not answer does not delay other sessions.
        """
        by_session: dict[Session, list[str]] = {}
        for ticket_node in ticket_nodes:
            if ticket_node is not None and not ticket_node.session.is_closed:
                by_session.setdefault(ticket_node.session, []).append(ticket_node.path)
        answers: dict[str, Answer | BackendError] = {}
        for number, (session, paths) in enumerate(by_session.items()):
            now = self._runtime.now()
            limit = now + (deadline - now) / (len(by_session) - number)
            try:
                if await self._heartbeats.reopen(session, limit) is session:
                    answers.update(zip(paths, await request(session, paths, limit), strict=True))
            except BackendError as error:
                if len(by_session) == 1:
                    raise
                answers.update((path, error) for path in paths)
        return answers

    # ── tasks of the heartbeat ───────────────────────────────────────────────────────────────────────────────────

    def is_needed(self, session: Session) -> bool:
        ticket_nodes, unanswered = list(self._ticket_nodes.values()), list(self._unanswered.values())
        return session in unanswered or any(node.session is session for node in ticket_nodes)

    def release_later(self, claim: Claim) -> None:
        if claim.nonce in self._ticket_nodes or claim.nonce in self._unanswered:
            self._released_later[claim.nonce] = claim

    async def sweep(self, session: Session, deadline: float) -> None:
        """Delete the nodes of leases that were dropped: they were not renewed, and their deadlines have passed.

        Also release the tickets for which the engine could not start a thread.
        """
        for claim in list(self._released_later.values()):
            try:
                (answer,) = await self.release([claim], deadline=deadline)
            except BackendError:
                return  # the next heartbeat tries again
            if not isinstance(answer, BackendError):
                self._released_later.pop(claim.nonce, None)
        now = self._runtime.now()
        for ticket_node in list(self._ticket_nodes.values()):
            is_closed = ticket_node.session.is_closed
            if (ticket_node.session is session or is_closed) and ticket_node.granted and ticket_node.kept_until < now:
                try:
                    if not is_closed:
                        await self._delete(session, [ticket_node.path], deadline)
                    self._forget(ticket_node.claim)
                except BackendError:
                    return  # the next heartbeat tries again

    def next_sweep(self, session: Session) -> float:
        now = self._runtime.now()
        granted = [node for node in list(self._ticket_nodes.values()) if node.session is session and node.granted]
        return min((node.kept_until for node in granted if node.kept_until > now), default=math.inf)

    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        """The ephemeral nodes of the session, among these, that belong to no ticket of this client.

        Servers that were restored from a copy can have a node again that was released after the copy was made. If they
        have the session too, it would keep that node. A node of a request without an answer is no orphan.
        `_unanswered` is read before `_ticket_nodes`, because an answer moves a ticket from the first to the second.
        """
        orphans: list[str] = []
        for path in paths:
            entry = parse_node(path.rpartition("/")[2])
            if entry is None or not entry.nonce or entry.nonce in self._unanswered:
                continue
            ticket_node = self._ticket_nodes.get(entry.nonce)
            if ticket_node is None or ticket_node.session is not session or ticket_node.path != path:
                orphans.append(path)
        return orphans
