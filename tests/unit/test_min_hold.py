"""A minimum hold and lost answers: the lock is kept for the minimum hold, and is free afterwards."""

from __future__ import annotations

import time
import uuid

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import DOWN, LOST, NO_REPLY, OK, Faults


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY, DOWN])
async def test_a_release_without_an_answer_is_repeated(lab: Lab, faults: Faults, outcome: str) -> None:
    holder, other = lab.actor(), lab.actor()
    began = time.monotonic()
    lease = await holder(lambda client: client.lock("a", ttl=60, min_hold=1).acquire())
    faults.plan("renew", outcome, OK)

    with pytest.raises(holdfast.BackendError):
        await holder(lambda _: lease.release())

    assert not lease.held

    async def is_repeated() -> bool:
        return faults.count("renew") >= 2

    await until(is_repeated, "the keeper repeats it")
    assert await other(lambda client: client.lock("a").acquire(timeout=50))  # before its ttl of 60 s is over
    assert time.monotonic() >= began + 1


async def test_a_repeated_release_after_the_time_frees_the_lock(lab: Lab, faults: Faults) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=60, min_hold=0.3).acquire())
    faults.plan("renew", LOST)

    with pytest.raises(holdfast.OutcomeUnknown):
        await holder(lambda _: lease.release())

    assert await other(lambda client: client.lock("a").acquire(timeout=50))


async def test_a_lost_lease_is_kept_too(lab: Lab, faults: Faults) -> None:
    holder, other = lab.actor(), lab.actor()
    began = time.monotonic()
    lease = await holder(lambda client: client.lock("a", ttl=2, min_hold=1, stop_margin=0.9).acquire())
    faults.plan("renew", LOST, LOST, LOST, LOST, OK)

    assert await holder(lambda _: lease.wait_lost(60))
    with pytest.raises(holdfast.LockLost):
        await holder(lambda _: lease.release())

    assert await other(lambda client: client.lock("a").acquire(timeout=50))
    assert time.monotonic() >= began + 1


def test_a_decorated_function_takes_a_min_hold() -> None:
    with holdfast.Client(f"memory://{uuid.uuid4().hex}") as client:  # the lock stays held after the test
        runs: list[int] = []
        run = client.locked("job", busy="skip", min_hold="10s")(lambda: runs.append(1))
        run()
        run()
        assert runs == [1]
