"""transfer and adopt: a lease moves to another process, once, with a greater fence; no other client is granted it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

import holdfast
from holdfast.core.tickets import LeaseGone
from holdfast.primitives import Primitive
from holdfast.runtimes.threads import run_sync
from holdfast_lab.conformance.lab import Lab
from holdfast_lab.conformance.processes import Refused, WorkerPool

pytestmark = pytest.mark.needs(Primitive.TRANSFER)


async def given(lab: Lab, **options: Any) -> tuple[Any, Any, str]:
    """The actor that has transferred a lease, the lease, and the text."""
    giver = lab.actor()
    lease = await giver(lambda client: client.lock("a", **options).acquire())
    return giver, lease, await giver(lambda _: lease.transfer(within=30))


async def test_another_client_adopts_the_lease_with_a_greater_fence(lab: Lab) -> None:
    _, lease, text = await given(lab, ttl=20)
    adopter, other = lab.actor(), lab.actor()
    assert not lease.held
    assert not lease.lost
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None

    adopted = await adopter(lambda client: client.adopt(text))

    assert adopted.held
    assert adopted.name == "a"
    assert adopted.ttl == 20
    assert adopted.fence > lease.fence
    assert [holder.fence for holder in (await lab.state("a")).holders] == [adopted.fence]
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    await adopter(lambda _: adopted.renew())
    await adopter(lambda _: adopted.release())
    successor = await other(lambda client: client.lock("a").acquire(timeout=0))
    assert successor.fence > adopted.fence


async def test_a_text_can_be_used_once(lab: Lab) -> None:
    _, _, text = await given(lab)
    first, second = lab.actor(), lab.actor()
    adopted = await first(lambda client: client.adopt(text))

    for adopter in (second, first):
        with pytest.raises(holdfast.NotHeld, match="adopted before"):
            await adopter(lambda client: client.adopt(text))

    adopted.check()
    await first(lambda _: adopted.renew())


async def test_of_two_adoptions_at_the_same_time_one_succeeds(lab: Lab) -> None:
    _, _, text = await given(lab)
    adopters = [lab.actor() for _ in range(4)]

    results = await asyncio.gather(
        *(adopter(lambda client: client.adopt(text)) for adopter in adopters), return_exceptions=True
    )

    assert sum(isinstance(result, holdfast.NotHeld) for result in results) == 3


async def test_a_text_expires(lab: Lab) -> None:
    giver, other, late = lab.actor(), lab.actor(), lab.actor()
    lease = await giver(lambda client: client.lock("a", ttl=50).acquire())
    begun = time.monotonic()
    text = await giver(lambda _: lease.transfer(within=1))

    successor = await other(lambda client: client.lock("a").acquire(timeout=40))

    assert time.monotonic() >= begun + 1
    assert successor.fence > lease.fence
    with pytest.raises(holdfast.NotHeld):
        await late(lambda client: client.adopt(text))
    successor.check()


async def test_a_waiter_keeps_its_place_behind_the_adopted_lease(lab: Lab) -> None:
    giver, adopter, waiter = lab.actor(), lab.actor(), lab.actor()
    lease = await giver(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=60))
    text = await giver(lambda _: lease.transfer())
    adopted = await adopter(lambda client: client.adopt(text))

    await adopter(lambda _: adopted.release())

    assert (await waiting).fence > adopted.fence > lease.fence


async def test_the_giver_cannot_use_the_lease_any_more(lab: Lab) -> None:
    giver, lease, text = await given(lab)

    for call in (lease.check, lease.release, lease.renew, lease.transfer):
        with pytest.raises(holdfast.NotHeld, match="transferred"):
            await giver(lambda _, call=call: call())

    await giver(lambda client: client.close())  # close() does not release a transferred lease
    adopted = await lab.actor()(lambda client: client.adopt(text))
    assert adopted.held


async def test_a_with_block_ends_without_a_release(lab: Lab) -> None:
    giver, adopter = lab.actor(), lab.actor()
    texts: list[str] = []

    def body(lease: Any) -> Any:
        if isinstance(lease, holdfast.Lease):
            return texts.append(lease.transfer())

        async def awaited() -> None:
            texts.append(await lease.transfer())

        return awaited()

    await giver.body(lambda client: client.lock("a"), body)

    assert (await adopter(lambda client: client.adopt(texts[0]))).held


async def test_the_events_are_balanced(lab: Lab) -> None:
    giver, adopter = lab.actor(), lab.actor()
    events: list[tuple[str, str]] = []
    for actor in (giver, adopter):
        actor.client.subscribe(lambda event: events.append((event.kind, event.outcome)))
    lease = await giver(lambda client: client.lock("a").acquire())

    text = await giver(lambda _: lease.transfer())
    adopted = await adopter(lambda client: client.adopt(text))
    with pytest.raises(holdfast.NotHeld):
        await adopter(lambda client: client.adopt(text))
    await adopter(lambda _: adopted.release())

    kinds = [kind for kind, _ in events]
    assert kinds[:3] == ["acquiring", "acquired", "released"]
    assert kinds[3:] == ["acquiring", "acquired", "acquiring", "not acquired", "released"]
    assert events[2] == ("released", "transferred")
    assert events[4] == ("acquired", "adopted")


async def test_no_caller_holds_a_lease_that_waits_to_be_adopted(lab: Lab) -> None:
    """Otherwise a search for deadlocks would find that the thread which has transferred it waits for itself."""
    _, lease, text = await given(lab)
    (waiting,) = (await lab.state("a")).holders
    assert not waiting.caller
    assert waiting.fence > lease.fence

    await lab.actor()(lambda client: client.adopt(text))

    (holder,) = (await lab.state("a")).holders
    assert holder.caller or lab.lacks(Primitive.DETECT_DEADLOCKS)


async def test_requests_of_the_giver_that_arrive_late_change_nothing(lab: Lab) -> None:
    giver, lease, text = await given(lab, ttl=50)
    adopter = lab.actor()

    def send(client: Any, verb: str) -> Any:
        engine = client._engine
        call = getattr(engine.backend, verb)([lease._claim], deadline=engine.request_deadline())
        return run_sync(call) if isinstance(client, holdfast.Client) else call

    (renewed,) = await giver(lambda client: send(client, "renew"))
    (released,) = await giver(lambda client: send(client, "release"))

    assert isinstance(renewed, LeaseGone)
    assert released is False
    assert (await adopter(lambda client: client.adopt(text))).held


async def test_the_adopter_chooses_the_options(lab: Lab) -> None:
    _, _, text = await given(lab, ttl=20)

    adopted = await lab.actor()(lambda client: client.adopt(text, ttl="40s", meta={"step": 2}))

    assert adopted.ttl == 40
    assert adopted.remaining > 25
    assert adopted.meta == {"step": 2}


@pytest.mark.needs(Primitive.MIN_HOLD)
async def test_the_rest_of_a_minimum_hold_moves_along(lab: Lab) -> None:
    giver, adopter, other = lab.actor(), lab.actor(), lab.actor()
    begun = time.monotonic()
    lease = await giver(lambda client: client.lock("a", min_hold=2, ttl=20).acquire())
    text = await giver(lambda _: lease.transfer(within=0.5))

    adopted = await adopter(lambda client: client.adopt(text))
    await adopter(lambda _: adopted.release())

    assert await other(lambda client: client.lock("a").acquire(timeout=60))
    assert time.monotonic() >= begun + 2


async def test_a_re_entered_lease_is_not_transferred(lab: Lab) -> None:
    giver = lab.actor()
    lock = giver.client.lock("a", reentrant=True)
    lease = await giver(lambda _: lock.acquire())
    await giver(lambda _: lock.acquire())

    with pytest.raises(holdfast.UsageError, match="re-entry"):
        await giver(lambda _: lease.transfer())

    lease.check()


async def test_a_damaged_text_is_refused_and_never_shown(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    _, lease, text = await given(lab)
    adopter = lab.actor()

    for damaged in (text[:-1], text[:30] + "x" + text[31:], "", "secret", 5, text.encode()):
        with pytest.raises(holdfast.ConfigurationError, match="adopt") as refused:
            await adopter(lambda client, damaged=damaged: client.adopt(damaged))
        assert lease._claim.nonce not in str(refused.value)
        assert "secret" not in str(refused.value)

    assert (await adopter(lambda client: client.adopt(f" {text}\n"))).held
    assert text not in caplog.text


async def test_a_text_for_another_store_is_refused(lab: Lab) -> None:
    _, _, text = await given(lab)
    kind = lab.url.partition(":")[0]
    other = "memory://" if kind != "memory" else "redis://localhost"

    client = holdfast.Client(other)
    with client, pytest.raises(holdfast.ConfigurationError, match=r"the text is for a lease on \w+, and this client"):
        client.adopt(text)


async def test_readers_and_owners_are_refused(lab: Lab) -> None:
    giver = lab.actor()
    if not lab.lacks(Primitive.RWLOCK):
        reader = await giver(lambda client: client.rwlock("r").read().acquire())
        with pytest.raises(holdfast.ConfigurationError, match="cannot be transferred"):
            await giver(lambda _: reader.transfer())
        writer = await giver(lambda client: client.rwlock("w").write().acquire())
        assert await giver(lambda _: writer.transfer())
    if not lab.lacks(Primitive.OWNER):
        owned = await giver(lambda client: client.lock("o", owner="job").acquire())
        with pytest.raises(holdfast.ConfigurationError, match="owner"):
            await giver(lambda _: owned.transfer())
        assert owned.held


def test_a_worker_goes_on_with_the_lease_of_a_handler_that_is_killed(store_url: str, pool: WorkerPool) -> None:
    if store_url.startswith("memory"):
        pytest.skip("the memory store ends with the process that this test kills")
    handler, worker, second = pool.start_many(3, store_url)
    fence = handler.call("acquire", lock="a", ttl=20)["fence"]
    text = handler.call("transfer", lock="a", within=30)["text"]

    handler.kill()
    assert second.call("acquire", lock="a", timeout=0)["acquired"] is None
    adopted = worker.call("adopt", text=text)["fence"]
    with pytest.raises(Refused, match="NotHeld"):
        second.call("adopt", text=text)

    assert adopted > fence
    worker.call("check", lock="a")
    worker.call("renew", lock="a")
    assert second.call("acquire", lock="a", timeout=0)["acquired"] is None
    worker.call("release", lock="a")
    assert second.call("acquire", lock="a", timeout=0)["fence"] > adopted
