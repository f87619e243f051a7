"""Hazard: a lease relies on a vote of an earlier attempt, which got no reply and therefore still releases the vote."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import Any

import pytest

from holdfast.backends.redis.port import Call
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.core.tickets import Claim, Granted, Live, Waiting
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast_lab.sim.fence_model import KEYS, ParkedPort, StoppedClock
from holdfast_lab.sim.servers.redis.machine import Machine
from holdfast_lab.sim.servers.redlock.node import config_for

TICKET = Claim("lock", "a" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
ALL = (0, 1, 2)


class Nodes:
    """Three nodes with their scripts, and a client whose requests and replies reach some of them."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.port = ParkedPort(ALL)
        self.backend = RedlockBackend(config_for(3, max_ttl=60.0), self.port, self.clock)  # type: ignore[arg-type]
        self.machines = [Machine(lambda: round(self.clock.now() * 1e6), lambda *_: 0) for _ in ALL]

    def try_acquire(self, *, executed: Collection[int], replied: Collection[int]) -> Any:
        return self.run(
            self.backend.try_acquire(TICKET, queue=True, deadline=self.clock.now() + 5.0), executed, replied
        )

    def renew(self, *, executed: Collection[int], replied: Collection[int]) -> Any:
        return self.run(self.backend.renew([TICKET], deadline=self.clock.now() + 5.0), executed, replied)[0]

    def run(self, work: Coroutine[Any, Any, Any], executed: Collection[int], replied: Collection[int]) -> Any:
        """Only the nodes in `executed` execute the first requests. Later requests get no reply."""
        replies: Any = None
        try:
            while True:
                calls = work.send(replies)
                replies = [self.answer(number, call, executed, replied) for number, call in calls]
                executed = replied = ()
        except StopIteration as end:
            return end.value

    def answer(self, number: int, call: Call, executed: Collection[int], replied: Collection[int]) -> Any:
        reply: Any = OutcomeUnknown(backend=f"node-{number}", problem="no answer in time")
        if number in executed:
            answer = self.machines[number].run(call.script.text, call.keys.names, call.arguments)
            reply = answer if number in replied else reply
        return reply

    def run_background_work(self) -> None:
        """Run the background work once."""
        background = self.port.started[-1]()
        for number, call in background.send(None):
            self.machines[number].run(call.script.text, call.keys.names, call.arguments)
        background.close()

    def votes(self) -> list[bool]:
        return [bool(machine.command(["EXISTS", KEYS.lock])) for machine in self.machines]


def test_a_renewal_does_not_count_a_vote_that_an_earlier_attempt_will_release() -> None:
    nodes = Nodes()
    for machine in nodes.machines[:2]:
        machine.command(["SET", KEYS.lock, "holdfast:redlock:b:1:1", "PX", 30_000])
    assert isinstance(nodes.try_acquire(executed=ALL, replied=(0, 1)), Waiting)
    for machine in nodes.machines[:2]:
        machine.command(["DEL", KEYS.lock])
    nodes.clock.time += 12.0
    assert isinstance(nodes.try_acquire(executed=(0, 1), replied=(0, 1)), Granted)
    nodes.clock.time += 12.0

    # Only one node that granted the lease, and the node that gave its vote to the earlier attempt, answer.
    renewed = nodes.renew(executed=(0, 2), replied=(0, 2))
    nodes.run_background_work()

    assert nodes.votes() == [True, True, False]
    assert isinstance(renewed, HoldfastError), (
        "without the vote that is released, one node of three has renewed the lease"
    )


def test_a_lease_takes_over_a_vote_of_an_earlier_attempt() -> None:
    nodes = Nodes()
    for machine in nodes.machines[:2]:
        machine.command(["SET", KEYS.lock, "holdfast:redlock:b:1:1", "PX", 30_000])
    nodes.try_acquire(executed=ALL, replied=(0, 1))
    for machine in nodes.machines[:2]:
        machine.command(["DEL", KEYS.lock])
    nodes.clock.time += 12.0
    nodes.try_acquire(executed=(0, 1), replied=(0, 1))
    nodes.clock.time += 12.0

    renewing = nodes.backend.renew([TICKET], deadline=nodes.clock.now() + 5.0)
    calls = renewing.send(None)
    repairs = renewing.send([nodes.answer(number, call, ALL, ALL) for number, call in calls])
    for number, call in repairs:
        nodes.answer(number, call, ALL, ALL)
    nodes.run_background_work()

    assert [number for number, _ in repairs] == [2]
    assert nodes.votes() == [True, True, True]
    with pytest.raises(StopIteration) as end:
        renewing.send([[b"granted", b"1"]])
    assert isinstance(end.value.value[0], Live)


def test_a_vote_that_outlives_the_minimum_hold_is_released_when_its_node_answers_again() -> None:
    nodes = Nodes()
    ticket = Claim("lock", "c" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
    acquire = nodes.backend.try_acquire(ticket, queue=True, deadline=nodes.clock.now() + 5.0)
    assert isinstance(nodes.run(acquire, ALL, ALL), Granted)
    ticket.ttl, ticket.is_final = 1.0, True  # the rest of its min_hold

    renew = nodes.backend.renew([ticket], deadline=nodes.clock.now() + 5.0)
    assert isinstance(nodes.run(renew, (0, 1), (0, 1))[0], Live)
    nodes.clock.time += 5.0
    assert nodes.votes() == [False, False, True], "the ttl of the last vote is still 30 s"
    nodes.run_background_work()

    assert nodes.votes() == [False, False, False]
