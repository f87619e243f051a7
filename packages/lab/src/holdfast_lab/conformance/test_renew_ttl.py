"""renew(ttl=…): a held lease gets another ttl, on the server and for its holder, and keeps its fence."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Lab, until

pytestmark = pytest.mark.needs(Primitive.RENEW_TTL)


async def remaining(lab: Lab, name: str = "a") -> float:
    """The seconds until the holder's lease ends on the server."""
    (holder,) = (await lab.state(name)).holders
    return holder.remaining


async def test_a_longer_ttl_counts_at_once_and_keeps_the_fence(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    fence = lease.fence

    await holder(lambda _: lease.renew(ttl="50s"))

    assert lease.ttl == 50
    assert 30 < lease.remaining <= 50
    assert 30 < await remaining(lab) <= 56
    assert lease.fence == fence == (await lab.state("a")).holders[0].fence
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    await holder(lambda _: lease.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_a_shorter_ttl_ends_the_lease_earlier(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=60, renew=False).acquire())

    await holder(lambda _: lease.renew(ttl=1))

    assert lease.remaining <= 1
    successor = await other(lambda client: client.lock("a").acquire(timeout=60))
    assert successor.fence > lease.fence
    assert lease.lost


async def test_later_renewals_use_the_new_ttl(lab: Lab) -> None:
    holder = lab.actor()
    renewals: list[holdfast.Event] = []
    holder.client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)
    lease = await holder(lambda client: client.lock("a", ttl=60).acquire())

    await holder(lambda _: lease.renew(ttl=2))

    async def renewed_twice() -> bool:
        return len(renewals) >= 3  # `renew(ttl=2)` is the first event

    await until(renewed_twice, "two automatic renewals")
    assert lease.held
    assert lease.remaining <= 2
    assert await remaining(lab) <= 8  # memcached keeps an item for some seconds longer
    await holder(lambda _: lease.release())


async def test_a_ttl_can_be_changed_again_and_again(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=20).acquire())

    for ttl in (40, 15, 60, 20):
        await holder(lambda _, ttl=ttl: lease.renew(ttl=ttl))
        assert 0 < lease.remaining <= ttl
        await holder(lambda _: lease.renew())
        assert 0 < lease.remaining <= ttl == lease.ttl

    await holder(lambda _: lease.release())
    assert not (await lab.state("a")).holders


async def test_all_leases_of_a_group_get_the_new_ttl(lab: Lab) -> None:
    holder = lab.actor()
    group = await holder(lambda client: client.lock_all(["a", "b"], ttl=20, renew=False).acquire())

    await holder(lambda _: group.renew(ttl=60))

    assert group.remaining > 40
    assert await remaining(lab, "a") > 40
    assert await remaining(lab, "b") > 40
    await holder(lambda _: group.release())


async def test_a_re_entered_lease_has_one_ttl(lab: Lab) -> None:
    holder = lab.actor()
    lock = holder.client.lock("a", ttl=20, reentrant=True)
    outer = await holder(lambda _: lock.acquire())
    inner = await holder(lambda _: lock.acquire())

    await holder(lambda _: inner.renew(ttl=60))
    await holder(lambda _: inner.release())

    assert outer.held
    assert outer.remaining > 40


@pytest.mark.needs(Primitive.LOCK_DELAY)
async def test_the_lock_delay_is_added_to_the_new_ttl(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=10, lock_delay=20, renew=False).acquire())

    await holder(lambda _: lease.renew(ttl=30))

    assert 20 < lease.remaining <= 30
    assert await remaining(lab) > 40


@pytest.mark.parametrize("ttl", [0, 0.01, "soon", True, 10**9])
async def test_a_bad_ttl_is_refused_and_changes_nothing(lab: Lab, ttl: Any) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=20).acquire())

    with pytest.raises(holdfast.ConfigurationError, match="ttl"):
        await holder(lambda _: lease.renew(ttl=ttl))

    assert lease.held
    assert lease.ttl == 20


async def test_a_ttl_that_is_too_short_for_the_stop_margin_is_refused(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=20, stop_margin=5).acquire())

    with pytest.raises(holdfast.ConfigurationError, match="stop_margin"):
        await holder(lambda _: lease.renew(ttl=6))

    assert lease.ttl == 20


async def test_a_released_lease_is_not_renewed_with_a_ttl(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    await holder(lambda _: lease.release())

    with pytest.raises(holdfast.NotHeld):
        await holder(lambda _: lease.renew(ttl=60))
