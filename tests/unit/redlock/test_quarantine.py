"""Hazard: a node that has lost its data continues a count that it gave in quarantine.

A node without data counts from its clock. In quarantine its clock may still be behind the count that it has lost.
"""

from __future__ import annotations

from holdfast.backends.redlock.port import ServerRun
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast.core.tickets import Claim
from holdfast_lab.sim.fence_model import KEYS, ParkedPort, StoppedClock
from holdfast_lab.sim.servers.redis.machine import Machine
from holdfast_lab.sim.servers.redlock.node import config_for

TICKET = Claim("lock", "a" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
MAX_TTL = 60.0
SECOND = 1_000_000  # microseconds


class JustStarted(ParkedPort):
    """The last node has just started, and may have lost its data."""

    def server_run(self, number: int) -> ServerRun:
        server_run = super().server_run(number)
        return server_run._replace(started_at=1000.0, may_forget=True) if number == len(self.nodes) - 1 else server_run


def test_counts_given_in_quarantine_are_not_continued_after_it() -> None:
    clock, port = StoppedClock(), JustStarted((0, 0, 0))
    backend = RedlockBackend(config_for(3, max_ttl=MAX_TTL), port, clock)  # type: ignore[arg-type]
    node = Machine(lambda: round(clock.now() * SECOND), lambda *_: 0)
    counts = []

    for seconds in (1.0, 30.0, MAX_TTL, 30.0):
        clock.time += seconds
        acquiring = backend.try_acquire(TICKET, queue=False, deadline=clock.now() + 5.0)
        calls = dict(acquiring.send(None))
        reply = node.run(calls[2].script.text, calls[2].keys.names, calls[2].arguments)
        assert isinstance(reply, list)
        counts.append(int(reply[1]))
        node.command(["DEL", KEYS.lock])
        acquiring.close()

    _, in_quarantine, first_after, second_after = counts
    assert in_quarantine < first_after - MAX_TTL * SECOND
    assert first_after == 1091 * SECOND, "the clock is then later than all clocks before the node lost its data"
    assert second_after == first_after + 1
