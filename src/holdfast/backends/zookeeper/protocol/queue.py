"""Acquire one lock on ZooKeeper: each ticket is an ephemeral sequential node, and the first one holds the lock.

    create a node below the lock's node and list its children, in one round trip
        granted   if the rule says so, given the nodes with smaller numbers
        waiting   otherwise: watch the nearest node that blocks, and poll when it is deleted

A node counts for a ticket only if its name has the ticket's nonce *and* the session that is open now, because a node of
an older session may vanish at any moment. A listing can be out of date, but it cannot lack a node ahead of ours: it
shows our own node, so it shows all nodes that were created before it. It can only show nodes that are deleted by now.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.zookeeper.port import Children, Create, Created, Delete, Get, Node, Refusal, Session, Set
from holdfast.backends.zookeeper.protocol.base import DELAY_SHARE, SESSION_CLOSED, TicketNode
from holdfast.backends.zookeeper.protocol.leases import Leases
from holdfast.backends.zookeeper.protocol.nodes import QueueEntry, node_prefix, queue_entries, sequence_distance
from holdfast.backends.zookeeper.protocol.parents import ATTEMPTS_MAX
from holdfast.backends.zookeeper.protocol.ticket_values import encode_value, holder_name
from holdfast.core.clock import before_delay
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, Waiting, first_blocker, may_have_happened
from holdfast.errors import (
    BackendUnavailable,
    ConfigurationError,
    LimitConflict,
    OutcomeUnknown,
)

# The second in the queue polls often too: if the first one is stopped when the lock is free, it is the next to notice.
_POLL_OFTEN = 2
# Seconds, for all others. A watch is lost only with its connection, and then all waiters poll.
_POLL_INTERVAL_BEHIND = 10.0
# A share of the session's timeout by which a new lease outlasts the next proof, so that it can be renewed then.
_SPARE_SHARE = 1 / 12


class Queue(Leases):
    """Acquire one lock, or wait for it."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            # It can be repeated, because the nonce identifies the attempt.
            return await self._retry_on_reconnect(
                lambda: self._session_of(claim, deadline),
                lambda session: self._try_acquire(claim, session, queue=queue, deadline=deadline),
                deadline,
            )
        except BackendUnavailable as error:
            # The error is about one request of several. If the ticket has a node, or may have one, something changed.
            if claim.nonce in self._ticket_nodes or claim.nonce in self._unanswered:
                raise OutcomeUnknown(backend=self.url, problem=error.problem) from error
            raise
        except ConfigurationError:
            # The engine does not release this ticket, so the sweep has to delete its node.
            ticket_node = self._ticket_nodes.get(claim.nonce)
            if ticket_node is not None:
                ticket_node.deadline, ticket_node.granted = 0.0, True
            raise

    async def _try_acquire(self, claim: Claim, session: Session, *, queue: bool, deadline: float) -> Granted | Waiting:
        self._check_delay(claim, session)
        lock = self._tree.lock_path(claim.name)
        nonce = claim.nonce
        while True:
            sent = self._runtime.now()
            ticket_node = self._ticket_nodes.get(nonce)
            if ticket_node is not None and ticket_node.session is not session:
                self._forget(claim)  # the node ended with its session, so the place in the queue is lost
                if ticket_node.session.rolled_back:
                    self._unanswered[nonce] = session  # restored data may have the node: it is searched and deleted
                ticket_node = None
            if ticket_node is not None:
                children = await self._tree.children(session, lock, deadline)
            elif nonce in self._unanswered or not queue:
                list_children = self._children_after_write if nonce in self._unanswered else self._tree.children
                entries = queue_entries(await list_children(session, lock, deadline))
                ticket_node = await self._find_own_node(claim, session, lock, entries, deadline)
                if ticket_node is None:
                    blocker = self._blocker(claim, [entry for entry in entries if entry.nonce != nonce])
                    if blocker is not None and not queue:
                        holder = await self._holder(session, f"{lock}/{entries[0].node}", deadline)
                        return Waiting(POLL_INTERVAL, holder)
                    ticket_node, children = await self._create(claim, session, lock, deadline, waits=queue)
                else:
                    children = [entry.node for entry in entries]
            else:
                ticket_node, children = await self._create(claim, session, lock, deadline, waits=queue)
            outcome = await self._decide(ticket_node, lock, children, sent, queue=queue, deadline=deadline)
            if outcome is not None:
                return outcome

    async def _create(
        self, claim: Claim, session: Session, lock: str, deadline: float, *, waits: bool
    ) -> tuple[TicketNode, list[str]]:
        create = self._create_request(claim, session, lock, waits=waits)
        for _ in range(ATTEMPTS_MAX):
            # Missing parents are created in the same round trip, so that tasks that start together keep their order.
            parents, greatest = self._parents.create_requests_if_unknown(lock), self._fences.greatest
            self._unanswered[claim.nonce] = session
            try:
                answers = await self._port.call(session, (*parents, create, Children(lock)), deadline=deadline)
            except BaseException as error:
                self._clear_refused(error, claim)
                raise
            created, children = answers[-2:]
            if isinstance(created, Created):
                ticket_node = self._created(claim, session, lock, created, greatest)
                return ticket_node, self._tree.children_of(children)
            self._unanswered.pop(claim.nonce, None)
            if created is not Refusal.NO_NODE:
                raise self._parents.error_for(created, lock)
            self._parents.handle_missing(lock, answers[:-2])
        raise BackendUnavailable(backend=self.url, problem=f"{lock} was deleted as often as it was created")

    def _created(self, claim: Claim, session: Session, lock: str, created: Created, greatest: int) -> TicketNode:
        """The ticket has a node. `greatest` is the greatest number of a transaction from before its request."""
        self._fences.check_fence(created.czxid, greatest)
        ticket_node = self._ticket_nodes[claim.nonce] = TicketNode(claim, session, created.path, created.czxid)
        self._unanswered.pop(claim.nonce, None)  # after that, because `orphans_in` reads it first
        self._parents.add_known(lock)
        return ticket_node

    def _clear_refused(self, error: BaseException, *claims: Claim) -> None:
        """Forget creates that the servers refused. Others, without an answer or cancelled, may still arrive."""
        if not may_have_happened(error):
            for claim in claims:
                self._unanswered.pop(claim.nonce, None)

    def _create_request(self, claim: Claim, session: Session, lock: str, *, waits: bool) -> Create:
        prefix = node_prefix(self._layout, session.id, claim.nonce, claim.limit, exclusive=claim.exclusive, waits=waits)
        return Create(f"{lock}/{prefix}", encode_value(claim, session))

    def _check_delay(self, claim: Claim, session: Session) -> None:
        """Raise ConfigurationError if the session's timeout, which enforces the delay, is too short for it."""
        if claim.delay > DELAY_SHARE * session.timeout + 0.001:
            raise ConfigurationError(
                f"lock_delay must be at most a quarter of the session's timeout, which is {session.timeout:g} s: give "
                f"{self.url} a session_timeout of {claim.delay / DELAY_SHARE:g}, and servers a maxSessionTimeout that "
                "allows it"
            )

    async def _find_own_node(
        self, claim: Claim, session: Session, lock: str, entries: Sequence[QueueEntry], deadline: float
    ) -> TicketNode | None:
        """The node that a create without an answer has left. A node of an older session is deleted, never used."""
        kept: TicketNode | None = None
        for entry in entries:
            if entry.nonce != claim.nonce:
                continue
            path = f"{lock}/{entry.node}"
            if self._is_current(entry, session) and kept is None:
                (node,) = await self._port.call(session, (Get(path),), deadline=deadline)
                if isinstance(node, Node):
                    kept = self._ticket_nodes[claim.nonce] = TicketNode(claim, session, path, node.czxid)
            else:
                await self._port.call(session, (Delete(path),), deadline=deadline)
        self._unanswered.pop(claim.nonce, None)
        return kept

    def _is_current(self, entry: QueueEntry, session: Session) -> bool:
        """The ephemeral node belongs to the session that is open now. Its name has the id of its session."""
        return entry.session == session.id

    async def _decide(
        self, ticket_node: TicketNode, lock: str, children: Sequence[str], sent: float, *, queue: bool, deadline: float
    ) -> Granted | Waiting | None:
        """Grant the lock, or queue the ticket with a watch set. None: poll again at once."""
        claim, session = ticket_node.claim, ticket_node.session
        if len(children) == 1 and ticket_node.path.endswith(children[0]):  # no other ticket
            return self._wait_for_proof(ticket_node, queue=queue) or self._grant(ticket_node, sent, is_followed=False)
        ordered = queue_entries(children)
        if not any(entry.nonce == claim.nonce for entry in ordered):
            # Another program deleted it. A listing after a write will confirm that. `orphans_in` needs this order.
            self._unanswered[claim.nonce] = session
            self._forget(claim)
            return None
        ahead = self._ahead(ticket_node, ordered)
        try:
            blocker = self._blocker(claim, ahead)
        except LimitConflict:
            await self._withdraw(ticket_node, deadline)
            raise
        if blocker is None:
            return self._wait_for_proof(ticket_node, queue=queue) or self._grant(
                ticket_node, sent, is_followed=ordered[-1].nonce != claim.nonce
            )
        if not queue:
            await self._withdraw(ticket_node, deadline)
            return Waiting(POLL_INTERVAL, await self._holder(session, f"{lock}/{ahead[0].node}", deadline))
        ticket_node.waited = True
        self._wakeups.expect(claim)
        holder = Get(f"{lock}/{ahead[0].node}")
        watch = self._watch(lock, claim, ahead, blocker)
        watch_key = (session, type(watch), watch.path)
        with self._mutex:
            is_set = watch_key in self._watched
            waiting = self._watched.setdefault(watch_key, [])
            if claim.nonce not in waiting:
                waiting.append(claim.nonce)
        if is_set:
            (holder_node,) = await self._port.call(session, (holder,), deadline=deadline)
        else:
            try:
                answer, holder_node = await self._port.call(session, (watch, holder), deadline=deadline)
            except BaseException:
                self._wake_watchers(watch_key)  # the watch may not be set, so waiters that rely on it have to poll
                raise
            if answer is Refusal.NO_NODE:
                self._wake_watchers(watch_key)
                return None
        before = len(ahead) - (0 if blocker.exclusive else (claim.limit or 1) - 1)
        return Waiting(POLL_INTERVAL if before <= _POLL_OFTEN else _POLL_INTERVAL_BEHIND, holder_name(holder_node))

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        return [entry for entry in ordered if sequence_distance(entry.number, ticket_node.number) < 0]

    def _blocker(self, claim: Claim, ahead: Sequence[QueueEntry]) -> QueueEntry | None:
        """The ticket that blocks this one. Raises LimitConflict if a ticket ahead has another limit."""
        if not claim.exclusive:
            for entry in ahead:
                if not entry.exclusive and entry.limit != claim.limit:
                    raise LimitConflict(lock=claim.name, ours=claim.limit, theirs=entry.limit)
        return first_blocker(claim.limit, ahead)

    def _watch(self, lock: str, claim: Claim, ahead: Sequence[QueueEntry], blocker: QueueEntry) -> Children | Get:
        """The one change after which a poll can succeed."""
        if blocker.exclusive:
            # The nearest exclusive ticket. A ticket's node has no children, so a children watch fires when the node is
            # deleted, and not when its data change.
            nearest = next(entry for entry in reversed(ahead) if entry.exclusive)
            return Children(f"{lock}/{nearest.node}", watch=True)
        if claim.exclusive:
            return Children(f"{lock}/{ahead[-1].node}", watch=True)
        if len(ahead) == claim.limit:
            return Children(lock, watch=True)  # first of the waiters: any released permit is enough
        # Behind other waiters: the ticket before this one writes to its node when it is granted.
        return Get(f"{lock}/{ahead[-1].node}", watch=True)

    def _wait_for_proof(self, ticket_node: TicketNode, *, queue: bool) -> Waiting | None:
        """Delay a grant until more of the session is proven, if the lease would end before it could be renewed.

        That is the case if the process was paused while the ticket waited.
        """
        claim, session, now = ticket_node.claim, ticket_node.session, self._runtime.now()
        spare, next_proof = session.timeout * _SPARE_SHARE, self._heartbeats.next_proof(session)
        is_proven = before_delay(self._heartbeats.proven(session), claim.delay) >= next_proof + spare
        if is_proven or not queue or ticket_node.granted or session.is_closed:
            return None
        ticket_node.waited = True
        self._wakeups.expect(claim)
        return Waiting(next_proof - now + spare / 2)

    def _grant(self, ticket_node: TicketNode, sent: float, *, is_followed: bool) -> Granted:
        claim, session = ticket_node.claim, ticket_node.session
        if session.is_closed:
            raise BackendUnavailable(backend=self.url, problem=SESSION_CLOSED)
        deadline = ticket_node.deadline = max(ticket_node.deadline, self._deadline(ticket_node, sent))
        if not ticket_node.granted:
            ticket_node.granted = True  # after `deadline`, because the sweep reads both
            if ticket_node.waited or (is_followed and not claim.exclusive):
                # Its mtime shows operators since when the lock is held, and it wakes the next waiter for a permit.
                self._port.send(session, Set(ticket_node.path, encode_value(claim, session)))
            if ticket_node.waited:
                self._wakeups.forget(claim)
        return Granted(ticket_node.czxid, deadline, store=session)

    async def _withdraw(self, ticket_node: TicketNode, deadline: float) -> None:
        session, connection = ticket_node.session, ticket_node.session.connection
        await self._port.call(session, (Delete(ticket_node.path),), deadline=deadline)
        self._forget(ticket_node.claim)
        self._heartbeats.check_again(session, connection)

    async def _holder(self, session: Session, path: str, deadline: float) -> str:
        (node,) = await self._port.call(session, (Get(path),), deadline=deadline)
        return holder_name(node)

    async def wait(self, claim: Claim, until: float) -> None:
        await self._wakeups.wait(claim, until)
