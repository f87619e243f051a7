"""Simulated nodes that fail together, or tell each other something: then their majority proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.backends.redis.port import Call, Channel
from holdfast.backends.redis.protocol.keys import keys_and_record_before, keys_of
from holdfast.backends.redlock import lua
from holdfast.checking import history as h
from holdfast.errors import OutcomeUnknown
from holdfast.sim import faults
from holdfast.sim.choices import Choices
from holdfast.sim.run import Plan, run
from holdfast.sim.scenarios import LOCK, SmallWorld
from holdfast.sim.servers.redis.port import PREFIX
from holdfast.sim.servers.redlock.node import UP_FOR, Node
from holdfast.sim.servers.redlock.port import SimNodes
from holdfast.sim.servers.redlock.server import RedlockServer
from holdfast.sim.servers.subscriptions import NOTICED_MAX

KEYS = keys_of(PREFIX, LOCK)
HELLO = Call(lua.HELLO, KEYS, ())
NONCE = "f" * 32


def acquire(nonce: str = NONCE, ttl_ms: int = 60_000) -> Call:
    return Call(
        lua.ACQUIRE, keys_and_record_before(PREFIX, LOCK), (nonce, 1, ttl_ms, 0, "", "run", 0, "", "", "a", "{}")
    )


class Council:
    """Three nodes, and the port of a client that takes no lock by itself."""

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

    def ask(self, *calls: tuple[int, Call], lasts: float = 0.02) -> Any:
        return self.do(lambda: self.port.run_calls(calls, deadline=self.now + 1.0), lasts)

    def run(self, seconds: float) -> None:
        self.small.world.run(self.now + seconds)

    @property
    def now(self) -> float:
        return self.small.world.now


@pytest.fixture
def council() -> Iterator[Council]:
    made = Council()
    yield made
    made.small.end()


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_says_who_it_is_when_it_is_met_and_is_another_after_a_restart(council: Council) -> None:
    council.ask((1, HELLO))
    before = council.port.server_run(1)
    council.server.nodes[1].restart()
    lost = council.ask((1, acquire()))
    council.run(3.0)
    council.ask((1, HELLO))
    after = council.port.server_run(1)

    assert council.port.server_run(0) is None
    assert before is not None
    assert after is not None
    assert before.run_id != after.run_id
    assert before.started_at == pytest.approx(-UP_FOR, abs=1.1)
    assert after.started_at == pytest.approx(0.03, abs=1.1)
    assert isinstance(lost[0], OutcomeUnknown)
    assert council.server.nodes[1].machine.command(["EXISTS", KEYS.lock]) == 0


def test_a_node_that_stands_still_holds_up_nobody_but_itself(council: Council) -> None:
    council.ask(*((number, HELLO) for number in range(3)))
    council.server.nodes[2].is_stalled = True

    votes = council.ask(*((number, acquire()) for number in range(3)), lasts=2.0)

    assert [reply[0] for reply in votes[:2]] == [b"granted", b"granted"]
    assert isinstance(votes[2], OutcomeUnknown)


def test_uptime_is_by_a_clock_that_can_be_set(council: Council) -> None:
    node = council.server.nodes[0]
    node.lose_data()
    council.run(1.5)
    node.step_clock(40.0)

    assert node.uptime == 41
    assert council.server.nodes[1].uptime == UP_FOR + 1


def test_hints_are_heard_from_the_next_node_after_trouble_with_one(council: Council) -> None:
    heard: list[str] = []
    council.port.listen(heard.append, lambda: heard.append("missed"))
    channel = council.port.channel(KEYS)
    council.do(lambda: council.port.subscribe(channel, NONCE, deadline=council.now + 1.0))
    assert publish(council, 0, channel) == 1

    council.server.nodes[0].restart()
    council.run(NOTICED_MAX + 0.1)

    assert [publish(council, number, channel) for number in range(3)] == [0, 1, 0]
    council.run(0.1)
    assert heard == [NONCE, "missed", NONCE]


def publish(council: Council, number: int, channel: Channel) -> Any:
    reply = council.server.nodes[number].machine.command(["PUBLISH", channel.name, NONCE])
    council.run(0.02)
    return reply


# ── what a history says of it ────────────────────────────────────────────────────────────────────────────────────────


def test_only_a_majority_that_stands_still_cuts_everybody_off(council: Council) -> None:
    said = []
    for node in council.server.nodes[:2]:
        node.is_stalled = True
        said.append(node.stall_event())
    for node in council.server.nodes[:2]:
        said.append(node.stall_end_event())
        node.resume()

    assert [type(event) for event in said] == [h.FaultStarted, h.Unreachable, h.Reachable, h.FaultEnded]


def vote(council: Council, *numbers: int) -> None:
    council.ask(*((number, HELLO) for number in numbers))
    council.ask(*((number, acquire()) for number in numbers))


def forgotten(node: Node, what: h.StateKind) -> list[str]:
    return [event.kind for event in node.state_lost(what) if isinstance(event, h.StateLost)]


@pytest.mark.parametrize(("votes", "lost"), [((0, 1, 2), []), ((0, 1), ["lease"]), ((1, 2), []), ((), [])])
def test_a_clock_that_leaps_counts_for_leases_without_a_majority_elsewhere(
    council: Council, votes: tuple[int, ...], lost: list[str]
) -> None:
    vote(council, *votes)

    assert forgotten(council.server.nodes[0], "lease") == lost


def test_data_that_is_lost_is_held_against_the_protocol_unless_a_clock_is_wrong_too(council: Council) -> None:
    vote(council, 0, 1)
    one, other, _ = council.server.nodes

    assert forgotten(one, "data") == []
    assert forgotten(other, "data") == []
    assert forgotten(one, "clock") == ["data", "clock"]


def test_a_majority_is_in_and_a_lease_that_lost_it_stays_out(council: Council) -> None:
    vote(council, 0)
    assert council.server.tickets() == {}
    assert set(council.server.live()) == {NONCE}, "a single vote is in somebody's way"
    vote(council, 1)
    assert council.server.tickets()[NONCE].fence

    council.server.nodes[1].lose_data()
    council.run(1.0)
    vote(council, 1, 2)

    assert council.server.tickets() == {}


def test_most_cuts_are_between_a_client_and_one_node() -> None:
    cuts: list[str] = []
    only_cuts = replace(faults.only(faults.ALL, frozenset({"cut"})), cut=0.2)
    for seed in range(8):
        ran = run(Plan(backend="redlock", faults=only_cuts, enable=1.0), seed)
        assert ran.failure is None
        one = [event.detail for event in ran.history if isinstance(event, h.FaultStarted) and event.name == "cut"]
        whole = [event for event in ran.history if isinstance(event, h.Unreachable)]
        assert len(one) + len(whole) == ran.happened["cut"]
        cuts += one

    assert len({cut.rpartition(" ")[2] for cut in cuts}) >= 3
    assert len(cuts) > 20


def test_recorded_decisions_replay_their_run_to_the_byte() -> None:
    plan = Plan(backend="redlock")
    for seed in range(4):
        ran = run(plan, seed)

        again = run(plan, decisions=ran.decisions)

        assert list(h.to_lines(again.history)) == list(h.to_lines(ran.history))
