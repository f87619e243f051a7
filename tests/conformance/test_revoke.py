"""Requests to let go: heard by holders that listen, told once, meant for one lease and not for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.primitives import Primitive
from tests.conformance.lab import Lab, until


@pytest.fixture
def asking(lab: Lab) -> Lab:
    return lab.needs(Primitive.REVOKE)


async def test_a_holder_that_listens_hears_a_request_and_the_next_one_does_not(asking: Lab) -> None:
    holder, deaf, operator = asking.actor(), asking.actor(), asking.actor()
    told: list[Any] = []
    lease = await holder(lambda client: client.lock("a", ttl=0.6, on_revoke=told.append).acquire())
    other = await holder(lambda client: client.lock("b", ttl=0.6, revocable=True).acquire())
    plain = await deaf(lambda client: client.lock("c", ttl=0.6).acquire())
    holders = [(await asking.state(name)).holders[0] for name in "abc"]
    if holders[0].host != "?":  # a store that keeps a key and no more knows nothing of who holds it
        assert [one.revocable for one in holders] == [True, True, False]

    assert await operator(lambda client: client.request_revoke("a"))
    assert await operator(lambda client: client.request_revoke("c"))
    assert not await operator(lambda client: client.request_revoke("nobody holds this"))

    await until(lambda: asyncio.sleep(0, lease.revoke_requested and bool(told)), "the request was heard")
    assert told == [lease]
    lease.check()
    renewals: list[Any] = []
    holder.client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)
    await until(lambda: asyncio.sleep(0, len(renewals) > 4), "more renewals")
    assert told == [lease]
    assert not other.revoke_requested
    assert not plain.revoke_requested

    await holder(lambda _: lease.release())
    heir = await holder(lambda client: client.lock("a", ttl=0.6, on_revoke=told.append).acquire())
    before = len(renewals)
    await until(lambda: asyncio.sleep(0, len(renewals) > before + 6), "renewals of the next lease")
    assert not heir.revoke_requested
    assert told == [lease]


async def test_a_request_by_fence_is_for_that_lease(asking: Lab) -> None:
    holder, operator = asking.actor(), asking.actor()
    first = await holder(lambda client: client.lock("a", ttl=0.6, revocable=True).acquire())
    await holder(lambda _: first.release())
    second = await holder(lambda client: client.lock("a", ttl=0.6, revocable=True).acquire())

    await operator(lambda client: client.request_revoke("a", first.fence))
    renewals: list[Any] = []
    holder.client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)
    await until(lambda: asyncio.sleep(0, len(renewals) > 3), "renewals")

    assert not second.revoke_requested
    await operator(lambda client: client.request_revoke("a", second.fence))
    await until(lambda: asyncio.sleep(0, second.revoke_requested), "the request was heard")
