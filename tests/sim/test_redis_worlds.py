"""The simulated Redis has too few faults: unsubscribed clients get notifications, or requests survive a restart."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdfast.backends.redis.lua import KEEP
from holdfast.backends.redis.port import Channel
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.core.tickets import Claim
from holdfast.errors import OutcomeUnknown
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.recorder import Recorder
from holdfast_lab.sim.run import Plan, Simulation, quiet
from holdfast_lab.sim.scenarios import SmallWorld
from holdfast_lab.sim.servers.redis.port import PREFIX, SimPort
from holdfast_lab.sim.servers.redis.server import RedisServer
from holdfast_lab.sim.servers.subscriptions import NOTICED_MAX
from holdfast_lab.sim.world import World
from tests.support.wakeups import RecordedWakeups

KEYS = keys_of(PREFIX, "lock")


class Subscribed:
    """A world with two clients, and the notifications of `a`."""

    def __init__(self) -> None:
        self.small = SmallWorld(Plan(backend="redis"), Choices(decisions=()))
        assert isinstance(self.small.server, RedisServer)
        self.server = self.small.server
        for name in "ab":
            self.small.add(name)
        self.a, self.b = (port for port in self.server.subscribers if isinstance(port, SimPort))
        recorded = self.a.wakeups = RecordedWakeups(self.a._runtime)
        self.received = recorded.received
        self.channel = self.a.channel(KEYS)

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

    def subscribe(self, channel: Channel, nonce: str) -> None:
        self.do(self.a, lambda: self.a.subscribe(channel, nonce, deadline=self.now + 1.0))

    def publish(self, nonce: str) -> Any:
        words = ("PUBLISH", self.channel.name, nonce)
        return self.do(self.b, lambda: self.b.command(KEYS, *words, deadline=self.now + 1.0))

    @property
    def now(self) -> float:
        return self.small.world.now


@pytest.fixture
def world() -> Iterator[Subscribed]:
    world = Subscribed()
    yield world
    world.small.end()


def test_a_notification_reaches_only_subscribed_clients(world: Subscribed) -> None:
    assert (world.a.subscription(world.channel), world.publish("early")) == (0, 0)

    world.subscribe(world.channel, "n")

    assert world.a.subscription(world.channel) > 0
    assert world.publish("late") == 1
    assert world.received == ["late"]


def test_messages_in_a_gap_are_missed_and_the_gap_is_reported(world: Subscribed) -> None:
    world.subscribe(world.channel, "n")
    before = world.a.subscription(world.channel)

    world.server.restart()
    assert world.publish("in the gap") == 0
    world.run(NOTICED_MAX + 0.1)

    assert world.received == ["missed"]
    assert world.a.subscription(world.channel) not in (0, before)
    assert world.publish("after it") == 1


def test_a_channel_without_waiters_is_unsubscribed(world: Subscribed) -> None:
    world.subscribe(world.channel, "one")
    world.subscribe(world.channel, "other")

    world.a.unsubscribe(world.channel, "one")
    world.run(10.0)
    assert world.a.subscription(world.channel)
    world.a.unsubscribe(world.channel, "other")
    world.run(10.0)

    assert not world.a.subscription(world.channel)
    assert world.publish("nobody") == 0


def test_requests_in_transit_are_lost_when_the_server_restarts(world: Subscribed) -> None:
    set_command = world.a.command(KEYS, "SET", KEYS.lock, "1", deadline=5.0)
    world.small.world.at(0.00005, world.server.restart)

    answer = world.do(world.a, lambda: set_command)

    assert isinstance(answer, OutcomeUnknown)
    assert world.server.machine.command(["EXISTS", KEYS.lock]) == 0


def test_a_failover_restores_the_data_of_the_replica(world: Subscribed) -> None:
    machine = world.server.machine
    machine.command(["SET", "a", "old", "PX", 1000])
    machine.command(["ZADD", "z", 1, "one"])
    world.server.back_up()
    machine.command(["SET", "a", "new"])
    machine.command(["ZADD", "z", 2, "two"])

    world.server.restore_data()

    assert (machine.command(["GET", "a"]), machine.command(["ZCARD", "z"])) == (b"old", 1)
    world.run(1.1)
    assert machine.command(["GET", "a"]) is None


def test_leases_end_by_the_server_s_own_clock(world: Subscribed) -> None:
    machine = world.server.machine
    machine.command(["SET", "a", "1", "PX", 1000])

    world.server.step_clock(-5.0)
    world.run(3.0)
    assert machine.command(["PTTL", "a"]) == 3000
    world.server.step_clock(4.0)

    assert machine.command(["EXISTS", "a"]) == 0
    assert world.server.extra_lease_time == 5.0


def test_half_of_the_worlds_are_clusters() -> None:
    worlds = [World(Choices(seed)) for seed in range(100)]

    clusters = sum(RedisServer(world, Recorder(world)).is_cluster for world in worlds)

    assert 30 < clusters < 70


def run_world(backend: str, seed: int) -> tuple[Simulation, RedisServer]:
    with quiet():
        simulation = Simulation(Plan(backend=backend), Choices(seed))
        simulation.run()
    assert isinstance(simulation.server, RedisServer)
    return simulation, simulation.server


LEFT_MAX = KEEP + 30.0  # seconds


@pytest.mark.parametrize("backend", ["redis", "redis-setnx"])
def test_only_the_watermark_and_the_index_remain_and_all_else_expires(backend: str) -> None:
    watermarks = 0
    for seed in range(20):
        _, server = run_world(backend, seed)
        for key, (_, expires) in server.machine.space.dump().items():
            if key.endswith((b"}:fence", b"}:locks")):
                watermarks += key.endswith(b"}:fence")
            else:
                assert expires is not None, key
                # A killed client may leave keys. Tombstones and the tickets of waiters expire no later than leases.
                assert expires / 1000 < server.wall() + LEFT_MAX, key

    assert (watermarks > 0) == (backend == "redis")


def test_getset_sends_one_of_two_simultaneous_releases_of_a_ticket() -> None:
    """Seed 3425 of `holdfast simulate --backend redis-getset`: the later DEL deleted the key of the next holder."""
    small = SmallWorld(Plan(backend="redis-getset"), Choices(decisions=()))
    member = small.add("a")
    backend, outcomes = member.client.engine.backend, list[object]()

    async def release(ticket: Claim) -> None:
        outcomes.extend(await backend.release([ticket], deadline=member.process.now() + 1.0))

    async def take() -> None:
        lease = await member.client.acquire(member.lock(30.0), 0)
        assert lease is not None
        for _ in range(2):
            member.start(release(lease._claim), "release")

    member.start(take())
    small.world.run(1.0)

    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, bool]
    assert outcomes[1] is True
    small.end()


def test_no_subscription_remains_for_withdrawn_tickets() -> None:
    subscriptions = 0
    for seed in range(20):
        simulation, server = run_world("redis", seed)
        living = [member.link for member in simulation.members.values()]
        for port in server.subscribers:
            subscriptions += port.subscriptions
            assert port.link not in living or not port.waiters, seed

    assert subscriptions > 40
