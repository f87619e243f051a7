"""Requests to let go: heard by holders that listen, told once, meant for one lease and not for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.primitives import Primitive
from holdfast_lab.conformance.lab import Actor, Lab, until

pytestmark = pytest.mark.needs(Primitive.REVOKE)


async def test_a_revocable_holder_receives_a_request_and_its_successor_does_not(lab: Lab) -> None:
    holder, deaf, operator = lab.actor(), lab.actor(), lab.actor()
    requested: list[Any] = []
    lease = await holder(lambda client: client.lock("a", ttl=1.5, on_revoke=requested.append).acquire())
    other = await holder(lambda client: client.lock("b", ttl=1.5, revocable=True).acquire())
    plain = await deaf(lambda client: client.lock("c", ttl=1.5).acquire())
    holders = [(await lab.state(name)).holders[0] for name in "abc"]
    if holders[0].host != "?":  # a store that keeps a key and no more knows nothing of who holds it
        assert [holder_info.revocable for holder_info in holders] == [True, True, False]

    assert await operator(lambda client: client.request_revoke("a"))
    assert await operator(lambda client: client.request_revoke("c"))
    assert not await operator(lambda client: client.request_revoke("nobody holds this"))

    await until(lambda: asyncio.sleep(0, lease.revoke_requested and bool(requested)), "the request was heard")
    assert requested == [lease]
    lease.check()
    await _look_again(holder, "a", "b")
    assert requested == [lease]
    assert not other.revoke_requested
    assert not plain.revoke_requested

    await holder(lambda _: lease.release())
    heir = await holder(lambda client: client.lock("a", ttl=1.5, on_revoke=requested.append).acquire())
    await _look_again(holder, "a")
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
    await _look_again(holder, "a")

    assert not second.revoke_requested
    assert await operator(lambda client: client.request_revoke("a", second.fence))
    await until(lambda: asyncio.sleep(0, second.revoke_requested), "the request was heard")


async def _look_again(holder: Actor, *names: str) -> None:
    """Until it has looked for requests: it does so with each renewal, so between two of them."""
    renewed: list[str] = []
    unsubscribe = holder.client.subscribe(lambda event: renewed.append(event.lock) if event.kind == "renewed" else None)
    await until(lambda: asyncio.sleep(0, all(renewed.count(name) >= 2 for name in names)), "two renewals")
    unsubscribe()
