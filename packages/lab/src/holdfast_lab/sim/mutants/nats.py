"""The NATS protocol with one bug each: conditions that are left out, expiry, clocks and late requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.backends.nats.protocol.lock import GRANULARITY, NatsBackend
from holdfast.backends.nats.protocol.values import Value
from holdfast.core.clock import lease_deadline
from holdfast.core.tickets import Granted, Waiting
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.backends.nats.port import Put
    from holdfast.core.tickets import Claim
    from holdfast_lab.sim.servers.nats.store import Stored


class _Unconditional(NatsServer):
    """Some puts have no condition."""

    def put(self, put: Put) -> int | None:
        if self.is_blind(put):
            entry = self.store.entries.get(put.key)
            put = put._replace(last=0 if entry is None else entry.seq)
        return super().put(put)

    def is_blind(self, put: Put) -> bool:
        raise NotImplementedError  # each mutant defines it


class ReleasesBlindly(_Unconditional):
    def is_blind(self, put: Put) -> bool:
        return put.is_marker


class RenewsBlindly(_Unconditional):
    def is_blind(self, put: Put) -> bool:
        value = Value.parse(put.value)
        return value is not None and value.fence > 0


class ReadsThenPuts(_Unconditional):
    """A read that finds no lease decides, as with a plain `get` and `put`."""

    def is_blind(self, put: Put) -> bool:
        entry, value = self.get([put.key])[0], Value.parse(put.value)
        return value is not None and not value.fence and entry.is_marker


class ExpiresByMarker(NatsServer):
    """Entries without Nats-Marker-Reason: the server replaces an expired one without a condition."""

    def remove(self, key: str, entry: Stored) -> None:
        if entry.is_marker:
            super().remove(key, entry)
        else:
            self.execute(lambda: self.store.replace(key, self.clock()))
            self.stored(key)


class DeletesWithoutMarker(NatsServer):
    """A release deletes the entry by its number. Then the key has the number 0 again."""

    def put(self, put: Put) -> int | None:
        seq = super().put(put)
        if put.is_marker and seq is not None:
            self.store.remove(put.key, seq)
        return seq


class DeadlineFromTheReply(NatsBackend):
    async def _create(self, claim: Claim, last: int, deadline: float) -> Granted | None:
        granted = await super()._create(claim, last, deadline)
        return granted and granted._replace(deadline=lease_deadline(self._runtime.now(), claim.ttl, GRANULARITY))


class IgnoresClockSkew(NatsBackend):
    def _seconds(self, ttl: float) -> int:
        return math.ceil(ttl)


class ForgetsUnansweredPuts(NatsBackend):
    async def _create(self, claim: Claim, last: int, deadline: float) -> Granted | None:
        try:
            return await super()._create(claim, last, deadline)
        finally:
            if claim.state is not None:
                claim.state.expected = frozenset()


class NoPolling(NatsBackend):
    """Waits for a notification only."""

    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting:
        outcome = await super()._try_acquire(claim, deadline)
        return outcome._replace(poll_after=math.inf) if isinstance(outcome, Waiting) else outcome


def _with(backend: Callable[..., NatsBackend]) -> type[NatsServer]:
    return type("Mutated", (NatsServer,), {"backend": backend})


NATS = [
    Mutant(
        name="nats-releases-blindly",
        mistake="releases by a marker over any entry of the key",
        backend="nats",
        server=ReleasesBlindly,
        kinds=frozenset({"pause", "slow", "stall"}),
    ),
    Mutant(
        name="nats-renews-blindly",
        mistake="renews by an entry over any entry of the key",
        backend="nats",
        server=RenewsBlindly,
        kinds=frozenset({"break_lock", "slow", "pause"}),
    ),
    Mutant(
        name="nats-reads-then-puts",
        mistake="acquires by a put without a condition after a read that found no lease",
        backend="nats",
        server=ReadsThenPuts,
        kinds=frozenset({"slow", "restart"}),
    ),
    Mutant(
        name="nats-expires-by-marker",
        mistake="lets the server replace an expired entry without a condition, which removes the next lease",
        backend="nats",
        server=ExpiresByMarker,
        kinds=frozenset({"pause", "slow", "stall"}),
    ),
    Mutant(
        name="nats-deletes-without-marker",
        mistake="leaves no marker at a release, so that a late request finds the number 0 again",
        backend="nats",
        server=DeletesWithoutMarker,
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="nats-deadline-from-reply",
        mistake="counts a lease from the reply, not from the request",
        backend="nats",
        server=_with(DeadlineFromTheReply),
        kinds=frozenset({"slow", "cut", "pause", "restart"}),
    ),
    Mutant(
        name="nats-ignores-clock-skew",
        mistake="stores an entry for just the ttl, although the next leader may have a clock that is ahead",
        backend="nats",
        server=_with(IgnoresClockSkew),
        kinds=frozenset({"restart", "pause", "lose_request"}),
    ),
    Mutant(
        name="nats-forgets-unanswered-puts",
        mistake="forgets that a put without an answer may be executed after its ticket was released",
        backend="nats",
        server=_with(ForgetsUnansweredPuts),
        kinds=frozenset({"slow"}),
    ),
    Mutant(
        name="nats-no-polling",
        mistake="waits for notifications only, although some are lost",
        backend="nats",
        server=_with(NoPolling),
        kinds=frozenset({"lose_notification", "drop"}),
    ),
]
