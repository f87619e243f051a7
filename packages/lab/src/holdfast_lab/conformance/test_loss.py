"""The loss of a lease: noticed in time, reported once, never revived, and never ignored at the end of a body."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from typing import Any

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until

pytestmark = pytest.mark.on_every_method

SHORT = 0.4  # seconds: a ttl that a busy machine can still renew in time


async def test_a_lease_that_is_not_renewed_is_lost_at_its_ttl(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=SHORT, renew=False).acquire())
    assert 0 < lease.remaining < SHORT

    assert await holder(lambda _: lease.wait_lost(30))

    assert lease.lost
    assert not lease.held
    assert lease.remaining == 0
    with pytest.raises(holdfast.LockLost, match="renew=False"):
        lease.check()
    assert (await other(lambda client: client.lock("a").acquire(timeout=30))).fence > lease.fence


async def test_the_lease_ends_for_its_holder_before_another_client_acquires_the_lock(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=SHORT, renew=False).acquire())

    successor = await other(lambda client: client.lock("a").acquire(timeout=30))

    assert successor
    assert lease.lost


async def test_a_lease_lives_beyond_its_ttl_by_renewal(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    renewals: list[Any] = []
    holder.client.subscribe(lambda event: renewals.append(event) if event.kind == "renewed" else None)

    async def lease_after(ttl: float) -> Any:
        renewals.clear()
        began = time.monotonic()
        lease = await holder(lambda client: client.lock("a", ttl=ttl).acquire())
        await until(lambda: _is_lost_or_renewed(lease, renewals, 4), "four renewals")
        await until(lambda: _passed(began + ttl), "the end of its ttl")
        return lease

    lease = await lease_after(1.5)
    if lease.lost:  # rightly, if the process did not run for as long as the ttl
        lease = await lease_after(12.0)

    lease.check()
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    await holder(lambda _: lease.release())


async def _reached(reports: list[Any], count: int) -> bool:
    return len(reports) >= count


async def _is_lost_or_renewed(lease: Any, renewals: list[Any], times: int) -> bool:
    return lease.lost or await _reached(renewals, times)


async def _passed(moment: float) -> bool:
    return time.monotonic() > moment


async def test_renewing_by_hand_prolongs(lab: Lab) -> None:
    holder = lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=5, renew=False).acquire())
    before = lease._deadline

    async def is_prolonged() -> bool:
        await holder(lambda _: lease.renew())
        return bool(lease._deadline > before)

    # One renewal may not be enough: the last request may be too recent for another one, or is confirmed only later.
    await until(is_prolonged, "a later deadline")


async def test_max_hold_ends_a_lease_that_is_renewed(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=30, max_hold=0.2).acquire())

    assert await holder(lambda _: lease.wait_lost(30))

    with pytest.raises(holdfast.LockLost, match="max_hold"):
        lease.check()
    assert await other(lambda client: client.lock("a").acquire(timeout=20))


async def test_a_stop_margin_reports_the_loss_while_the_lock_is_still_held(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=20, renew=False, max_hold=10.3, stop_margin=10).acquire())

    assert await holder(lambda _: lease.wait_lost(30))

    assert lease.lost
    assert await other(lambda client: client.lock("a").acquire(timeout=0)) is None
    with pytest.raises(holdfast.LockLost):
        await holder(lambda _: lease.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=5))


async def test_a_body_that_outlives_its_lease_ends_with_lock_lost(lab: Lab) -> None:
    holder = lab.actor()

    with pytest.raises(holdfast.LockLost):
        await holder.body(
            lambda client: client.lock("a", ttl=SHORT, renew=False, on_lost="event"), lambda lease: lease.wait_lost(30)
        )


async def test_the_exception_of_a_body_is_raised_instead_of_the_loss(lab: Lab) -> None:
    holder = lab.actor()

    def fail(lease: Any) -> Any:
        waited = lease.wait_lost(30)
        if asyncio.iscoroutine(waited):
            return _fail_after(waited)
        raise ZeroDivisionError

    async def _fail_after(waited: Any) -> None:
        await waited
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await holder.body(lambda client: client.lock("a", ttl=SHORT, renew=False, on_lost="event"), fail)

    assert any("was lost" in note for note in caught.value.__notes__)


async def test_a_loss_is_reported_exactly_once_in_every_way(lab: Lab) -> None:
    holder = lab.actor()
    reported: list[Any] = []
    events: list[str] = []
    holder.client.subscribe(lambda event: events.append(event.kind))
    lease = await holder(lambda client: client.lock("a", ttl=SHORT, renew=False, on_lost=reported.append).acquire())

    assert await holder(lambda _: lease.wait_lost(30))
    for _ in range(3):
        with pytest.raises(holdfast.LockLost):
            lease.check()
    with pytest.raises(holdfast.LockLost):
        await holder(lambda _: lease.release())
    await until(lambda: _reached(reported, 1), "on_lost")
    # A second lease of the same lock has its own loss; the first lease is not reported again.
    again = await holder(lambda client: client.lock("a", ttl=SHORT, renew=False, on_lost=reported.append).acquire())
    assert await holder(lambda _: again.wait_lost(30))
    await until(lambda: _reached(reported, 2), "on_lost")
    await until(lambda: _reached([kind for kind in events if kind == "lost"], 2), "the events")

    assert reported == [lease, again]
    assert events.count("lost") == 2


async def test_waiting_for_a_loss_ends_with_the_release(lab: Lab) -> None:
    holder = lab.actor()
    other = lab.actor(like=holder)
    lease = await holder(lambda client: client.lock("a").acquire())
    watching = lab.start(other, lambda _: lease.wait_lost())

    assert await holder(lambda _: lease.wait_lost(0.01)) is False
    await holder(lambda _: lease.release())

    assert await watching is False


async def test_breaking_ends_exactly_that_lease(lab: Lab) -> None:
    holder, operator, other = lab.actor(), lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=1).acquire())

    assert await operator(lambda client: client.break_lock("a", lease.fence + 1)) is False
    assert await operator(lambda client: client.break_lock("b", lease.fence)) is False
    assert await operator(lambda client: client.break_lock("a", lease.fence)) is True
    successor = await other(lambda client: client.lock("a").acquire(timeout=0))
    assert await operator(lambda client: client.break_lock("a", lease.fence)) is False

    assert await holder(lambda _: lease.wait_lost(30))
    assert successor.fence > lease.fence
    successor.check()
    await other(lambda _: successor.release())


@pytest.mark.counts_waiters
async def test_a_break_grants_the_lock_to_the_next_waiter(lab: Lab) -> None:
    holder, operator, waiter = lab.actor(), lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)

    await operator(lambda client: client.break_lock("a", lease.fence))

    assert await waiting


async def test_releasing_a_broken_lease_raises_lock_lost(lab: Lab) -> None:
    holder, operator = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    await operator(lambda client: client.break_lock("a", lease.fence))

    with pytest.raises(holdfast.LockLost):
        await holder(lambda _: lease.release())

    assert lease.lost


async def test_a_lease_dropped_without_release_warns_and_runs_out(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()

    async def warnings_with(ttl: float) -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await holder(lambda client: _take_and_forget(client, ttl))
            await holder(lambda _: gc.collect())
        return [warning for warning in caught if "dropped without release" in str(warning.message)]

    (warning,) = await warnings_with(SHORT) or await warnings_with(10 * SHORT)  # none if it was lost before

    assert warning.category is ResourceWarning
    assert await other(lambda client: client.lock("a").acquire(timeout=30))


def _take_and_forget(client: Any, ttl: float) -> Any:
    taking = client.lock("a", ttl=ttl).acquire()
    return _forget_later(taking) if asyncio.iscoroutine(taking) else None


async def _forget_later(taking: Any) -> None:
    await taking


async def test_a_lock_keeps_the_lease_of_a_living_owner_only(lab: Lab) -> None:
    holder, other = lab.actor(), lab.actor()
    lock = holder.client.lock("a", ttl=SHORT)
    lost: list[Any] = []

    def forget_in_a_thread() -> None:
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()

    with pytest.warns(ResourceWarning, match="dropped without release"):
        if lab.runtime == "threads":
            await asyncio.to_thread(forget_in_a_thread)
        else:
            await asyncio.create_task(_take(lock))
        await asyncio.sleep(0)
        gc.collect()

    assert await other(lambda client: client.lock("a").acquire(timeout=30))
    assert lost == []


async def _take(lock: Any) -> None:
    await lock.acquire()
