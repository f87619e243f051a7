"""Scenarios in a simulated ensemble that random worlds rarely reach; each has to catch its mutants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.backends.zookeeper.port import Children, Delete
from holdfast.errors import BackendError
from holdfast.guarantees import FenceOrder
from holdfast.sim.choices import Choices
from holdfast.sim.client import SimLease
from holdfast.sim.mutants.zookeeper import STAGED, ZOOKEEPER
from holdfast.sim.run import Plan, quiet
from holdfast.sim.scenarios import LOCK, ClientProcess, SmallWorld
from holdfast.sim.servers.zookeeper.ensemble import Member, ZookeeperServer

TTL = 60.0


class Scene:
    """A world without random faults."""

    def __init__(self, mutant: str | None, *, timeout: float, tick: float) -> None:
        plan = Plan(backend="zookeeper")
        known = {one.name: one for one in (*ZOOKEEPER, *STAGED)}
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
        self.server._members.sort(key=lambda one: one is not member)

    def take(
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

    def run_until(self, what: str) -> None:
        """Run until this client has acquired the lock."""
        with quiet():
            while what not in self.granted and self.world.now < 100.0:
                self.world.run(self.world.now + 0.001)
        assert what in self.granted


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.small.end()


@pytest.mark.parametrize("mutant", [None, "one-write-is-proof", "ping-as-renewal"])
def test_exclusion_holds_when_a_follower_is_cut_off_between_a_write_and_its_next_report(
    scenes: list[Scene], mutant: str | None
) -> None:
    scene = Scene(mutant, timeout=6.0, tick=0.25)
    scenes.append(scene)
    follower, other = scene.server.nodes[1], scene.server.nodes[2]
    holder, waiter = scene.client("holder", follower), scene.client("waiter", other)
    scene.prefer(follower)
    scene.take(holder, renew=False)  # so that its heartbeat is its only request
    scene.run_until("holder")
    scene.prefer(other)
    scene.take(waiter)
    scene.run(0.5)
    scene.prefer(follower)  # the holder can connect to no other server

    # A write of the heartbeat was committed and answered, which renews the lease; the leader sent no ping since.
    with quiet():
        while not follower.active_sessions or scene.world.now < 3.0:
            scene.world.run(scene.world.now + 0.0005)
    lease = scene.leases["holder"]
    holder.start(holder.client.renew(lease), "renewal")
    scene.run(0.003)
    assert follower.active_sessions, "and the leader has not been told"
    follower.is_stalled, follower.reaches_leader = True, False

    scene.run_until("waiter")
    assert lease.held == (mutant is not None), "two of them, for a while"


@pytest.mark.parametrize("mutant", [None, "old-session-s-node"])
def test_a_node_of_an_ended_session_is_not_used_when_a_lagging_member_shows_it(
    scenes: list[Scene], mutant: str | None
) -> None:
    scene = Scene(mutant, timeout=2.0, tick=0.5)
    scenes.append(scene)
    slow = scene.server.nodes[1]
    late = scene.client("late", slow)
    late.client.engine.io_timeout = 5.0
    # Its session is open, and then the reply to its create and all later replies are lost.
    scene.take(late, hold=0.001)
    scene.run_until("late")
    scene.run(1.0)
    scene.granted.clear()
    late.link.replies_cut = True
    scene.take(late)
    scene.run(0.1)
    late.link.requests_cut = True
    assert len(scene.server.tickets()) == 1
    catch_up, slow.catch_up = slow.catch_up, lambda until: None  # type: ignore[method-assign] # noqa: ARG005
    scene.run(4.4)
    assert scene.server.tickets() == {}, "the session has ended, and its node with it"

    late.link.requests_cut = late.link.replies_cut = False
    slow_again = scene.world.now + 3.0
    with quiet():
        while "late" not in scene.granted and scene.world.now < slow_again:
            scene.world.run(scene.world.now + 0.001)
    is_in = [entry.fence for entry in scene.server.tickets().values()]

    if mutant is None:
        assert "late" not in scene.granted or is_in == [scene.leases["late"].fence]
        slow.catch_up = catch_up  # type: ignore[method-assign]
        scene.run_until("late")
        assert [entry.fence for entry in scene.server.tickets().values()] == [scene.leases["late"].fence]
    else:
        assert "late" in scene.granted
        assert is_in == [], "it believes in a node that is not there"


@pytest.mark.parametrize("mutant", [None, "all-watch-the-first"])
def test_each_hand_over_makes_one_waiter_poll(scenes: list[Scene], mutant: str | None) -> None:
    looks: dict[int, float] = {}
    for crowd in (3, 12):
        scene = Scene(mutant, timeout=60.0, tick=1.0)
        scenes.append(scene)
        members = [scene.client(f"client {number}", scene.server.nodes[0]) for number in range(crowd)]
        for member in members:
            scene.take(member, hold=1.0)
            scene.run(0.02)
        count = 0
        handle = scene.server.handle

        def counting(source: object, requests: object, handle: object = handle) -> object:
            nonlocal count
            count += sum(type(one) is Children and not one.watch for one in requests)  # type: ignore[attr-defined]
            return handle(source, requests)  # type: ignore[operator]

        scene.server.handle = counting  # type: ignore[method-assign]
        scene.run_until(f"client {crowd - 1}")
        looks[crowd] = count / crowd

    assert (looks[12] < 2 * looks[3] + 1) == (mutant is None), looks


@pytest.mark.parametrize("mutant", [None, "end-reported-at-renewal"])
def test_a_lease_is_lost_as_soon_as_the_end_of_its_session_is_known(scenes: list[Scene], mutant: str | None) -> None:
    scene = Scene(mutant, timeout=30.0, tick=1.0)
    scenes.append(scene)
    holder = scene.client("holder", scene.server.nodes[0])
    scene.take(holder, renew=False)  # so that a renewal does not report it
    scene.run_until("holder")
    (number,) = scene.server.sessions

    scene.server.close(number)
    scene.run(6.0)  # more than the pause between two pairs of writes, less than the proven time of the session

    assert scene.leases["holder"].lost == (mutant is None)


@pytest.mark.parametrize("mutant", [None, "fails-with-its-session"])
@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_an_acquire_opens_a_new_session_when_the_servers_have_closed_the_old_one(
    scenes: list[Scene], mutant: str | None, timeout: float
) -> None:
    scene = Scene(mutant, timeout=30.0, tick=1.0)
    scenes.append(scene)
    member = scene.client("late", scene.server.nodes[0])
    scene.take(member, hold=0.001)
    scene.run_until("late")
    scene.run(1.0)
    (number,) = scene.server.sessions
    scene.server.close(number)
    outcomes: list[str] = []

    async def take() -> None:
        try:
            lease = await member.client.acquire(member.client.lock(LOCK, options={"ttl": TTL}), timeout)
        except BackendError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("busy" if lease is None else "granted")

    member.start(take())
    scene.run(3.0)

    assert (outcomes == ["granted"]) == (mutant is None), outcomes


@pytest.mark.parametrize("mutant", [None, "silent-about-fences"])
@pytest.mark.parametrize("data", ["none", "old"])
def test_fences_that_go_back_after_a_restore_are_reported(scenes: list[Scene], mutant: str | None, data: str) -> None:
    scene = Scene(mutant, timeout=6.0, tick=0.5)
    scenes.append(scene)
    member = scene.client("holder", scene.server.nodes[0])
    backend = member.client.engine.backend
    if data == "old":
        scene.server.back_up()
    for _ in range(10):
        scene.granted.clear()
        scene.take(member, hold=0.001)
        scene.run_until("holder")
        scene.run(0.1)
    before = scene.leases["holder"].fence
    assert (backend.warnings, backend.guarantees.fence) == ((), FenceOrder.DURABLE_STORAGE)

    scene.granted.clear()
    if data == "old":
        scene.server.restore_data()
    else:
        scene.server.lose_data()
    scene.take(member)
    scene.run_until("holder")

    assert scene.leases["holder"].fence < before
    is_reported = backend.guarantees.fence is FenceOrder.BEST_EFFORT and len(backend.warnings) == 1
    assert is_reported == (mutant is None)


@pytest.mark.parametrize("mutant", [None, "own-node-not-made-again"])
def test_a_session_survives_the_deletion_of_its_heartbeat_node(scenes: list[Scene], mutant: str | None) -> None:
    scene = Scene(mutant, timeout=6.0, tick=0.5)
    scenes.append(scene)
    scene.take(scene.client("holder", scene.server.nodes[0]))
    scene.run_until("holder")
    scene.run(1.0)
    (own,) = (path for path in scene.server.leader.tree.nodes if "%sessions/" in path)

    scene.server._commit(Delete(own), 0)
    ends, (port,) = scene.world.now + 12.0, scene.server.ports
    while scene.world.now < ends and port.connections < 5:
        scene.run(0.01)

    assert scene.leases["holder"].held
    assert (port.connections == 1) == (mutant is None), "else it connects again and again"


@pytest.mark.parametrize("mutant", [None, "root-taken-for-granted"])
def test_a_client_creates_a_deleted_root_node_again_for_a_new_lock(scenes: list[Scene], mutant: str | None) -> None:
    scene = Scene(mutant, timeout=6.0, tick=0.5)
    scenes.append(scene)
    member = scene.client("holder", scene.server.nodes[0])
    scene.take(member, hold=0.001)
    scene.run_until("holder")
    scene.run(0.1)
    scene.granted.clear()

    scene.server.lose_data()
    scene.take(member, name="another")
    with suppress(BackendError):
        scene.run(2.0)

    assert ("holder" in scene.granted) == (mutant is None)
    if mutant is None:
        assert any("%sessions/" in path for path in scene.server.leader.tree.nodes), "the heartbeat has its node too"


@pytest.mark.parametrize("delay", [0.0, 3.0])
@pytest.mark.parametrize("phase", [0.0, 0.5, 1.0, 1.5])
def test_a_lease_that_survives_a_pause_is_renewed_after_it(scenes: list[Scene], phase: float, delay: float) -> None:
    scene = Scene(None, timeout=12.0, tick=1.0)
    scenes.append(scene)
    holder = scene.client("holder", scene.server.nodes[1])
    scene.take(holder, delay=delay)
    scene.run_until("holder")
    scene.run(8.0 + phase)
    lease = scene.leases["holder"]

    scene.pause(holder, lease.remaining - 0.2)
    scene.run(15.0)

    assert lease.held


@pytest.mark.parametrize("delay", [0.0, 3.0])
@pytest.mark.parametrize("pause", [4.0, 6.0, 8.0])
@pytest.mark.parametrize("later", [0.0, 1.0, 3.3])
def test_a_lease_is_not_granted_on_a_proof_from_before_a_pause(
    scenes: list[Scene], delay: float, pause: float, later: float
) -> None:
    scene = Scene(None, timeout=12.0, tick=1.0)
    scenes.append(scene)
    member = scene.client("holder", scene.server.nodes[1])
    scene.take(member, hold=0.001, delay=delay)
    scene.run_until("holder")
    scene.run(1.0)
    scene.granted.clear()

    scene.pause(member, pause)
    scene.run(later)
    scene.take(member, delay=delay)
    scene.run(15.0)

    assert scene.leases["holder"].held


@pytest.mark.parametrize("mutant", [None, "lease-without-proof"])
def test_a_waiter_that_was_paused_gets_a_lease_that_can_be_renewed(scenes: list[Scene], mutant: str | None) -> None:
    is_kept: list[bool] = []
    for delay, pause, later in itertools.product((0.0, 3.0), (4.0, 6.0, 8.0), (0.01, 1.0, 3.3)):
        scene = Scene(mutant, timeout=12.0, tick=1.0)
        scenes.append(scene)
        holder, waiter = scene.client("holder", scene.server.nodes[2]), scene.client("waiter", scene.server.nodes[1])
        scene.take(holder, hold=8.0 + pause + later)
        scene.run_until("holder")
        scene.take(waiter, delay=delay)
        scene.run(8.0)

        scene.pause(waiter, pause)
        scene.run_until("waiter")
        scene.run(15.0)
        is_kept.append(scene.leases["waiter"].held)

    assert all(is_kept) == (mutant is None)
