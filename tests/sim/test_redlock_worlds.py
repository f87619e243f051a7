"""Hazard: the simulated nodes fail together or share information, so that their majority proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.backends.redis.port import Call, Channel
from holdfast.backends.redis.protocol.keys import keys_and_record_before, keys_of
from holdfast.backends.redlock import lua
from holdfast.errors import OutcomeUnknown
from holdfast_lab.checking import history as h
from holdfast_lab.sim import faults
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.run import Plan, run
from holdfast_lab.sim.scenarios import LOCK, SmallWorld
from holdfast_lab.sim.servers.redis.port import PREFIX
from holdfast_lab.sim.servers.redlock.node import UP_FOR, Node
from holdfast_lab.sim.servers.redlock.port import SimNodes
from holdfast_lab.sim.servers.redlock.server import RedlockServer
from holdfast_lab.sim.servers.subscriptions import NOTICED_MAX
from tests.support.wakeups import RecordedWakeups

KEYS = keys_of(PREFIX, LOCK)
HELLO = Call(lua.HELLO, KEYS, ())
NONCE = "f" * 32


def acquire(nonce: str = NONCE, ttl_ms: int = 60_000) -> Call:
    return Call(
        lua.ACQUIRE, keys_and_record_before(PREFIX, LOCK), (nonce, 1, ttl_ms, 0, "", "run", 0, "", "", "a", "{}")
    )


class SimRedlock:
    """Three nodes, and the port of a client that acquires no lock by itself."""

    def __init__(self) -> None:
        self.small = SmallWorld(Plan(backend="redlock"), Choices(decisions=()))
        assert isinstance(self.small.server, RedlockServer)
        self.server = self.small.server
        self.small.add("a")
        (port,) = {port for node in self.server.nodes for port in node.subscribers}
        assert isinstance(port, SimNodes)
        self.port = port
        self.small.recorder._owner[NONCE] = ("a", 1)

    def do(self, step: Callable[[], Coroutine[Any, Any, Any]], lasts: float = 0.02) -> Any:
        done: list[Any] = []

        async def work() -> None:
            done.append(await step())

        self.small.members["a"].start(work(), "step")
        self.run(lasts)
        return done[0] if done else None

    def call(self, *calls: tuple[int, Call], lasts: float = 0.02) -> Any:
        return self.do(lambda: self.port.run_calls(calls, deadline=self.now + 1.0), lasts)

    def run(self, seconds: float) -> None:
        self.small.world.run(self.now + seconds)

    @property
    def now(self) -> float:
        return self.small.world.now


@pytest.fixture
def redlock() -> Iterator[SimRedlock]:
    simulated = SimRedlock()
    yield simulated
    simulated.small.end()


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_reports_its_run_in_the_handshake_and_another_after_a_restart(redlock: SimRedlock) -> None:
    redlock.call((1, HELLO))
    before = redlock.port.server_run(1)
    redlock.server.nodes[1].restart()
    lost = redlock.call((1, acquire()))
    redlock.run(3.0)
    redlock.call((1, HELLO))
    after = redlock.port.server_run(1)

    assert redlock.port.server_run(0) is None
    assert before is not None
    assert after is not None
    assert before.run_id != after.run_id
    assert before.started_at == pytest.approx(-UP_FOR, abs=1.1)
    assert after.started_at == pytest.approx(0.03, abs=1.1)
    assert isinstance(lost[0], OutcomeUnknown)
    assert redlock.server.nodes[1].machine.command(["EXISTS", KEYS.lock]) == 0


def test_a_stalled_node_does_not_delay_other_nodes(redlock: SimRedlock) -> None:
    redlock.call(*((number, HELLO) for number in range(3)))
    redlock.server.nodes[2].is_stalled = True

    votes = redlock.call(*((number, acquire()) for number in range(3)), lasts=2.0)

    assert [reply[0] for reply in votes[:2]] == [b"granted", b"granted"]
    assert isinstance(votes[2], OutcomeUnknown)


def test_the_uptime_of_a_node_changes_when_its_clock_is_set(redlock: SimRedlock) -> None:
    node = redlock.server.nodes[0]
    node.lose_data()
    redlock.run(1.5)
    node.step_clock(40.0)

    assert node.uptime == 41
    assert redlock.server.nodes[1].uptime == UP_FOR + 1


def test_notifications_arrive_from_the_next_node_after_an_error(redlock: SimRedlock) -> None:
    recorded = redlock.port.wakeups = RecordedWakeups(redlock.port._runtime)
    received = recorded.received
    channel = redlock.port.channel(KEYS)
    redlock.do(lambda: redlock.port.subscribe(channel, NONCE, deadline=redlock.now + 1.0))
    assert publish(redlock, 0, channel) == 1

    redlock.server.nodes[0].restart()
    redlock.run(NOTICED_MAX + 0.1)

    assert [publish(redlock, number, channel) for number in range(3)] == [0, 1, 0]
    redlock.run(0.1)
    assert received == [NONCE, "missed", NONCE]


def publish(redlock: SimRedlock, number: int, channel: Channel) -> Any:
    reply = redlock.server.nodes[number].machine.command(["PUBLISH", channel.name, NONCE])
    redlock.run(0.02)
    return reply


# ── events in the history ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_store_is_cut_off_only_when_a_majority_stalls(redlock: SimRedlock) -> None:
    events = []
    for node in redlock.server.nodes[:2]:
        node.is_stalled = True
        events.append(node.stall_event())
    for node in redlock.server.nodes[:2]:
        events.append(node.stall_end_event())
        node.resume()

    assert [type(event) for event in events] == [h.FaultStarted, h.Unreachable, h.Reachable, h.FaultEnded]


def vote(redlock: SimRedlock, *numbers: int) -> None:
    redlock.call(*((number, HELLO) for number in numbers))
    redlock.call(*((number, acquire()) for number in numbers))


def forgotten(node: Node, kind: h.StateKind) -> list[str]:
    return [event.kind for event in node.state_lost(kind) if isinstance(event, h.StateLost)]


@pytest.mark.parametrize(("votes", "lost"), [((0, 1, 2), []), ((0, 1), ["lease"]), ((1, 2), []), ((), [])])
def test_a_clock_leap_affects_leases_without_a_majority_on_other_nodes(
    redlock: SimRedlock, votes: tuple[int, ...], lost: list[str]
) -> None:
    vote(redlock, *votes)

    assert forgotten(redlock.server.nodes[0], "lease") == lost


def test_lost_data_excuses_no_violation_unless_a_clock_is_wrong_too(redlock: SimRedlock) -> None:
    vote(redlock, 0, 1)
    first, second, _ = redlock.server.nodes

    assert forgotten(first, "data") == []
    assert forgotten(second, "data") == []
    assert forgotten(first, "clock") == ["data", "clock"]


def test_a_majority_holds_the_lock_and_a_lease_that_lost_it_does_not_return(redlock: SimRedlock) -> None:
    vote(redlock, 0)
    assert redlock.server.tickets() == {}
    assert set(redlock.server.live()) == {NONCE}, "a single vote blocks other tickets"
    vote(redlock, 1)
    assert redlock.server.tickets()[NONCE].fence

    redlock.server.nodes[1].lose_data()
    redlock.run(1.0)
    vote(redlock, 1, 2)

    assert redlock.server.tickets() == {}


def test_most_cuts_are_between_a_client_and_one_node() -> None:
    cuts: list[str] = []
    only_cuts = replace(faults.only(faults.ALL, frozenset({"cut"})), cut=0.2)
    for seed in range(4):
        ran = run(Plan(backend="redlock", faults=only_cuts, enable=1.0), seed)
        assert ran.failure is None
        details = [event.detail for event in ran.history if isinstance(event, h.FaultStarted) and event.name == "cut"]
        whole = [event for event in ran.history if isinstance(event, h.Unreachable)]
        assert len(details) + len(whole) == ran.happened["cut"]
        cuts += details

    assert len({cut.rpartition(" ")[2] for cut in cuts}) >= 3
    assert len(cuts) > 10


def test_recorded_choices_replay_the_same_run() -> None:
    plan = Plan(backend="redlock")
    for seed in range(2):
        ran = run(plan, seed)

        again = run(plan, decisions=ran.decisions)

        assert list(h.to_lines(again.history)) == list(h.to_lines(ran.history))
