"""The etcd protocol with one bug each: watches, leases, keys, deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.leases import GRANULARITY, Lease, Leases, Unanswered
from holdfast.backends.etcd.protocol.messages import all_in_order, created_at, first, get, kvs, last, revision, txn
from holdfast.backends.etcd.protocol.queue import EtcdBackend, View
from holdfast.backends.etcd.protocol.slots import Slots
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import POLL_INTERVAL, Granted, Ticket, Waiting
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.etcd.server import EtcdServer

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message, Watch
    from holdfast.backends.etcd.protocol.base import TicketKey
    from holdfast.sim.servers.etcd.port import SimPort


def _with(backend: Callable[..., Any]) -> type[EtcdServer]:
    return type("Mutated", (EtcdServer,), {"backend": backend})


class NoPolling(EtcdBackend):
    """Waits for as long as no hint comes. Where none is lost that is enough, if watches begin at the right revision."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=math.inf) if isinstance(outcome, Waiting) else outcome

    async def _keep_waiters_alive(self, deadline: float) -> bool:
        if not await super()._keep_waiters_alive(deadline):  # and no poll either
            await self._runtime.sleep(0.5)
        return True


class WatchesFromNowOn(EtcdServer):
    """As python-etcd3 did: what happened before the watch was open is not heard of."""

    backend = NoPolling

    def watch(self, port: SimPort, connection: int, wanted: Mapping[str, Sequence[Watch]]) -> None:
        now = self.store.revision + 1
        late = {nonce: [watch._replace(revision=now) for watch in watches] for nonce, watches in wanted.items()}
        super().watch(port, connection, late)


class OwnKeyNotChecked(EtcdBackend):
    """As etcd's own Mutex once did: nobody is ahead any more, so it must be its turn."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        own_key, sent = self._ticket_keys.get(ticket.nonce), self._runtime.now()
        if own_key is None or not own_key.watches:
            return await super().try_acquire(ticket, queue=queue, deadline=deadline)
        _, folder, end = self._key_range(ticket)
        until = own_key.created - 1
        ahead = last(folder, end, 1, until=until) if ticket.exclusive else all_in_order(folder, end, until=until)
        answer = (await self._port.call("kv/txn", txn([], [ahead, first(folder, end)]), deadline=deadline)).message
        if self._watches(ticket, View(revision(answer), kvs(answer, 0), kvs(answer, 1))):
            return Waiting(POLL_INTERVAL)
        self._stop_waiting(ticket.nonce)
        return Granted(own_key.created, lease_deadline(sent, ticket.ttl, GRANULARITY))


class OneSlot(Slots):
    def of(self, nonce: str) -> str:
        return f"{self._client}{0:08x}"


class KeyNamedByLease(EtcdBackend):
    """As Go's Mutex does: who takes a lock again has the same key, and an old release ends the new lease."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._slots = OneSlot(self._runtime.nonce())


class ReusedUntilExpiry(Leases):
    def _is_fresh(self, lease: Lease, delay: float) -> bool:
        return lease.deadline > self._runtime.now()


class DeadlineFromAcquire(EtcdBackend):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._leases = ReusedUntilExpiry(self.url, self._port, self._runtime)

    def _deadline(self, ticket: Ticket, lease: Lease, sent: float) -> float:
        return lease_deadline(sent, ticket.ttl, GRANULARITY)


class WaitersUnderTtlLease(EtcdBackend):
    """As it once was: the lease of a waiter's ttl keeps its place, so a dead waiter blocks a free lock for its ttl."""

    async def _enqueue(
        self, ticket: Ticket, lease: Lease, holder: str | None, deadline: float
    ) -> Granted | Waiting | None:
        self._leases.waiter_ttl = math.ceil(ticket.ttl)
        return await super()._enqueue(ticket, lease, holder, deadline)


class GrantedUnderWaiterLease(EtcdBackend):
    """A granted ticket stays under the waiter lease, which no client keeps alive once nobody waits."""

    async def _move_to_lease(
        self,
        ticket: Ticket,
        own_key: TicketKey,
        lease: Lease,
        deadline: float,
        *,
        only_if: Sequence[Message] = (),
        reads: Sequence[Message] = (),
    ) -> Message:
        key = self._key(ticket)
        request = txn([created_at(key, own_key.created), *only_if], [get(key)], reads)
        return (await self._port.call("kv/txn", request, deadline=deadline)).message


class UncheckedPort(CheckedPort):
    def _check(self, message: Message, at_least: int, terms: Mapping[str, int]) -> None:
        pass


class IgnoresRestoredData(EtcdBackend):
    """As it once was: a restored snapshot with the same cluster id is not noticed, and fences go back."""

    port_type = UncheckedPort


class WithdrawnWithoutTombstone(EtcdBackend):
    def _add_unanswered(self, nonces: Sequence[str], unanswered: Unanswered) -> None:
        pass


class GivesUpWithoutWithdrawing(EtcdBackend):
    """As it once was: one member says that the lock is taken, another one, asked before, takes it later for nobody."""

    async def _give_up(self, ticket: Ticket, deadline: float) -> None:
        pass


class RefusalMeansUnchanged(EtcdBackend):
    """As it once was: the key is there, the look that follows is refused, and that is all that the engine hears of."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        if queue:
            self._wakeups.expect(ticket.nonce)
        return await self._try_acquire(ticket, deadline, queue=queue)


ETCD = [
    Mutant(
        name="etcd-watch-without-revision",
        mistake="a watch begins when it is opened, not at the revision that was seen, and nobody looks again",
        backend="etcd",
        server=WatchesFromNowOn,
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-own-lease-not-looked-at",
        mistake="who waits is in when nobody is ahead, whether its own key and lease are there or not",
        backend="etcd",
        server=_with(OwnKeyNotChecked),
    ),
    Mutant(
        name="etcd-key-named-by-lease",
        mistake="a client's tickets for one lock all have the same key",
        backend="etcd",
        server=_with(KeyNamedByLease),
    ),
    Mutant(
        name="etcd-deadline-from-the-enter",
        mistake="a lease is believed from when the lock was taken, not from when etcd's lease was last kept alive",
        backend="etcd",
        server=_with(DeadlineFromAcquire),
    ),
    Mutant(
        name="etcd-goes-on-with-any-data",
        mistake="a client goes on with a store that was restored from a snapshot, and gets smaller fences than before",
        backend="etcd",
        server=_with(IgnoresRestoredData),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="etcd-waiters-for-their-ttl",
        mistake="a waiter is under the lease of its ttl, so a dead one blocks a free lock for as long",
        backend="etcd",
        server=_with(WaitersUnderTtlLease),
        kinds=frozenset({"crash"}),
    ),
    Mutant(
        name="etcd-granted-without-a-move",
        mistake="a granted ticket stays under the waiter lease, and ends with it",
        backend="etcd",
        server=_with(GrantedUnderWaiterLease),
    ),
    Mutant(
        name="etcd-withdrawn-without-a-mark",
        mistake="a ticket that may still be on its way is withdrawn, and comes all the same",
        backend="etcd",
        server=_with(WithdrawnWithoutTombstone),
        kinds=frozenset({"slow", "lose_reply"}),
    ),
    Mutant(
        name="etcd-turned-away-at-once",
        mistake="who does not wait and is told that the lock is taken forgets that it had asked before",
        backend="etcd",
        server=_with(GivesUpWithoutWithdrawing),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-refused-is-nothing",
        mistake="an enter whose last request is refused says that nothing was changed, whatever the first one did",
        backend="etcd",
        server=_with(RefusalMeansUnchanged),
        kinds=frozenset({"refuse", "lose_reply"}),
    ),
]
