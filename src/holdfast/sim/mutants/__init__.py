"""Deliberately broken variants of engine and protocols. Each has to be caught: a survivor is a hole in the harness.

Mutants subclass the shipped code and change one thing; they are never used outside the simulator. Which promise each
one breaks is in tests/sim/test_mutants.py. "Fenced writes", "single grants" and "bounded waiting" have none of their
own: for these, tests/unit/checking plants the violations.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.sim.mutants.base import Mutant
from holdfast.sim.mutants.engine import ENGINES
from holdfast.sim.mutants.etcd import ETCD
from holdfast.sim.mutants.memcached import MEMCACHED
from holdfast.sim.mutants.memory import PROTOCOLS
from holdfast.sim.mutants.mysql import MYSQL
from holdfast.sim.mutants.net import NET
from holdfast.sim.mutants.postgresql import POSTGRESQL
from holdfast.sim.mutants.primitives import PRIMITIVES
from holdfast.sim.mutants.redis import REDIS
from holdfast.sim.mutants.redlock import REDLOCK
from holdfast.sim.mutants.sqlite import SQLITE
from holdfast.sim.mutants.zookeeper import ZOOKEEPER

_FAMILIES = [ENGINES, PROTOCOLS, PRIMITIVES, SQLITE, REDIS, REDLOCK, MEMCACHED, ETCD, ZOOKEEPER, POSTGRESQL, MYSQL, NET]

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for family in _FAMILIES for mutant in family}
