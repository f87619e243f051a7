"""Mutants of the etcd protocol, each with one bug in its watches, leases, keys or deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.protocol.base import state_of
from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.keys import Slots
from holdfast.backends.etcd.protocol.leases import GRANULARITY, Lease, Leases, Unanswered
from holdfast.backends.etcd.protocol.messages import all_in_order, created_at, first, get, kvs, last, revision, txn
from holdfast.backends.etcd.protocol.queue import EtcdBackend, View
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import POLL_INTERVAL, Claim, Granted, Waiting
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.etcd.server import EtcdServer

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message, Watch
    from holdfast.backends.etcd.protocol.base import TicketKey
    from holdfast_lab.sim.servers.etcd.port import SimPort


def _with(backend: Callable[..., Any]) -> type[EtcdServer]:
    return type("Mutated", (EtcdServer,), {"backend": backend})


class NoPolling(EtcdBackend):
    """Waits for a notification only. That works if none is lost and watches start at the right revision."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=math.inf) if isinstance(outcome, Waiting) else outcome

    async def _keep_waiters_alive(self, deadline: float) -> bool:
        if not await super()._keep_waiters_alive(deadline):  # it does not poll after a failure either
            await self._runtime.sleep(0.5)
        return True


class WatchesFromNowOn(EtcdServer):
    """Like python-etcd3 once: events from before the watch was opened are missed."""

    backend = NoPolling

    def watch(self, port: SimPort, connection: int, wanted: Mapping[str, Sequence[Watch]]) -> None:
        now = self.store.revision + 1
        late = {nonce: [watch._replace(revision=now) for watch in watches] for nonce, watches in wanted.items()}
        super().watch(port, connection, late)


class LateMoveAfterMinHold(EtcdBackend):
    """A move that arrives after the last renewal puts the key back under the lease of the ttl, where it stays."""

    async def _move_to_lease(self, claim: Claim, *arguments: Any, **options: Any) -> Message:
        was_unanswered = claim.unanswered
        try:
            return await super()._move_to_lease(claim, *arguments, **options)
        finally:
            claim.unanswered = was_unanswered


class OwnKeyNotChecked(EtcdBackend):
    """Like etcd's own Mutex once: it grants a ticket when none is ahead, without a check of its own key."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        own_key, sent = state_of(claim).key, self._runtime.now()
        if own_key is None or not own_key.watches:
            return await super().try_acquire(claim, queue=queue, deadline=deadline)
        _, folder, end = self._key_range(claim)
        until = own_key.created - 1
        ahead = last(folder, end, 1, until=until) if claim.exclusive else all_in_order(folder, end, until=until)
        answer = (await self._port.call("kv/txn", txn([], [ahead, first(folder, end)]), deadline=deadline)).message
        if self._watches(claim, View(revision(answer), kvs(answer, 0), kvs(answer, 1))):
            return Waiting(POLL_INTERVAL)
        self._stop_waiting(claim)
        return Granted(own_key.created, lease_deadline(sent, claim.ttl, GRANULARITY))


class OneSlot(Slots):
    def take(self) -> str:
        return f"{self._client}{0:08x}"


class KeyNamedByLease(EtcdBackend):
    """Like Go's Mutex: a second acquire uses the same key, so a late release of the first ends the second lease."""

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

    def _deadline(self, claim: Claim, lease: Lease, sent: float) -> float:
        return lease_deadline(sent, claim.ttl, GRANULARITY)


class WaitersUnderTtlLease(EtcdBackend):
    """An earlier version: a waiter is under the lease of its ttl, so a dead waiter blocks a free lock for its ttl."""

    async def _enqueue(
        self, claim: Claim, lease: Lease, holder: str | None, deadline: float
    ) -> Granted | Waiting | None:
        self._leases.waiter_ttl = math.ceil(claim.ttl)
        return await super()._enqueue(claim, lease, holder, deadline)


class GrantedUnderWaiterLease(EtcdBackend):
    """A granted ticket stays under the waiter lease, which is not kept alive without waiters."""

    async def _move_to_lease(
        self,
        claim: Claim,
        own_key: TicketKey,
        lease: Lease,
        deadline: float,
        *,
        only_if: Sequence[Message] = (),
        reads: Sequence[Message] = (),
    ) -> Message:
        key = self._key(claim)
        request = txn([created_at(key, own_key.created), *only_if], [get(key)], reads)
        return (await self._port.call("kv/txn", request, deadline=deadline)).message


class UncheckedPort(CheckedPort):
    def _check(self, message: Message, at_least: int, terms: Mapping[str, int]) -> None:
        pass


class IgnoresRestoredData(EtcdBackend):
    """An earlier version: a restored snapshot with the same cluster id is not detected, and fences go back."""

    port_type = UncheckedPort


class WithdrawnWithoutTombstone(EtcdBackend):
    def _add_unanswered(self, claims: Sequence[Claim], unanswered: Unanswered) -> None:
        pass


class GivesUpWithoutWithdrawing(EtcdBackend):
    """An earlier version: a busy answer ends the attempt, and an earlier unanswered create is not withdrawn."""

    async def _give_up(self, claim: Claim, deadline: float) -> None:
        pass


class RefusalMeansUnchanged(EtcdBackend):
    """An earlier version: the key exists, the poll after it is refused, and the engine gets only that error."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if queue:
            self._wakeups.expect(claim)
        return await self._try_acquire(claim, deadline, queue=queue)


ETCD = [
    Mutant(
        name="etcd-watch-without-revision",
        mistake="a watch starts when it is opened, not at the revision that was read, and no waiter polls",
        backend="etcd",
        server=WatchesFromNowOn,
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-late-move-after-min-hold",
        mistake="the answer to a grant is lost, and nothing releases the ticket that it revives after a release",
        backend="etcd",
        server=_with(LateMoveAfterMinHold),
        workload="min_hold",
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-own-key-not-checked",
        mistake="a waiter is granted when no ticket is ahead, without a check that its own key exists",
        backend="etcd",
        server=_with(OwnKeyNotChecked),
    ),
    Mutant(
        name="etcd-key-named-by-lease",
        mistake="all tickets of a client for one lock have the same key",
        backend="etcd",
        server=_with(KeyNamedByLease),
    ),
    Mutant(
        name="etcd-deadline-from-acquire",
        mistake="the deadline is counted from the acquire, not from the last keep-alive of etcd's lease",
        backend="etcd",
        server=_with(DeadlineFromAcquire),
    ),
    Mutant(
        name="etcd-ignores-restored-data",
        mistake="a client uses a store that was restored from a snapshot, and gets smaller fences than before",
        backend="etcd",
        server=_with(IgnoresRestoredData),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="etcd-waiters-under-ttl-lease",
        mistake="a waiter is under the lease of its ttl, so a dead waiter blocks a free lock for its ttl",
        backend="etcd",
        server=_with(WaitersUnderTtlLease),
        kinds=frozenset({"crash"}),
    ),
    Mutant(
        name="etcd-granted-under-waiter-lease",
        mistake="a granted ticket stays under the waiter lease, and ends with it",
        backend="etcd",
        server=_with(GrantedUnderWaiterLease),
    ),
    Mutant(
        name="etcd-withdrawn-without-tombstone",
        mistake="a ticket is withdrawn without a tombstone, so that a late create still takes the lock",
        backend="etcd",
        server=_with(WithdrawnWithoutTombstone),
        kinds=frozenset({"slow", "lose_reply"}),
    ),
    Mutant(
        name="etcd-gives-up-without-withdrawing",
        mistake="a busy lock ends an attempt without a withdrawal of its earlier create that had no answer",
        backend="etcd",
        server=_with(GivesUpWithoutWithdrawing),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-refusal-means-unchanged",
        mistake="an acquire whose last request is refused reports that nothing was changed, although its first did",
        backend="etcd",
        server=_with(RefusalMeansUnchanged),
        kinds=frozenset({"refuse", "lose_reply"}),
    ),
]
