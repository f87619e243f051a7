"""Deliberate bugs for the tests of the search, as mutants that other processes can import."""

from __future__ import annotations

from holdfast.backends.memory.port import QueueEntry, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.memory import MemoryServer


class _CountsFromTheReply(MemoryBackend):
    async def try_acquire(self, ticket: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        if isinstance(outcome, Waiting):
            return outcome
        return outcome._replace(deadline=lease_deadline(self._runtime.now(), ticket.ttl, 0.0))


class CountsFromTheReply(MemoryServer):
    backend = _CountsFromTheReply


class _TrustsOldGrants(MemoryBackend):
    """Grants a ticket again that was granted before, even if its lease has expired.

    The bug shows after two faults: the first reply is lost, so the ticket is sent again; and another client is delayed,
    so that it holds the lock at that time.
    """

    def _try_acquire(self, store: Store, ticket: Claim, *, queue: bool) -> int | Waiting:
        granted: set[str] = store.__dict__.setdefault("granted", set())
        entries = store.queues.setdefault(ticket.name, {})
        if ticket.nonce in granted and ticket.nonce not in entries:
            now = self._runtime.now()
            store.process_state.last_number += 1
            entry = entries[ticket.nonce] = QueueEntry(ticket, store.process_state.last_number, now, self._port.wake)
            entry.granted, entry.expires = True, now + ticket.ttl
            return entry.number
        outcome = super()._try_acquire(store, ticket, queue=queue)
        if not isinstance(outcome, Waiting):
            granted.add(ticket.nonce)
        return outcome


class TrustsOldGrants(MemoryServer):
    backend = _TrustsOldGrants

    def state(self) -> object:
        return super().state(), sorted(self.store.__dict__.get("granted", ()))


FROM_THE_REPLY = Mutant(
    name="tests.sim.broken:FROM_THE_REPLY",
    mistake="counts the deadline of a lease from the reply",
    server=CountsFromTheReply,
)
OLD_GRANTS = Mutant(
    name="tests.sim.broken:OLD_GRANTS",
    mistake="grants a ticket again that was granted before, even if another client has the lock now",
    server=TrustsOldGrants,
)
