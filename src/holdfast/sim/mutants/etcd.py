"""The etcd protocol with one bug each: watches, leases, keys, deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.etcd.protocol.continuity import CheckedPort
from holdfast.backends.etcd.protocol.leases import GRANULARITY, Lease, Leases, Unheard
from holdfast.backends.etcd.protocol.messages import all_in_order, created_at, entries, first, get, last, revision, txn
from holdfast.backends.etcd.protocol.queue import EtcdBackend, View
from holdfast.backends.etcd.protocol.slots import Slots
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import POLL_INTERVAL, Granted, Ticket, Waiting
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.etcd.server import EtcdServer

if TYPE_CHECKING:
    from holdfast.backends.etcd.port import Message, Watch
    from holdfast.backends.etcd.protocol.base import Place
    from holdfast.sim.servers.etcd.port import SimPort


def _with(backend: Callable[..., Any]) -> type[EtcdServer]:
    return type("Mutated", (EtcdServer,), {"backend": backend})


class HintsOnly(EtcdBackend):
    """Waits for as long as no hint comes. Where none is lost that is enough, if watches begin at the right revision."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(ticket, queue=queue, deadline=deadline)
        return outcome._replace(poll_after=math.inf) if isinstance(outcome, Waiting) else outcome

    async def _keep_waiters(self, deadline: float) -> bool:
        if not await super()._keep_waiters(deadline):  # and no poll either
            await self._runtime.sleep(0.5)
        return True


class WatchesFromNowOn(EtcdServer):
    """As python-etcd3 did: what happened before the watch was open is not heard of."""

    backend = HintsOnly

    def watch(self, port: SimPort, connection: int, wanted: Mapping[str, Sequence[Watch]]) -> None:
        now = self.store.revision + 1
        late = {nonce: [watch._replace(revision=now) for watch in watches] for nonce, watches in wanted.items()}
        super().watch(port, connection, late)


class OwnKeyNotLookedAt(EtcdBackend):
    """As etcd's own Mutex once did: nobody is ahead any more, so it must be its turn."""

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        place, sent = self._places.get(ticket.nonce), self._runtime.now()
        if place is None or not place.watches:
            return await super().try_acquire(ticket, queue=queue, deadline=deadline)
        _, folder, end = self._where(ticket)
        until = place.created - 1
        ahead = last(folder, end, 1, until=until) if ticket.exclusive else all_in_order(folder, end, until=until)
        answer = (await self._port.call("kv/txn", txn([], [ahead, first(folder, end)]), deadline=deadline)).message
        if self._watches(ticket, View(revision(answer), entries(answer, 0), entries(answer, 1))):
            return Waiting(POLL_INTERVAL)
        self._stop_waiting(ticket.nonce)
        return Granted(place.created, lease_deadline(sent, ticket.ttl, GRANULARITY))


class OneSlot(Slots):
    def of(self, nonce: str) -> str:
        return f"{self._client}{0:08x}"


class KeyNamedByLease(EtcdBackend):
    """As Go's Mutex does: who takes a lock again has the same key, and an old release ends the new lease."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._slots = OneSlot(self._runtime.nonce())


class UsedToTheEnd(Leases):
    def _is_fresh(self, lease: Lease, delay: float) -> bool:
        return lease.deadline > self._runtime.now()


class DeadlineFromTheEnter(EtcdBackend):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._leases = UsedToTheEnd(self.url, self._port, self._runtime)

    def _believed(self, ticket: Ticket, lease: Lease, sent: float) -> float:
        return lease_deadline(sent, ticket.ttl, GRANULARITY)


class WaitersForTheirTtl(EtcdBackend):
    """As it once was: the lease of a waiter's ttl keeps its place, so a dead waiter blocks a free lock for its ttl."""

    async def _queue_up(
        self, ticket: Ticket, lease: Lease, holder: str | None, deadline: float
    ) -> Granted | Waiting | None:
        self._leases.waiter_ttl = math.ceil(ticket.ttl)
        return await super()._queue_up(ticket, lease, holder, deadline)


class GrantedWithoutAMove(EtcdBackend):
    """A granted ticket stays under the waiter lease, which no client keeps alive once nobody waits."""

    async def _take(
        self,
        ticket: Ticket,
        place: Place,
        lease: Lease,
        deadline: float,
        *,
        only_if: Sequence[Message] = (),
        looks: Sequence[Message] = (),
    ) -> Message:
        key = self._key(ticket)
        request = txn([created_at(key, place.created), *only_if], [get(key)], looks)
        return (await self._port.call("kv/txn", request, deadline=deadline)).message


class AnyData(CheckedPort):
    def _check(self, message: Message, at_least: int, spec: Mapping[str, int]) -> None:
        pass


class GoesOnWithAnyData(EtcdBackend):
    """As it once was: a restored snapshot with the same cluster id is not noticed, and fences go back."""

    checked = AnyData


class WithdrawnWithoutANote(EtcdBackend):
    def _not_heard(self, nonces: Sequence[str], unheard: Unheard) -> None:
        pass


class TurnedAwayAtOnce(EtcdBackend):
    """As it once was: one member says that the lock is taken, another one, asked before, takes it later for nobody."""

    async def _turn_away(self, ticket: Ticket, deadline: float) -> None:
        pass


class RefusedIsNothing(EtcdBackend):
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
        server=_with(OwnKeyNotLookedAt),
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
        server=_with(DeadlineFromTheEnter),
    ),
    Mutant(
        name="etcd-goes-on-with-any-data",
        mistake="a client goes on with a store that was restored from a snapshot, and gets smaller fences than before",
        backend="etcd",
        server=_with(GoesOnWithAnyData),
        kinds=frozenset({"old_data"}),
    ),
    Mutant(
        name="etcd-waiters-for-their-ttl",
        mistake="a waiter is under the lease of its ttl, so a dead one blocks a free lock for as long",
        backend="etcd",
        server=_with(WaitersForTheirTtl),
        kinds=frozenset({"crash"}),
    ),
    Mutant(
        name="etcd-granted-without-a-move",
        mistake="a granted ticket stays under the waiter lease, and ends with it",
        backend="etcd",
        server=_with(GrantedWithoutAMove),
    ),
    Mutant(
        name="etcd-withdrawn-without-a-mark",
        mistake="a ticket that may still be on its way is withdrawn, and comes all the same",
        backend="etcd",
        server=_with(WithdrawnWithoutANote),
        kinds=frozenset({"slow", "lose_reply"}),
    ),
    Mutant(
        name="etcd-turned-away-at-once",
        mistake="who does not wait and is told that the lock is taken forgets that it had asked before",
        backend="etcd",
        server=_with(TurnedAwayAtOnce),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="etcd-refused-is-nothing",
        mistake="an enter whose last request is refused says that nothing was changed, whatever the first one did",
        backend="etcd",
        server=_with(RefusedIsNothing),
        kinds=frozenset({"refuse", "lose_reply"}),
    ),
]
