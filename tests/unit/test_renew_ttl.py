"""A changed ttl, and lost, late or unordered answers: the holder never assumes a later deadline than the server."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import DOWN, LOST, NO_REPLY, OK, REFUSED, Faults


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY, DOWN])
async def test_a_shorter_ttl_counts_even_without_an_answer(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=60, renew=False).acquire())
    faults.plan("renew", outcome)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: lease.renew(ttl=5))

    assert lease.held
    assert lease.remaining <= 5


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY, DOWN])
async def test_a_longer_ttl_does_not_count_without_an_answer(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    faults.plan("renew", outcome, OK)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: lease.renew(ttl=60))

    assert lease.remaining <= 20
    await actor(lambda _: lease.renew())
    assert lease.remaining > 40


async def test_a_renewal_without_an_answer_limits_a_later_longer_ttl(lab: Lab, faults: Faults) -> None:
    # The server may execute the lost renewal after the longer one, and then its shorter ttl counts.
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    faults.plan("renew", LOST, OK)
    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda _: lease.renew())

    await actor(lambda _: lease.renew(ttl=60))

    assert lease.held
    assert lease.remaining <= 20


async def test_a_ttl_is_not_changed_while_a_renewal_is_in_flight(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    helper = lab.actor(like=actor)
    lease = await actor(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    faults.plan("renew", 0.3, OK)
    first = lab.start(helper, lambda _: lease.renew())

    async def is_in_flight() -> bool:
        return faults.count("renew") == 1

    await until(is_in_flight, "the first renewal")
    await asyncio.gather(first, actor(lambda _: lease.renew(ttl=5)))

    # The answer of the first renewal, with the longer ttl, must not count after the change.
    assert lease.remaining <= 5
    assert [holder.remaining <= 5 for holder in (await lab.state("a")).holders] == [True]


async def test_a_refused_ttl_is_not_used_later(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    faults.plan("renew", REFUSED, OK)

    with pytest.raises(holdfast.ConfigurationError, match="planned"):
        await actor(lambda _: lease.renew(ttl=60))
    await actor(lambda _: lease.renew())

    assert lease.ttl == 20
    assert 10 < lease.remaining <= 20


async def test_the_keeper_notices_an_earlier_deadline(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=300).acquire())
    faults.plan("renew", OK, LOST)

    await actor(lambda _: lease.renew(ttl=0.3))

    assert await actor(lambda _: lease.wait_lost(60))
    assert faults.count("renew") > 1  # it was renewed at the interval of the new ttl
