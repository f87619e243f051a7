"""Acquire several locks on ZooKeeper in two round trips: list all of them, then create the nodes of the free ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from holdfast.backends.zookeeper.port import Children, Created, Refusal, Request, Session
from holdfast.backends.zookeeper.protocol.base import TicketNode, session_timeout
from holdfast.backends.zookeeper.protocol.nodes import queue_entries
from holdfast.backends.zookeeper.protocol.queue import Queue
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.errors import BackendError, HoldfastError, OutcomeUnknown


class AcquireAll(Queue):
    """Acquire several locks at once."""

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        outcomes = await self._retry_on_reconnect(
            lambda: self._heartbeats.open(session_timeout(claims[0]), deadline),
            lambda session: self._acquire_free(claims, session, deadline),
            deadline,
        )
        if not outcomes:
            outcomes = [await self.try_acquire(claims[0], queue=False, deadline=deadline)]
        await self._withdraw_rest(claims[len(outcomes) :], deadline)
        return outcomes

    async def _acquire_free(
        self, claims: Sequence[Claim], session: Session, deadline: float
    ) -> list[Granted | Waiting]:
        """Acquire the free locks up to the first busy one, or to one that became busy between listing and create.

        Only tickets that need the same session as the first one: the others need a request in another session.
        """
        timeout = session_timeout(claims[0])
        alike = list(itertools.takewhile(lambda claim: session_timeout(claim) == timeout, claims))
        sent = self._runtime.now()
        created = await self._create_free(alike, session, deadline)
        outcomes: list[Granted | Waiting] = []
        for ticket_node, children in created:
            lock = self._tree.lock_path(ticket_node.claim.name)
            outcome = await self._decide(ticket_node, lock, children, sent, queue=False, deadline=deadline)
            outcomes.append(outcome or await self.try_acquire(ticket_node.claim, queue=False, deadline=deadline))
            if isinstance(outcomes[-1], Waiting):
                break
        return outcomes

    async def _create_free(
        self, claims: Sequence[Claim], session: Session, deadline: float
    ) -> list[tuple[TicketNode, list[str]]]:
        """Create the nodes of the first tickets whose locks are free; return each with the lock's children.

        Raises:
            OutcomeUnknown: no answer; nodes may exist.
        """
        locks = [self._tree.lock_path(claim.name) for claim in claims]
        listed = await self._port.call(session, [Children(lock) for lock in locks], deadline=deadline)
        free: list[tuple[Claim, str]] = []
        for claim, lock, children in zip(claims, locks, listed, strict=True):
            self._check_delay(claim, session)
            # `try_acquire` searches for the node of a known ticket.
            is_known = claim.nonce in self._ticket_nodes or claim.nonce in self._unanswered
            if is_known or queue_entries(self._tree.children_of(children)):
                break
            free.append((claim, lock))
        if not free:
            return []
        parents = dict.fromkeys(parent for _, lock in free for parent in self._parents.create_requests_if_unknown(lock))
        requests: list[Request] = [*parents]
        for claim, lock in free:
            requests += [self._create_request(claim, session, lock, waits=False), Children(lock)]
        greatest = self._fences.greatest
        self._unanswered.update((claim.nonce, session) for claim, _ in free)
        try:
            answers = await self._port.call(session, requests, deadline=deadline)
        except BaseException as error:
            self._clear_refused(error, *(claim for claim, _ in free))
            raise
        nodes: list[tuple[TicketNode, list[str]]] = []
        refused: HoldfastError | None = None
        for number, (claim, lock) in enumerate(free):
            created, children = answers[len(parents) + 2 * number :][:2]
            if isinstance(created, Created):
                ticket_node = self._created(claim, session, lock, created, greatest)
                if len(nodes) == number:
                    nodes.append((ticket_node, self._tree.children_of(children)))
            elif created is not Refusal.NO_NODE:
                refused = self._parents.error_for(created, lock)
            # Otherwise the lock's node was deleted since the listing: this ticket and those after it are not granted.
            self._unanswered.pop(claim.nonce, None)
        if refused is not None:
            raise refused
        return nodes

    async def _withdraw_rest(self, claims: Sequence[Claim], deadline: float) -> None:
        """Release tickets that are not granted, because one before them is not, but that may have nodes."""
        known = [claim for claim in claims if claim.nonce in self._ticket_nodes or claim.nonce in self._unanswered]
        for outcome in await self.release(known, deadline=deadline) if known else ():
            if isinstance(outcome, BackendError):
                raise OutcomeUnknown(backend=self.url, problem=outcome.problem)
