"""Changes of the ttl of a lease and minimum holds, with one bug each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.leases import LockSpec
from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim
from holdfast.errors import BackendError
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.engine import SimEngine

# ── renew(ttl) ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _KeepsDeadline(SimLease):
    __slots__ = ()

    def _change_ttl(self, spec: LockSpec, now: float) -> None:
        before = self._deadline
        super()._change_ttl(spec, now)
        self._deadline = before
        self.on_ttl_changed(self)


class ShorterTtlCountsAfterTheAnswer(SimEngine):
    """The deadline follows from the old ttl until the server has answered."""

    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        super().__init__(backend, runtime, events, _KeepsDeadline)


# ── min_hold ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class MinHoldEndsAtRelease(SimEngine):
    """A release removes the ticket at once."""

    async def send_releases(
        self, claims: Sequence[Claim], *, deadline: float, backend: Backend | None = None
    ) -> Sequence[bool | BackendError]:
        return await (backend or self.backend).release(claims, deadline=deadline)


class MinHoldIsLocal(SimEngine):
    """The ticket has the ttl of the lock, and is kept by the keeper of the client: a crash ends it early."""

    def _claim(self, *arguments: Any) -> Claim:
        claim = super()._claim(*arguments)
        claim.ttl, claim.min_hold = claim.ttl / 4, 0.0
        return claim


HOLDING = [
    Mutant(
        name="shorter-ttl-counts-after-the-answer",
        mistake="a holder counts on the old ttl until the server has confirmed a shorter one",
        engine=ShorterTtlCountsAfterTheAnswer,
        workload="renew(ttl)",
    ),
    Mutant(
        name="min-hold-ends-at-release",
        mistake="a lock that is released before its minimum hold is over is free at once",
        engine=MinHoldEndsAtRelease,
        workload="min_hold",
    ),
    Mutant(
        name="min-hold-is-local",
        mistake="the ticket of a dead holder expires before its minimum hold is over",
        engine=MinHoldIsLocal,
        workload="min_hold",
        kinds=frozenset({"crash"}),
    ),
]
