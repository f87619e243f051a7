"""A mutant: one deliberate bug, and the worlds in which to search for it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from holdfast.core.handovers import Handover, QueueEntry
from holdfast.core.tickets import Claim
from holdfast_lab.sim.client import SimClient
from holdfast_lab.sim.faults import ALL, POOLED, only
from holdfast_lab.sim.workload import USUAL, WORKLOADS

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast_lab.sim.client import SimLease
    from holdfast_lab.sim.run import Plan
    from holdfast_lab.sim.servers.base import Server

BUDGET = 300  # default number of runs within which a mutant must be caught


def replaced(claim: Claim, **fields: Any) -> Claim:
    """A claim with other fields, and without state."""
    names = ("name", "nonce", "ttl", "limit", "exclusive", "agent", "info", "delay", "owner")
    return Claim(**{name: getattr(claim, name) for name in names} | fields)


class CountedFromNotification(QueueEntry):
    """The deadline of a hand-over counts from its notification, which may be late: the lease began earlier."""

    def grant(self, claim: Claim, now: float, granularity: float) -> Handover | None:
        self.sent = now
        return super().grant(claim, now, granularity)


class WithoutNumber(QueueEntry):
    """A notification of an earlier hand-over is trusted, although the lease of that hand-over has expired."""

    def __init__(self, sent: float, number: int, store: Hashable = None) -> None:
        super().__init__(sent, 0, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """The shipped code with one bug."""

    name: str
    mistake: str  # the bug in one sentence
    backend: str = "memory"
    engine: type[Engine[SimLease]] | None = None
    server: type[Server] | None = None
    client: type[SimClient] = SimClient
    workload: str | None = None  # the workload that exposes it; None: that of the plan
    kinds: frozenset[str] | None = None  # the faults that expose it, all in every run; None: those of the plan
    budget: int = BUDGET
    by_seeds: bool = True  # random search finds it; otherwise only exhaustive search does

    def apply(self, plan: Plan) -> Plan:
        """The plan with this bug."""
        mutated = replace(plan, backend=self.backend, engine=self.engine, server=self.server, client=self.client)
        if self.workload is not None:
            wanted = WORKLOADS[self.workload]
            names = [field.name for field in fields(wanted)]
            special = {name: getattr(wanted, name) for name in names if getattr(wanted, name) != getattr(USUAL, name)}
            mutated = replace(mutated, workload=replace(plan.workload, **special))
        if self.kinds is None:
            return mutated
        faults = ALL if self.kinds & POOLED else plan.faults
        return replace(mutated, faults=only(faults, self.kinds), enable=1.0)
