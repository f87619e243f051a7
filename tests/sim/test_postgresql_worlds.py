"""Hazard: the simulated PostgreSQL keeps notifications and statements that a real one loses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdfast.backends.postgresql.port import Statement, Value
from holdfast.backends.postgresql.protocol import queue
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WAITER_LEASE
from holdfast.errors import OutcomeUnknown
from holdfast_lab.checking import history as h
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import Plan, Simulation, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.servers.database import IDLE, REAPED_EVERY
from holdfast_lab.sim.servers.postgresql.port import SimPort
from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer
from holdfast_lab.sim.servers.subscriptions import NOTICED_MAX
from tests.support.wakeups import RecordedWakeups

NAME, TTL = "lock", us(1.0)


class Subscribed:
    """A world with two clients, and the notifications of `a`."""

    def __init__(self) -> None:
        self.small = SmallWorld(Plan(backend="postgresql"), Choices(decisions=()))
        assert isinstance(self.small.server, PostgresqlServer)
        self.server = self.small.server
        for name in "ab":
            self.small.add(name)
        self.a, self.b = (port for port in self.server.subscribers if isinstance(port, SimPort))
        recorded = self.a.wakeups = RecordedWakeups(self.a._runtime)
        self.received = recorded.received

    def do(self, port: SimPort, step: Callable[[], Coroutine[Any, Any, Any]], lasts: float = 0.01) -> Any:
        outcome: list[Any] = []

        async def run() -> None:
            try:
                outcome.append(await step())
            except OutcomeUnknown as error:
                outcome.append(error)

        port.link.process.start(run(), "step")
        self.run(lasts)
        return outcome[0] if outcome else None

    def run(self, seconds: float) -> None:
        self.small.world.run(self.small.world.now + seconds)

    def subscribe(self, nonce: str) -> None:
        self.do(self.a, lambda: self.a.subscribe(self.a.channel, nonce, deadline=self.now + 1.0))

    def nonce(self) -> str:
        return self.small.recorder.new_nonce("a", self.small.recorder.new_call())

    def execute(self, port: SimPort, statement: Statement, *values: Value) -> Any:
        return self.do(port, lambda: port.execute(statement, values, deadline=self.now + 1.0))

    def take(self, nonce: str) -> Any:
        return self.execute(self.a, queue._FAST_ACQUIRE, NAME, nonce, TTL, "main", "{}")

    def try_acquire(self, nonce: str) -> str:
        values = (NAME, nonce, TTL, True, 1, True, "main", "{}", self.a.channel)
        ((outcome, *_),) = self.execute(self.a, queue._TRY_ACQUIRE, *values)
        return str(outcome)

    def renew(self, nonce: str) -> bool:
        ((lives,),) = self.execute(self.a, queue._RENEW, NAME, nonce, TTL)
        return bool(lives == "t")

    def release(self, nonce: str, *, is_unanswered: bool) -> None:
        self.execute(self.b, queue._RELEASE, NAME, nonce, is_unanswered)

    def hand_over(self) -> str:
        """One client holds the lock, another one queues and is notified by the release. Returns its nonce."""
        holder, waiter = self.nonce(), self.nonce()
        assert (self.try_acquire(holder), self.try_acquire(waiter)) == ("in", "wait")
        for nonce in (holder, waiter):
            self.release(nonce, is_unanswered=False)
        return waiter

    @property
    def now(self) -> float:
        return self.small.world.now


@pytest.fixture
def world() -> Iterator[Subscribed]:
    world = Subscribed()
    yield world
    world.small.end()


def test_a_notification_reaches_only_current_subscribers(world: Subscribed) -> None:
    world.hand_over()
    assert (world.a.subscription(world.a.channel), world.received) == (0, [])

    world.subscribe("n")
    late = world.hand_over()

    assert world.a.subscription(world.a.channel) > 0
    assert world.received == [late]


def test_notifications_in_a_gap_are_lost_and_the_gap_is_reported(world: Subscribed) -> None:
    world.subscribe("n")
    before = world.a.subscription(world.a.channel)

    world.server.restart()
    assert world.server.publish(world.a.channel, "in the gap") == 0
    world.run(NOTICED_MAX + 0.1)

    assert world.received == ["missed"]
    assert world.a.subscription(world.a.channel) not in (0, before)
    after = world.hand_over()
    assert world.received == ["missed", after]


def test_the_subscriber_connection_is_closed_when_no_ticket_waits(world: Subscribed) -> None:
    world.subscribe("one")
    world.subscribe("other")

    world.a.unsubscribe(world.a.channel, "one")
    world.run(10.0)
    assert world.a.subscription(world.a.channel)
    world.a.unsubscribe(world.a.channel, "other")
    world.run(10.0)

    assert not world.a.subscription(world.a.channel)
    world.hand_over()
    assert world.received == []


def test_requests_on_their_way_are_not_executed_when_the_server_goes_down(world: Subscribed) -> None:
    world.small.world.at(world.now + 0.00005, world.server.restart)

    answer = world.take(world.nonce())

    assert isinstance(answer, OutcomeUnknown)
    assert not world.server.tables.locks


def test_a_restart_keeps_committed_data(world: Subscribed) -> None:
    nonce = world.nonce()
    world.take(nonce)

    world.server.restart()

    assert world.renew(nonce)


def test_a_failover_restores_the_data_of_the_standby(world: Subscribed) -> None:
    first, second = world.nonce(), world.nonce()
    world.take(first)
    world.server.back_up()
    world.execute(world.b, queue._FAST_RELEASE, NAME, first)
    world.take(second)

    world.server.restore_data()

    assert (world.renew(first), world.renew(second)) == (True, False)
    world.run(1.1)
    assert not world.renew(first)


def test_lose_data_removes_all_rows(world: Subscribed) -> None:
    nonce = world.nonce()
    world.take(nonce)

    world.server.lose_data()

    assert not world.renew(nonce)
    assert not world.server.tickets()


def test_leases_end_by_the_server_s_own_clock(world: Subscribed) -> None:
    nonce = world.nonce()
    world.take(nonce)

    world.server.step_clock(-5.0)
    world.run(3.0)
    assert nonce in world.server.live()
    world.server.step_clock(4.0)

    assert nonce not in world.server.live()
    assert not world.renew(nonce)
    assert world.server.extra_lease_time == 5.0


def run_clients(seed: int) -> tuple[Simulation, PostgresqlServer]:
    with quiet():
        simulation = Simulation(Plan(backend="postgresql"), Choices(seed))
        simulation.run()
    assert isinstance(simulation.server, PostgresqlServer)
    return simulation, simulation.server


def test_no_ticket_and_no_unused_lock_is_left_at_the_end() -> None:
    kept = reaped = 0
    for seed in range(40):
        simulation, server = run_clients(seed)
        assert not server.live(), seed
        used = {event.lock for event in simulation.recorder.history if isinstance(event, h.Granted)}
        remaining = used & set(server.tables.locks)
        if simulation.faults.step_clock:
            kept += len(remaining)
        else:
            reaped += len(used - remaining)
            old = server._clock() - us(IDLE + REAPED_EVERY)
            assert not [ticket for ticket in server.tables.tickets if ticket.expires < old], (
                "expired tickets are removed too"
            )

    assert kept > 5, "worlds with a clock that is set keep unused locks for an hour"
    assert reaped > 20, "the other worlds keep them for seconds"


def test_no_subscription_is_left_at_the_end() -> None:
    subscriptions = 0
    for seed in range(40):
        simulation, server = run_clients(seed)
        living = [member.link for member in simulation.members.values()]
        for port in server.subscribers:
            subscriptions += port.subscriptions
            assert port.link not in living or not port.waiters, seed

    assert subscriptions > 40


def test_an_unanswered_release_is_remembered_for_a_waiter_lease(world: Subscribed) -> None:
    nonce = world.nonce()
    world.release(nonce, is_unanswered=True)

    outcome = world.try_acquire(nonce)
    world.run(WAITER_LEASE)

    assert (outcome, world.try_acquire(nonce)) == ("gone", "in")


# ── clients that do not poll when it is their turn ───────────────────────────────────────────────────────────────────


class Queue:
    """`a` holds the lock, four tasks of `b` wait for it, then one of `c`. Records the grants after `a`."""

    def __init__(self, plan: Plan) -> None:
        self.world = SmallWorld(plan, Choices(decisions=()))
        assert isinstance(self.world.server, PostgresqlServer)
        self.server = self.world.server
        self.a, self.b, self.c = (self.world.add(name) for name in "abc")
        self.held: list[SimLease] = []
        self.granted: list[tuple[str, float]] = []
        for member in (self.a, *[self.b] * 4, self.c):
            member.start(self._take(member))
            self.run(0.1)
        self.run(2.0)

    async def _take(self, member: ClientProcess) -> None:
        lease = await member.client.acquire(member.lock(30.0), None)
        assert lease is not None
        self.granted.append((member.process.name, self.world.world.now))
        self.held.append(lease)

    def run(self, seconds: float) -> None:
        self.world.world.run(self.world.world.now + seconds)

    def release(self) -> tuple[str, float]:
        """The next holder, and how long it waited."""
        released = self.world.world.now
        self.a.start(self.a.client.release(self.held[0]))
        self.run(20.0)
        self.world.end()
        _, (name, granted), *_ = self.granted
        return name, granted - released


def behind_a_dead_process(plan: Plan) -> tuple[str, float]:
    queue = Queue(plan)
    queue.b.process.crash()
    queue.server.process_died(queue.b.process)
    return queue.release()


def behind_a_stopped_process(plan: Plan) -> tuple[str, float]:
    queue = Queue(plan)
    queue.b.process.pause()
    return queue.release()


def test_all_waiters_of_a_dead_process_are_skipped_at_once() -> None:
    with quiet():
        name, waited = behind_a_dead_process(Plan(backend="postgresql"))
        _, waited_in_turn = behind_a_dead_process(MUTANTS["dead-waiters-in-turn"].apply(Plan()))

    assert name == "c"
    assert waited < 0.1
    assert waited_in_turn > 3.0


@pytest.mark.parametrize("mutant", ["dead-waiters-in-turn", "stopped-waiters-in-turn", "woken-keeps-its-lease"])
def test_all_waiters_of_an_unresponsive_process_are_skipped_within_1_5_seconds(mutant: str) -> None:
    with quiet():
        name, waited = behind_a_stopped_process(Plan(backend="postgresql"))
        _, waited_in_turn = behind_a_stopped_process(MUTANTS[mutant].apply(Plan()))

    assert name == "c"
    assert waited < 1.5
    assert waited_in_turn > 3.0


@pytest.mark.parametrize("ends", ["subscription", "server"])
def test_a_client_that_is_reconnecting_keeps_its_place(ends: str) -> None:
    queue = Queue(Plan(backend="postgresql"))
    if ends == "subscription":
        assert queue.server.drop(queue.b.process)
    else:
        queue.server.restart()
    with quiet():
        name, _ = queue.release()

    assert name == "b"


# ── waiter sessions ──────────────────────────────────────────────────────────────────────────────────────────────────


def waits_behind_a_stopped_process(plan: Plan) -> float | None:
    """How long the next waiter waits if the holder stays stopped; None if it waits more than half a minute."""
    world = SmallWorld(plan, Choices(decisions=()))
    holder, other = world.add("a"), world.add("b")
    granted: list[float] = []

    async def take(member: ClientProcess) -> None:
        await member.client.acquire(member.lock(3.0), None)
        granted.append(world.world.now)

    with quiet():
        holder.start(take(holder))
        world.world.run(1.0)
        holder.process.pause()
        other.start(take(other))
        world.world.run(31.0)
        world.end()
    assert granted
    return granted[1] - 1.0 if len(granted) > 1 else None


def test_a_stopped_session_is_terminated_when_its_lease_ends() -> None:
    waited = waits_behind_a_stopped_process(Plan(backend="postgresql-advisory"))

    assert waited is not None
    assert 2.0 < waited < 15.0
    assert waits_behind_a_stopped_process(MUTANTS["holder-not-terminated"].apply(Plan())) is None
