"""What a mutant is: one deliberate bug, and where to look for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.sim.client import SimClient
from holdfast.sim.faults import ALL, POOLED, only
from holdfast.sim.workload import WORKLOADS

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.sim.client import SimLease
    from holdfast.sim.run import Plan
    from holdfast.sim.servers.base import Server

BUDGET = 300  # runs within which a mutant has to be caught, unless it says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """The shipped code with one thing wrong."""

    name: str
    mistake: str  # what it does wrong, in a sentence
    backend: str = "memory"
    engine: type[Engine[SimLease]] | None = None
    server: type[Server] | None = None
    client: type[SimClient] = SimClient
    workload: str | None = None  # that brings it out, by its name; None: as the plan has it
    kinds: frozenset[str] | None = None  # of faults that bring it out, all in every run; None: as the plan has them
    budget: int = BUDGET
    by_seeds: bool = True  # chance brings it out; else only the exhaustive search does

    def apply(self, plan: Plan) -> Plan:
        """The same plan, with this bug."""
        mutated = replace(plan, backend=self.backend, engine=self.engine, server=self.server, client=self.client)
        if self.workload is not None:
            asked, usual = WORKLOADS[self.workload], plan.workload
            mutated = replace(mutated, workload=replace(usual, kinds=asked.kinds, uses=asked.uses))
        if self.kinds is None:
            return mutated
        faults = ALL if self.kinds & POOLED else plan.faults
        return replace(mutated, faults=only(faults, self.kinds), enable=1.0)
