"""No ticket has a majority for a long time: waiters keep waiting, without frequent polls and without an error."""

from __future__ import annotations

from holdfast.backends.redlock.protocol.quorum import SPLIT_PAUSE_MAX, RedlockBackend
from holdfast.core.tickets import Claim, Waiting
from holdfast_lab.sim.fence_model import ParkedPort, StoppedClock
from holdfast_lab.sim.servers.redlock.node import config_for

TICKET = Claim("lock", "a" * 32, 30.0, 1, exclusive=True, agent="", info="{}")
REPLIES = [[b"wait", 0, 9000, b"holdfast:redlock:%b:1:7" % nonce, b""] for nonce in (b"b", b"c", b"d")]


def test_a_waiter_keeps_waiting_when_votes_stay_split() -> None:
    clock, port = StoppedClock(), ParkedPort((0, 0, 0))
    backend = RedlockBackend(config_for(3, max_ttl=60.0), port, clock)  # type: ignore[arg-type]
    outcome = None

    for _ in range(1500):
        acquiring = backend.try_acquire(TICKET, queue=True, deadline=clock.now() + 5.0)
        acquiring.send(None)
        try:
            acquiring.send(REPLIES)
        except StopIteration as end:
            outcome = end.value

    assert isinstance(outcome, Waiting)
    assert outcome.poll_after <= SPLIT_PAUSE_MAX
