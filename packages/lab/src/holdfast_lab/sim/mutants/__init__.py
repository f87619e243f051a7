"""Deliberately broken variants of the engine and the protocols. Each must be caught: a survivor is a gap in the tests.

Mutants subclass the shipped code and change one thing; they are used only in the simulator. tests/sim/test_mutants.py
has the promise that each one breaks. "Fenced writes", "single grants" and "bounded waiting" have no mutants:
tests/unit/checking has histories that violate them.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.engine import ENGINES
from holdfast_lab.sim.mutants.etcd import ETCD
from holdfast_lab.sim.mutants.holding import HOLDING
from holdfast_lab.sim.mutants.local_handover import LOCAL_HANDOVER
from holdfast_lab.sim.mutants.memcached import MEMCACHED
from holdfast_lab.sim.mutants.memory import PROTOCOLS
from holdfast_lab.sim.mutants.mysql import MYSQL
from holdfast_lab.sim.mutants.nats import NATS
from holdfast_lab.sim.mutants.net import NET
from holdfast_lab.sim.mutants.once import ONCE
from holdfast_lab.sim.mutants.postgresql import POSTGRESQL
from holdfast_lab.sim.mutants.primitives import PRIMITIVES
from holdfast_lab.sim.mutants.redis import REDIS
from holdfast_lab.sim.mutants.redlock import REDLOCK
from holdfast_lab.sim.mutants.sqlite import SQLITE
from holdfast_lab.sim.mutants.transfers import TRANSFERS
from holdfast_lab.sim.mutants.zookeeper import ZOOKEEPER

_FAMILIES = [
    *(ENGINES, PROTOCOLS, PRIMITIVES, HOLDING, TRANSFERS, ONCE, LOCAL_HANDOVER),
    *(SQLITE, REDIS, REDLOCK, MEMCACHED, ETCD, ZOOKEEPER, POSTGRESQL, MYSQL, NATS, NET),
]

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for family in _FAMILIES for mutant in family}
