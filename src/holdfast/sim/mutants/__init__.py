"""Deliberately broken variants of engine and protocols. Each has to be caught: a survivor is a hole in the harness.

Every promise of the checkers has at least one. Mutants subclass the shipped code and change one thing; they are never
used outside the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.sim.mutants.base import Mutant
from holdfast.sim.mutants.engine import ENGINES
from holdfast.sim.mutants.memory import PROTOCOLS
from holdfast.sim.mutants.sqlite import SQLITE

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for mutant in [*ENGINES, *PROTOCOLS, *SQLITE]}
