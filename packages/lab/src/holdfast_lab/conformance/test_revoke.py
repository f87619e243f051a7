"""Revocation requests: a revocable holder receives a request once, and the next holder does not receive it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Actor, Lab, until

pytestmark = pytest.mark.needs(Primitive.REVOKE)


async def test_a_revocable_holder_receives_a_request_and_its_successor_does_not(lab: Lab) -> None:
    holder, unrevocable, operator = lab.actor(), lab.actor(), lab.actor()
    requested: list[Any] = []
    lease = await holder(lambda client: client.lock("a", ttl=1.5, on_revoke=requested.append).acquire())
    other = await holder(lambda client: client.lock("b", ttl=1.5, revocable=True).acquire())
    plain = await unrevocable(lambda client: client.lock("c", ttl=1.5).acquire())
    holders = [(await lab.state(name)).holders[0] for name in "abc"]
    if holders[0].host != "?":  # a store that keeps only a key does not show its holder
        assert [holder_info.revocable for holder_info in holders] == [True, True, False]

    assert await operator(lambda client: client.request_revoke("a"))
    assert await operator(lambda client: client.request_revoke("c"))
    assert not await operator(lambda client: client.request_revoke("nobody holds this"))

    await until(lambda: asyncio.sleep(0, lease.revoke_requested and bool(requested)), "the request was received")
    assert requested == [lease]
    lease.check()
    await _await_renewals(holder, "a", "b")
    assert requested == [lease]
    assert not other.revoke_requested
    assert not plain.revoke_requested

    await holder(lambda _: lease.release())
    heir = await holder(lambda client: client.lock("a", ttl=1.5, on_revoke=requested.append).acquire())
    await _await_renewals(holder, "a")
    assert not heir.revoke_requested
    assert requested == [lease]


async def test_a_request_by_fence_is_for_that_lease(lab: Lab) -> None:
    holder, operator = lab.actor(), lab.actor()
    first = await holder(lambda client: client.lock("a", ttl=1.5, revocable=True).acquire())
    await holder(lambda _: first.release())
    second = await holder(lambda client: client.lock("a", ttl=1.5, revocable=True).acquire())

    # A greater fence than the holder's would reach all leases after it.
    for fence in (first.fence, 2**62):
        assert not await operator(lambda client, fence=fence: client.request_revoke("a", fence))
    await _await_renewals(holder, "a")

    assert not second.revoke_requested
    assert await operator(lambda client: client.request_revoke("a", second.fence))
    await until(lambda: asyncio.sleep(0, second.revoke_requested), "the request was received")


async def _await_renewals(holder: Actor, *names: str) -> None:
    """Wait for two renewals of each lease: the holder reads its requests with each renewal, so once between them."""
    renewed: list[str] = []
    unsubscribe = holder.client.subscribe(lambda event: renewed.append(event.lock) if event.kind == "renewed" else None)
    await until(lambda: asyncio.sleep(0, all(renewed.count(name) >= 2 for name in names)), "two renewals")
    unsubscribe()
