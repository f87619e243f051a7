"""Scenarios in a simulated ensemble that random worlds rarely reach; each has to catch its mutants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from holdfast.backends.zookeeper.port import Children, Delete
from holdfast.errors import BackendError, OutcomeUnknown
from holdfast.guarantees import FenceOrder
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants.zookeeper import STAGED, ZOOKEEPER
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import LOCK, ClientProcess, SmallWorld
from holdfast_lab.sim.servers.zookeeper.ensemble import Member, ZookeeperServer

TTL = 60.0


class Scenario:
    """A world without random faults."""

    def __init__(self, mutant: str | None, *, timeout: float, tick: float) -> None:
        plan = Plan(backend="zookeeper")
        known = {mutant.name: mutant for mutant in (*ZOOKEEPER, *STAGED)}
        self.small = SmallWorld(plan if mutant is None else known[mutant].apply(plan), Choices(decisions=()))
        assert isinstance(self.small.server, ZookeeperServer)
        self.server = self.small.server
        self.server.session_timeout, self.server.tick = timeout, tick
        self.world = self.small.world
        self.leases: dict[str, SimLease] = {}
        self.granted: dict[str, float] = {}

    def client(self, name: str, member: Member) -> ClientProcess:
        """A client that is connected to this member."""
        self.prefer(member)
        return self.small.add(name)

    def prefer(self, member: Member) -> None:
        """New connections use this member first."""
        self.server._members.sort(key=lambda other: other is not member)

    def acquire(
        self, member: ClientProcess, *, name: str = LOCK, hold: float = 0.0, renew: bool = True, delay: float = 0.0
    ) -> None:
        async def run() -> None:
            lock = member.client.lock(name, options={"ttl": TTL, "renew": renew, "lock_delay": delay})
            lease = await member.client.acquire(lock, None)
            assert lease is not None
            self.leases[member.process.name] = lease
            self.granted[member.process.name] = self.world.now
            if hold:
                await member.client.runtime.sleep(hold)
                await member.client.release(lease)

        member.start(run())

    def run(self, seconds: float) -> None:
        with quiet():
            self.world.run(self.world.now + seconds)

    def pause(self, member: ClientProcess, seconds: float) -> None:
        member.process.pause()
        self.run(seconds)
        member.process.resume()

    def run_until(self, client: str) -> None:
        """Run until this client has acquired the lock."""
        with quiet():
            while client not in self.granted and self.world.now < 100.0:
                self.world.run(self.world.now + 0.001)
        assert client in self.granted


@pytest.fixture
def scenarios() -> Iterator[list[Scenario]]:
    opened: list[Scenario] = []
    yield opened
    for scenario in opened:
        scenario.small.end()


@pytest.mark.parametrize("mutant", [None, "one-write-is-proof", "ping-as-renewal"])
def test_exclusion_holds_when_a_follower_is_cut_off_between_a_write_and_its_next_report(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    scenario = Scenario(mutant, timeout=6.0, tick=0.25)
    scenarios.append(scenario)
    follower, other = scenario.server.nodes[1], scenario.server.nodes[2]
    holder, waiter = scenario.client("holder", follower), scenario.client("waiter", other)
    scenario.prefer(follower)
    scenario.acquire(holder, renew=False)  # so that its heartbeat is its only request
    scenario.run_until("holder")
    scenario.prefer(other)
    scenario.acquire(waiter)
    scenario.run(0.5)
    scenario.prefer(follower)  # the holder can connect to no other server

    # A write of the heartbeat was committed and answered, which renews the lease; the leader sent no ping since.
    with quiet():
        while not follower.active_sessions or scenario.world.now < 3.0:
            scenario.world.run(scenario.world.now + 0.0005)
    lease = scenario.leases["holder"]
    holder.start(holder.client.renew(lease), "renewal")
    scenario.run(0.003)
    assert follower.active_sessions, "the leader has no report of the session"
    follower.is_stalled, follower.reaches_leader = True, False

    scenario.run_until("waiter")
    assert lease.held == (mutant is not None), "two holders at the same time"


@pytest.mark.parametrize("mutant", [None, "node-of-old-session"])
def test_a_node_of_an_ended_session_is_not_used_when_a_lagging_member_shows_it(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    scenario = Scenario(mutant, timeout=2.0, tick=0.5)
    scenarios.append(scenario)
    slow = scenario.server.nodes[1]
    late = scenario.client("late", slow)
    late.client.engine.io_timeout = 5.0
    # Its session is open, and then the reply to its create and all later replies are lost.
    scenario.acquire(late, hold=0.001)
    scenario.run_until("late")
    scenario.run(1.0)
    scenario.granted.clear()
    late.link.replies_cut = True
    scenario.acquire(late)
    scenario.run(0.1)
    late.link.requests_cut = True
    assert len(scenario.server.tickets()) == 1
    catch_up, slow.catch_up = slow.catch_up, lambda until: None  # type: ignore[method-assign] # noqa: ARG005
    scenario.run(4.4)
    assert scenario.server.tickets() == {}, "the session has ended, and its node with it"

    late.link.requests_cut = late.link.replies_cut = False
    slow_again = scenario.world.now + 3.0
    with quiet():
        while "late" not in scenario.granted and scenario.world.now < slow_again:
            scenario.world.run(scenario.world.now + 0.001)
    granted = [entry.fence for entry in scenario.server.tickets().values()]

    if mutant is None:
        assert "late" not in scenario.granted or granted == [scenario.leases["late"].fence]
        slow.catch_up = catch_up  # type: ignore[method-assign]
        scenario.run_until("late")
        assert [entry.fence for entry in scenario.server.tickets().values()] == [scenario.leases["late"].fence]
    else:
        assert "late" in scenario.granted
        assert granted == [], "the client uses a node that does not exist"


@pytest.mark.parametrize("mutant", [None, "all-watch-the-holder"])
def test_each_hand_over_makes_one_waiter_poll(scenarios: list[Scenario], mutant: str | None) -> None:
    polls: dict[int, float] = {}
    for waiters in (3, 12):
        scenario = Scenario(mutant, timeout=60.0, tick=1.0)
        scenarios.append(scenario)
        members = [scenario.client(f"client {number}", scenario.server.nodes[0]) for number in range(waiters)]
        for member in members:
            scenario.acquire(member, hold=1.0)
            scenario.run(0.02)
        count = 0
        handle = scenario.server.handle

        def counting(source: Any, requests: Any, handle: Any = handle) -> Any:
            nonlocal count
            count += sum(type(request) is Children and not request.watch for request in requests)
            return handle(source, requests)

        scenario.server.handle = counting  # type: ignore[method-assign]
        scenario.run_until(f"client {waiters - 1}")
        polls[waiters] = count / waiters

    assert (polls[12] < 2 * polls[3] + 1) == (mutant is None), polls


@pytest.mark.parametrize("mutant", [None, "end-reported-at-renewal"])
def test_a_lease_is_lost_as_soon_as_the_end_of_its_session_is_known(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    scenario = Scenario(mutant, timeout=30.0, tick=1.0)
    scenarios.append(scenario)
    holder = scenario.client("holder", scenario.server.nodes[0])
    scenario.acquire(holder, renew=False)  # so that a renewal does not report it
    scenario.run_until("holder")
    (number,) = scenario.server.sessions

    scenario.server.close(number)
    scenario.run(6.0)  # more than the pause between two pairs of writes, less than the proven time of the session

    assert scenario.leases["holder"].lost == (mutant is None)


@pytest.mark.parametrize("mutant", [None, "acquire-fails-with-session"])
@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_an_acquire_opens_a_new_session_when_the_servers_have_closed_the_old_one(
    scenarios: list[Scenario], mutant: str | None, timeout: float
) -> None:
    scenario = Scenario(mutant, timeout=30.0, tick=1.0)
    scenarios.append(scenario)
    member = scenario.client("late", scenario.server.nodes[0])
    scenario.acquire(member, hold=0.001)
    scenario.run_until("late")
    scenario.run(1.0)
    (number,) = scenario.server.sessions
    scenario.server.close(number)
    outcomes: list[str] = []

    async def acquire() -> None:
        try:
            lease = await member.client.acquire(member.client.lock(LOCK, options={"ttl": TTL}), timeout)
        except BackendError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("busy" if lease is None else "granted")

    member.start(acquire())
    scenario.run(3.0)

    assert (outcomes == ["granted"]) == (mutant is None), outcomes


@pytest.mark.parametrize("mutant", [None, "fences-go-back-unreported"])
@pytest.mark.parametrize("data", ["none", "old"])
def test_fences_that_go_back_after_a_restore_are_reported(
    scenarios: list[Scenario], mutant: str | None, data: str
) -> None:
    scenario = Scenario(mutant, timeout=6.0, tick=0.5)
    scenarios.append(scenario)
    member = scenario.client("holder", scenario.server.nodes[0])
    backend = member.client.engine.backend
    if data == "old":
        scenario.server.back_up()
    for _ in range(10):
        scenario.granted.clear()
        scenario.acquire(member, hold=0.001)
        scenario.run_until("holder")
        scenario.run(0.1)
    before = scenario.leases["holder"].fence
    assert (backend.warnings, backend.guarantees.fence) == ((), FenceOrder.DURABLE_STORAGE)

    scenario.granted.clear()
    if data == "old":
        scenario.server.restore_data()
    else:
        scenario.server.lose_data()
    scenario.acquire(member)
    scenario.run_until("holder")

    assert scenario.leases["holder"].fence < before
    is_reported = backend.guarantees.fence is FenceOrder.BEST_EFFORT and len(backend.warnings) == 1
    assert is_reported == (mutant is None)


@pytest.mark.parametrize("mutant", [None, "checked-during-a-release"])
def test_a_ticket_is_deleted_when_the_servers_are_restored_while_its_release_waits_for_another_session(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    scenario = Scenario(mutant, timeout=30.0, tick=1.0)
    scenarios.append(scenario)
    server = scenario.server
    server.session_timeout = None  # each ttl has a session of its own
    leader, follower = server.nodes[0], server.nodes[1]
    member = scenario.client("holder", leader)
    client, leases = member.client, []

    async def acquire(name: str, ttl: float) -> None:
        leases.append(await client.acquire(client.lock(name, options={"ttl": ttl}), None))

    member.start(acquire("answered", 20.0))
    scenario.run(1.0)
    scenario.prefer(follower)
    member.start(acquire("unanswered", 40.0))
    scenario.run(1.0)
    scenario.prefer(leader)
    server.back_up()
    follower.is_stalled, follower.reaches_leader = True, False
    tickets = [lease._claim for lease in leases if lease is not None]
    outcomes: list[object] = []

    async def release() -> None:
        outcomes.extend(await client.engine.backend.release(tickets, deadline=client.runtime.now() + 4.0))

    member.start(release())
    scenario.run(0.5)
    assert len(server.tickets()) == 1, "the first ticket is deleted, and the client waits for the second answer"
    server.restore_data()
    server.zxid += 1000  # as after an election, so that the session with the leader continues
    for node in server.nodes:
        node.tree.zxid = server.zxid
    scenario.run(2.0)
    assert not outcomes
    scenario.run(3.0)

    assert [type(outcome) for outcome in outcomes] == [bool, OutcomeUnknown]
    is_deleted = all(entry.lock != "answered" for entry in server.tickets().values())
    assert is_deleted == (mutant is None)


@pytest.mark.parametrize("mutant", [None, "own-node-not-recreated"])
def test_a_session_survives_the_deletion_of_its_heartbeat_node(scenarios: list[Scenario], mutant: str | None) -> None:
    scenario = Scenario(mutant, timeout=6.0, tick=0.5)
    scenarios.append(scenario)
    scenario.acquire(scenario.client("holder", scenario.server.nodes[0]))
    scenario.run_until("holder")
    scenario.run(1.0)
    (own,) = (path for path in scenario.server.leader.tree.nodes if "%sessions/" in path)

    scenario.server._commit(Delete(own), 0)
    ends, (port,) = scenario.world.now + 12.0, scenario.server.ports
    while scenario.world.now < ends and port.connections < 5:
        scenario.run(0.01)

    assert scenario.leases["holder"].held
    assert (port.connections == 1) == (mutant is None), "otherwise it reconnects endlessly"


@pytest.mark.parametrize("mutant", [None, "root-not-recreated"])
def test_a_client_creates_a_deleted_root_node_again_for_a_new_lock(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    scenario = Scenario(mutant, timeout=6.0, tick=0.5)
    scenarios.append(scenario)
    member = scenario.client("holder", scenario.server.nodes[0])
    scenario.acquire(member, hold=0.001)
    scenario.run_until("holder")
    scenario.run(0.1)
    scenario.granted.clear()

    scenario.server.lose_data()
    scenario.acquire(member, name="another")
    with suppress(BackendError):
        scenario.run(2.0)

    assert ("holder" in scenario.granted) == (mutant is None)
    if mutant is None:
        assert any("%sessions/" in path for path in scenario.server.leader.tree.nodes), "the heartbeat has its node too"


@pytest.mark.parametrize("delay", [0.0, 3.0])
@pytest.mark.parametrize("phase", [0.0, 0.5, 1.0, 1.5])
def test_a_lease_that_survives_a_pause_is_renewed_after_it(
    scenarios: list[Scenario], phase: float, delay: float
) -> None:
    scenario = Scenario(None, timeout=12.0, tick=1.0)
    scenarios.append(scenario)
    holder = scenario.client("holder", scenario.server.nodes[1])
    scenario.acquire(holder, delay=delay)
    scenario.run_until("holder")
    scenario.run(8.0 + phase)
    lease = scenario.leases["holder"]

    scenario.pause(holder, lease.remaining - 0.2)
    scenario.run(15.0)

    assert lease.held


@pytest.mark.parametrize("delay", [0.0, 3.0])
@pytest.mark.parametrize("pause", [4.0, 6.0, 8.0])
@pytest.mark.parametrize("later", [0.0, 1.0, 3.3])
def test_a_lease_is_not_granted_on_a_proof_from_before_a_pause(
    scenarios: list[Scenario], delay: float, pause: float, later: float
) -> None:
    scenario = Scenario(None, timeout=12.0, tick=1.0)
    scenarios.append(scenario)
    member = scenario.client("holder", scenario.server.nodes[1])
    scenario.acquire(member, hold=0.001, delay=delay)
    scenario.run_until("holder")
    scenario.run(1.0)
    scenario.granted.clear()

    scenario.pause(member, pause)
    scenario.run(later)
    scenario.acquire(member, delay=delay)
    scenario.run(15.0)

    assert scenario.leases["holder"].held


@pytest.mark.parametrize("mutant", [None, "lease-without-proof"])
def test_a_waiter_that_was_paused_gets_a_lease_that_can_be_renewed(
    scenarios: list[Scenario], mutant: str | None
) -> None:
    is_kept: list[bool] = []
    for delay, pause, later in itertools.product((0.0, 3.0), (4.0, 6.0, 8.0), (0.01, 1.0, 3.3)):
        scenario = Scenario(mutant, timeout=12.0, tick=1.0)
        scenarios.append(scenario)
        holder, waiter = (
            scenario.client("holder", scenario.server.nodes[2]),
            scenario.client("waiter", scenario.server.nodes[1]),
        )
        scenario.acquire(holder, hold=8.0 + pause + later)
        scenario.run_until("holder")
        scenario.acquire(waiter, delay=delay)
        scenario.run(8.0)

        scenario.pause(waiter, pause)
        scenario.run_until("waiter")
        scenario.run(15.0)
        is_kept.append(scenario.leases["waiter"].held)

    assert all(is_kept) == (mutant is None)
