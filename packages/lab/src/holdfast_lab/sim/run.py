"""One run from start to verdict: a random world has faults, is healed, comes to rest, and its history is checked."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.engine import Engine
from holdfast.core.local_handover import CONTACT_MAX, SPENT_MAX
from holdfast_lab.checking import Promises, judge
from holdfast_lab.checking import history as h
from holdfast_lab.sim import faults as faults_
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimClient
from holdfast_lab.sim.nemesis import Nemesis
from holdfast_lab.sim.network import CONNECT_TIMEOUT, Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.recorder import Recorder
from holdfast_lab.sim.resource import Resource
from holdfast_lab.sim.runtime import SimRuntime
from holdfast_lab.sim.servers.etcd.server import EtcdKeyServer, EtcdServer
from holdfast_lab.sim.servers.memcached.server import MemcachedServer
from holdfast_lab.sim.servers.memory import MemoryServer
from holdfast_lab.sim.servers.mysql.server import LocalHandoverServer as MysqlLocalServer
from holdfast_lab.sim.servers.mysql.server import UniqueServer, VersionServer
from holdfast_lab.sim.servers.mysql.waiter_sessions import RowServer
from holdfast_lab.sim.servers.nats.server import NatsServer
from holdfast_lab.sim.servers.postgresql.server import LocalHandoverServer as PostgresqlLocalServer
from holdfast_lab.sim.servers.postgresql.server import PooledServer, PostgresqlServer
from holdfast_lab.sim.servers.postgresql.waiter_sessions import AdvisoryServer
from holdfast_lab.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer
from holdfast_lab.sim.servers.redis.server import LocalHandoverServer as RedisLocalServer
from holdfast_lab.sim.servers.redlock.server import RedlockServer
from holdfast_lab.sim.servers.sqlite import SqliteServer
from holdfast_lab.sim.servers.zookeeper.ensemble import ZookeeperServer
from holdfast_lab.sim.workload import DELAYS, MIN_HOLD_MAX, USUAL, WITHIN_MAX, Worker, Workload, draw_names
from holdfast_lab.sim.world import Task, World

if TYPE_CHECKING:
    from holdfast_lab.checking import Verdict
    from holdfast_lab.sim.client import SimLease
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.servers.base import Server

SERVERS: Mapping[str, type[Server]] = {
    "memory": MemoryServer,
    "sqlite": SqliteServer,
    "redis": RedisServer,
    "redis-local": RedisLocalServer,
    "redis-setnx": SetnxServer,
    "redis-getset": GetsetServer,
    "redlock": RedlockServer,
    "postgresql": PostgresqlServer,
    "postgresql-local": PostgresqlLocalServer,
    "postgresql-pooler": PooledServer,
    "postgresql-advisory": AdvisoryServer,
    "mysql": UniqueServer,
    "mysql-local": MysqlLocalServer,
    "mysql-row": RowServer,
    "mysql-version": VersionServer,
    "memcached": MemcachedServer,
    "etcd": EtcdServer,
    "etcd-key": EtcdKeyServer,
    "zookeeper": ZookeeperServer,
    "nats": NatsServer,
}

HEALED_FOR = 120.0  # seconds from the healing to the end of all work, at most
REST = 25.0  # seconds after that, for pending releases and for tickets to expire
LONG = 50  # times the usual ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of all runs of a search. A run is a plan with a seed, or with recorded decisions."""

    backend: str = "sqlite"
    faults: Faults = faults_.USUAL
    enable: float = 0.35  # probability that a run has each kind of fault
    workload: Workload = USUAL
    engine: type[Engine[SimLease]] | None = None  # None: the real one
    server: type[Server] | None = None  # None: the server of `backend`, with the real protocol
    client: type[SimClient] = SimClient

    @property
    def server_type(self) -> type[Server]:
        return self.server or SERVERS[self.backend]

    def make_client(self, process: Process, server: Server, link: Link, recorder: Recorder) -> SimClient:
        """A client with the engine of this plan."""
        return self.client(process, server, link, recorder, self.engine or Engine)

    @property
    def possible_faults(self) -> Faults:
        """The faults that this server can have."""
        return faults_.only(self.faults, frozenset(faults_.KINDS) - self.server_type.impossible_faults())


@functools.cache
def lacks_of(server_type: type[Server]) -> Mapping[str, str]:
    """The primitives that this store does not support, by name, with the reasons."""
    world = World(Choices(decisions=()))
    recorder, process = Recorder(world), Process(world, "unused")
    server = server_type(world, recorder)
    backend = server.open(Link(process, server, faults_.CALM), SimRuntime(process, recorder))
    server.end()
    return {primitive.value: why for primitive, why in backend.lacks.items()}


def lack_of(backend: str, workload: Workload) -> str | None:
    """The reason why a store does not support a workload, if it supports none of its primitives."""
    if not workload.primitives:
        return None
    lacks = lacks_of(SERVERS[backend])
    return lacks[workload.primitives[0]] if all(name in lacks for name in workload.primitives) else None


class Run(NamedTuple):
    """The result of a run."""

    seed: int | None
    decisions: Sequence[int]
    history: list[h.Event]
    verdict: Verdict
    steps: int
    faults: Faults  # that were enabled
    happened: Mapping[str, int]  # faults that happened, by kind
    error: Exception | None = None  # the error that ended the run early

    @property
    def failure(self) -> str | None:
        """The gravest broken promise, or the type of the error; None if there is neither."""
        if self.error is not None:
            return type(self.error).__name__
        gravest = self.verdict.gravest
        return None if gravest is None else gravest.checker


def run(plan: Plan, seed: int | None = None, decisions: Sequence[int] = ()) -> Run:
    """Run one world, from a seed or from recorded decisions."""
    with quiet():
        simulation = Simulation(plan, Choices(seed, decisions))
        error: Exception | None = None
        try:
            simulation.run()
        except Exception as raised:  # no error is expected, so any error is a finding
            error = raised
        history = simulation.recorder.history
        return Run(
            seed=seed,
            decisions=simulation.choices.decisions,
            history=history,
            verdict=judge(history, simulation.promises()),
            steps=simulation.world.steps,
            faults=simulation.faults,
            happened=simulation.recorder.happened,
            error=error,
        )


class Member:
    """A client of the world: its current process, link and worker."""

    def __init__(self, simulation: Simulation, name: str, rounds: Sequence[int]) -> None:
        choices, drift = simulation.choices, simulation.faults.drift
        world = simulation.world
        rate = 1.0 + choices.between(0.0, 2 * drift) - drift if drift else 1.0
        offset = choices.between(0.0, 1000.0) if drift else 0.0
        if drift:
            simulation.recorder.happened["drift"] += 1
        self.process = Process(world, name, offset=offset, rate=rate)
        self.link = Link(self.process, simulation.server, simulation.link_faults)
        self.client = simulation.plan.make_client(self.process, simulation.server, self.link, simulation.recorder)
        self.workers = [
            Worker(
                simulation.workload,
                simulation.names,
                process=self.process,
                client=self.client,
                resource=simulation.resource,
                texts=simulation.texts,
                rounds=rounds_of_one,
            )
            for rounds_of_one in rounds
        ]
        self._choices = choices
        self._tasks: list[Task] = [self.process.start(worker.run(), "worker") for worker in self.workers]

    @property
    def worker(self) -> Worker:
        """The first one."""
        return self.workers[0]

    @property
    def rounds_left(self) -> list[int]:
        return [worker.rounds_left for worker in self.workers]

    def cancel(self) -> bool:
        """Cancel the call that one of its workers waits for, if any."""
        busy = [task for task, worker in zip(self._tasks, self.workers, strict=True) if worker.is_busy]
        if not busy or self.process.is_dead:
            return False
        (busy[0] if len(busy) == 1 else self._choices.pick(busy)).cancel()
        return True

    def crash(self) -> None:
        self.process.crash()
        self.client.engine.abandon("its process has crashed")


class Simulation:
    """A world with its server, its clients and its nemesis."""

    def __init__(self, plan: Plan, choices: Choices) -> None:
        self.plan = plan
        self.choices = choices
        self.world = World(choices)
        self.recorder = Recorder(self.world)
        self.server = plan.server_type(self.world, self.recorder)
        self.faults = faults_.draw(plan.possible_faults, choices, plan.enable)
        self.link_faults = self.faults  # until the world is healed
        self.primitives = self._draw_primitives(plan.workload)
        self.workload = self._draw_workload(plan.workload)
        # The ttl on the server includes the delay of a lock.
        delay = max(DELAYS) if "lock_delay" in self.primitives else 0.0
        self.server.prepare(self.faults, self.workload.ttl + delay)
        self.resource = Resource(self.world, self.recorder)
        self.names = draw_names(self.workload, choices)
        self.texts: list[str] = []  # of transferred leases
        self.members: dict[str, Member] = {}
        self._dead_members: list[Member] = []

    def start(self, name: str, rounds: Sequence[int]) -> None:
        if name in self.members:
            self._dead_members.append(self.members[name])
        self.members[name] = Member(self, name, rounds)

    def run(self) -> None:
        """Run the world to its end."""
        world, workload = self.world, self.workload
        try:
            for number in range(workload.clients):
                self.start("abcdefghijklmnop"[number], [workload.rounds] * workload.callers)
            nemesis = Nemesis(self)
            while world.now < workload.faults_for and not self._all_done():
                self._run_one_second(nemesis)
            nemesis.stop()
            self._heal()
            self.recorder.add(h.Healed(world.now))
            healed = world.now
            while world.now < healed + HEALED_FOR and not self._all_done():
                self._run_one_second(nemesis)
            if "once_per" in workload.primitives:
                self._claim_again(healed)
            if "once" in workload.primitives:
                self._call_once_again()
            world.run(world.now + REST)
            self.recorder.add_leftovers(self.server.live())
            self.recorder.add(h.End(world.now))
        finally:
            self._close()

    def _run_one_second(self, nemesis: Nemesis) -> None:
        self.world.run(self.world.now + 1.0)
        for name in [
            name for name, member in self.members.items() if any(worker.must_restart for worker in member.workers)
        ]:
            if not self.members[name].process.is_dead:
                nemesis.restart_client(name)

    def _claim_again(self, healed: float) -> None:
        """A period that begins in the healed world must get its run."""
        self.world.run(max(self.world.now, healed + self.promises().settle_max) + 2 * self.workload.clock_error_max)
        for member in self.members.values():
            member.process.start(member.worker.claim_again(2), "scheduler")

    def _call_once_again(self) -> None:
        """Calls for all keys end in the healed world."""
        for member in self.members.values():
            member.process.start(member.worker.call_all_keys(), "last calls")
        self.world.run(self.world.now + REST)

    def _draw_workload(self, workload: Workload) -> Workload:
        """The workload of this run. A very long ttl shows tickets that expire instead of being released."""
        ttl = workload.ttl
        primitives = self.primitives
        # Revocations are received at the next renewal.
        is_short = self._may_orphan_tickets() or "revoke" in primitives
        choices = (ttl, ttl / 2, ttl / 6) if is_short else (ttl, ttl / 2, ttl / 6, LONG * ttl)
        ttl = self.choices.pick(choices)
        kinds = tuple(kind for kind in workload.kinds if kind in self.server.kinds) or self.server.kinds
        hold_max = self.choices.pick((workload.hold_max / 4, workload.hold_max))
        # One machine has one wall clock; if leases end by the clocks of clients, these must be right.
        clock_error_max = 0.0 if "drift" in self.server.impossible_faults() else workload.clock_error_max
        drawn = replace(
            workload, kinds=kinds, primitives=primitives, ttl=ttl, hold_max=hold_max, clock_error_max=clock_error_max
        )
        return replace(drawn, several_ttls=True) if self.server.several_ttls else drawn

    def _draw_primitives(self, workload: Workload) -> tuple[str, ...]:
        """The primitives of this run that the store supports; a random part, if there are several."""
        supported = [name for name in workload.primitives if name not in lacks_of(self.plan.server_type)]
        return tuple(name for name in supported if len(supported) == 1 or self.choices.chance(0.5))

    def _may_orphan_tickets(self) -> bool:
        """Whether this run may have tickets that only expire: their holders died unnoticed, or do not know of them."""
        # Kept although the holder is known to be dead.
        is_delayed = not {"lock_delay", "min_hold"}.isdisjoint(self.primitives) and self.faults.crash > 0.0
        # A release without an answer waits for the next call of the client, if no thread can be started to repeat it.
        is_unrepeated = self.faults.no_thread > 0.0 and len(faults_.enabled(self.faults)) > 1
        return is_delayed or is_unrepeated or any(getattr(self.faults, kind) for kind in self.server.orphaning_faults)

    def promises(self) -> Promises:
        """The promises that a run with these faults must keep."""
        faults, ttl = self.faults, self.workload.ttl
        # A request of the keeper that began before the healing may return this long after it.
        overrun = 5.0 + faults.overrun_max if faults.overrun else 0.0
        extra_lease_time, recovery_time = self.server.extra_lease_time, self.server.recovery_time + overrun
        extra_idle_time = self.server.extra_idle_time
        may_orphan = self._may_orphan_tickets()
        delay = max(DELAYS) * 1.02 if "lock_delay" in self.primitives else 0.0
        delay += MIN_HOLD_MAX * 1.02 if "min_hold" in self.primitives else 0.0
        delay += WITHIN_MAX * 1.02 if "transfer" in self.primitives else 0.0
        bound = (ttl + 12.0 if may_orphan else 8.0) + extra_lease_time + recovery_time + delay
        idle = (ttl + self.server.idle_max if may_orphan else 8.0) + extra_idle_time + recovery_time + delay
        has_other_ttls = self.workload.several_ttls or "renew(ttl)" in self.primitives
        dead_waiter_max = self.server.dead_waiter_max
        # The last requests of a dead process may be slow, and renew or grant its tickets.
        if dead_waiter_max is not None:
            dead_waiter_max += extra_idle_time + (faults.slow_max + ttl if faults.slow else 0.0)
        # Slow messages from before the healing delay later requests: those that keep their order, and those that wait
        # for a connection that is being opened.
        delayed = faults.slow_max if faults.slow and self.server.keeps_order else 0.0
        delayed += CONNECT_TIMEOUT if faults.vanish or faults.lookup_stall else 0.0
        return Promises.of(
            self.server.guarantees,
            server_decides=self.server.decides,
            ttl=ttl,
            idle_max=idle,
            dead_waiter_max=dead_waiter_max,
            leftover_max=bound,
            wait_max=HEALED_FOR + extra_idle_time,
            drift=faults.drift * 2,
            settle_max=8.0 + extra_idle_time + recovery_time,
            report_max=0.2,
            renew_max=3.0 + recovery_time + delayed,
            late_max=3.0,
            answer_max=12.0,
            clock_error=1e-6,
            grant_max=self._grant_max(),
            revoke_max=ttl / 3 + 3.0 + recovery_time + delayed,
            pass_contact_max=CONTACT_MAX if has_other_ttls else min(CONTACT_MAX, SPENT_MAX * ttl),
        )

    def _grant_max(self) -> float | None:
        """The limit for a grant past dead or paused waiters, if the run has no other faults."""
        kinds = {*faults_.enabled(self.faults)}
        if not {"min_hold", "transfer"}.isdisjoint(self.primitives):
            return None
        if kinds <= {"crash"}:
            return self.server.grant_past_dead_max
        return self.server.grant_past_paused_max if kinds <= {"crash", "pause"} else None

    def break_a_lease(self) -> bool:
        """End a random lease, as an operator would; False if there is none."""
        held = [entry for entry in self.server.live().values() if entry.fence is not None]
        if not held:
            return False
        entry = self.choices.pick(held)
        self.recorder.add(h.StateLost(self.world.now, "lease", entry.lock, detail="broken by an operator"))
        self.server.break_lock(entry.lock, entry.fence or 0)
        return True

    def _heal(self) -> None:
        self.link_faults = replace(faults_.CALM, drift=self.faults.drift)
        for member in self.members.values():
            for link in (member.link, *member.link.branches):
                link.faults = self.link_faults

    def _all_done(self) -> bool:
        return all(worker.is_done for member in self.members.values() for worker in member.workers)

    def _close(self) -> None:
        for member in [*self._dead_members, *self.members.values()]:
            member.process.crash()
            member.client.engine.abandon("the world has ended")
            for task in member.process.tasks:
                task.close()
        self.server.end()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disable log lines about simulated losses, and garbage collection, which would run at random times."""
    log = logging.getLogger("holdfast")
    before, was_enabled = log.level, gc.isenabled()
    log.setLevel(logging.CRITICAL + 1)
    gc.disable()
    try:
        yield
    finally:
        log.setLevel(before)
        if was_enabled:
            gc.enable()
