"""Transfers of leases, with one bug each."""

from __future__ import annotations

from typing import Any

from holdfast.backends.memory.port import QueueEntry, Store
from holdfast.backends.memory.protocol.queue import MemoryBackend
from holdfast.core.tickets import Claim
from holdfast.errors import BackendError
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.engine import SimEngine
from holdfast_lab.sim.mutants.memory import server_with


class AdoptsAnyLease(MemoryBackend):
    """An adoption does not compare the nonce."""

    def _adopt(self, store: Store, nonce: str, claim: Claim) -> int:
        entries = store.queues.get(claim.name, {})
        granted = (other for other, entry in entries.items() if entry.granted)
        return super()._adopt(store, next(granted, nonce), claim)


class AdoptsWithTheSameFence(MemoryBackend):
    def _adopt(self, store: Store, nonce: str, claim: Claim) -> int:
        entries = store.queues.get(claim.name, {})
        given = entries.get(nonce)
        fence = super()._adopt(store, nonce, claim)
        if given is not None and fence:
            fence = entries[claim.nonce].fence = given.fence
        return fence


class AdoptsTwice(MemoryBackend):
    """The ticket of the transferred lease stays when the lease is adopted."""

    def _adopt(self, store: Store, nonce: str, claim: Claim) -> int:
        entries = store.queues.get(claim.name, {})
        given: QueueEntry | None = entries.get(nonce)
        fence = super()._adopt(store, nonce, claim)
        if given is not None and fence:
            entries[nonce] = given
        return fence


class WithinNotApplied(SimEngine):
    """A transferred lease stays for its own ttl."""

    def _unheld_claim(self, lease: SimLease, seconds: float) -> Claim:
        claim = super()._unheld_claim(lease, seconds)
        claim.ttl = lease.ttl
        return claim


class GiverKeepsRenewing(SimEngine):
    _given: Claim | None = None

    def _unheld_claim(self, lease: SimLease, seconds: float) -> Claim:
        self._given = super()._unheld_claim(lease, seconds)
        return self._given

    async def transfer(self, lease: SimLease, within: float) -> tuple[str, float]:
        transferred = await super().transfer(lease, within)
        self.runtime.spawn(self._renew_given, "renewals")
        return transferred

    async def _renew_given(self) -> None:
        claim = self._given
        while claim is not None:
            await self.runtime.sleep(claim.ttl / 3)
            try:
                await self.backend.renew([claim], deadline=self.runtime.now() + 1.0)
            except BackendError:
                continue


class TextOfTheLease(SimEngine):
    """The ticket of the lease itself waits for the adopter: a late renewal of the lease changes how long it stays."""

    def _unheld_claim(self, lease: SimLease, seconds: float) -> Claim:
        claim = super()._unheld_claim(lease, seconds)
        claim.nonce = lease._claim.nonce
        return claim


def _mutant(name: str, mistake: str, **how: Any) -> Mutant:
    return Mutant(name=name, mistake=mistake, workload="transfer", **how)


TRANSFERS = [
    _mutant(
        "adopts-any-lease", "an adoption does not compare the nonce of the holder", server=server_with(AdoptsAnyLease)
    ),
    _mutant(
        "adopts-with-the-same-fence",
        "an adopted lease has the fence of the lease that was transferred",
        server=server_with(AdoptsWithTheSameFence),
    ),
    _mutant("adopts-twice", "a text can be used twice", server=server_with(AdoptsTwice)),
    _mutant(
        "within-not-applied",
        "a transferred lease waits for as long as its ttl, not for the given time",
        engine=WithinNotApplied,
    ),
    _mutant(
        "giver-keeps-renewing",
        "a client goes on renewing a lease that it has transferred, so it never expires",
        engine=GiverKeepsRenewing,
    ),
    _mutant(
        "text-of-the-lease",
        "a late renewal of a lease changes how long it waits to be adopted",
        backend="postgresql",
        engine=TextOfTheLease,
        kinds=frozenset({"slow"}),
    ),
]
