"""A node without data counts from its clock. The later it reads its clock, the more clocks may differ."""

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
    """Its last node may have forgotten something."""

    def server_run(self, number: int) -> ServerRun:
        server_run = super().server_run(number)
        return server_run._replace(started_at=1000.0, may_forget=True) if number == len(self.nodes) - 1 else server_run


def test_counts_given_in_quarantine_are_not_continued_after_it() -> None:
    clock, port = StoppedClock(), JustStarted((0, 0, 0))
    backend = RedlockBackend(config_for(3, max_ttl=MAX_TTL), port, clock)  # type: ignore[arg-type]
    node = Machine(lambda: round(clock.now() * SECOND), lambda *_: 0)
    counts = []

    for waited in (1.0, 30.0, MAX_TTL, 30.0):
        clock.time += waited
        entering = backend.try_acquire(TICKET, queue=False, deadline=clock.now() + 5.0)
        calls = dict(entering.send(None))
        reply = node.run(calls[2].script.text, calls[2].keys.names, calls[2].arguments)
        assert isinstance(reply, list)
        counts.append(int(reply[1]))
        node.command(["DEL", KEYS.lock])
        entering.close()

    _, still, after, later = counts
    assert still < after - MAX_TTL * SECOND
    assert after == 1091 * SECOND, "the clock is later by then than any that was looked at before the node forgot"
    assert later == after + 1
