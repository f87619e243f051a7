"""How long a lease is held, with one bug each: changes of its ttl."""

from __future__ import annotations

from typing import Any

from holdfast.core.leases import LockSpec
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
    """The deadline is that of the old ttl until the server has answered."""

    def __init__(self, backend: Any, runtime: Any, events: Any, lease_type: type[SimLease]) -> None:
        super().__init__(backend, runtime, events, _KeepsDeadline)


HOLDING = [
    Mutant(
        name="shorter-ttl-counts-after-the-answer",
        mistake="a holder counts on the old ttl until the server has confirmed a shorter one",
        engine=ShorterTtlCountsAfterTheAnswer,
        workload="renew(ttl)",
    ),
]
