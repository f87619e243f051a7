"""Lost requests, lost replies, late replies, a server that is down: every outcome is exact, nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast_lab.conformance.lab import Lab, until
from tests.support.faulty import BUG, DOWN, LOST, NO_REPLY, NOT_ALL, OK, REFUSED, TOO_FEW, Faults


async def until_free(lab: Lab, name: str = "a") -> None:
    """Wait until the lock has no holder and no waiter."""

    async def is_free() -> bool:
        info = await lab.state(name)
        return not info.holders and not info.waiters

    await until(is_free, f"{name!r} is free again")


async def until_called(faults: Faults, verb: str, times: int) -> None:
    async def is_called_often_enough() -> bool:
        return faults.count(verb) >= times

    await until(is_called_often_enough, f"{times} times {verb}")


async def test_a_server_that_is_down_at_first_raises_at_once(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", DOWN)

    with pytest.raises(holdfast.BackendUnavailable):
        await actor(lambda client: client.lock("a", timeout=None).acquire())

    assert faults.calls == [("try_acquire", DOWN)]  # nothing was sent, so nothing has to be released


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY])
async def test_a_first_request_without_an_answer_is_sent_again(lab: Lab, faults: Faults, outcome: str) -> None:
    actor, other = lab.actor(), lab.actor()
    faults.plan("try_acquire", outcome, OK)

    lease = await actor(lambda client: client.lock("a").acquire())

    assert [holder.fence for holder in (await lab.state("a")).holders] == [lease.fence]
    await actor(lambda _: lease.release())
    assert await other(lambda client: client.lock("a").acquire(timeout=0))


async def test_a_grant_whose_replies_were_lost_is_released(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", NO_REPLY)

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda client: client.lock("a", timeout=1).acquire())

    await until_free(lab)


async def test_a_wait_continues_after_an_outage(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a", ttl=2, renew=False).acquire())
    faults.plan("try_acquire", OK, DOWN, LOST, NO_REPLY, DOWN, OK)

    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=60))
    await lab.until_waiting("a", 1)
    await holder(lambda _: lease.release())

    assert (await waiting).held


async def test_an_acquire_raises_when_its_time_ends_during_an_outage(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("a").acquire())
    faults.plan("try_acquire", OK, DOWN)
    faults.plan("wait", 0, OK)

    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=1.2))

    with pytest.raises(holdfast.BackendUnavailable, match="down"):
        await waiting


async def test_an_answer_after_the_deadline_is_not_a_grant(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", 0.3, OK)

    lease = await actor(lambda client: client.lock("a", ttl=0.2).acquire())

    lease.check()
    assert [holder.fence for holder in (await lab.state("a")).holders] == [lease.fence]
    assert faults.count("try_acquire") == 2


async def test_a_late_answer_raises_when_no_time_is_left_to_try_again(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", 0.3)

    with pytest.raises(holdfast.BackendUnavailable, match="after the deadline of the lease"):
        await actor(lambda client: client.lock("a", ttl=0.2).acquire(timeout=0))

    await until_free(lab)


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY, BUG])
async def test_failed_renewals_are_tried_again_in_time(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=1.5).acquire())

    faults.plan("renew", outcome, OK)
    await until_called(faults, "renew", 3)

    lease.check()
    await actor(lambda _: lease.release())


@pytest.mark.parametrize("outcome", [DOWN, LOST, BUG])
async def test_a_lease_that_cannot_be_renewed_is_lost_at_its_deadline(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    faults.plan("renew", outcome)
    lease = await actor(lambda client: client.lock("a", ttl=0.5).acquire())

    assert await actor(lambda _: lease.wait_lost(30))

    with pytest.raises(holdfast.LockLost, match="no renewal succeeded"):
        lease.check()
    await until_free(lab)


async def test_a_late_success_does_not_revive_a_lost_lease(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("renew", 0.8, OK)
    lease = await actor(lambda client: client.lock("a", ttl=0.5).acquire())

    assert await actor(lambda _: lease.wait_lost(30))
    await until_called(faults, "renew", 1)
    await until_free(lab)

    assert lease.lost
    with pytest.raises(holdfast.LockLost):
        await actor(lambda _: lease.release())


async def test_a_renewal_without_an_answer_does_not_move_the_deadline(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a", ttl=20, renew=False).acquire())
    faults.plan("renew", NO_REPLY)
    before = lease.remaining

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda _: lease.renew())

    assert lease.remaining <= before
    lease.check()


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY])
async def test_a_release_without_an_answer_can_be_repeated(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    lock = actor.client.lock("a")
    lease = await actor(lambda _: lock.acquire())
    faults.plan("release", outcome, OK)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: lock.release())
    assert not lease.held
    assert not lease.lost
    await actor(lambda _: lock.release())

    with pytest.raises(holdfast.NotHeld):
        await actor(lambda _: lease.release())
    assert (await lab.state("a")).holders == ()


@pytest.mark.parametrize("outcome", [DOWN, LOST, NO_REPLY])
async def test_the_keeper_repeats_a_release_that_got_no_answer(lab: Lab, faults: Faults, outcome: str) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())
    faults.plan("release", outcome, outcome, outcome, OK)

    with pytest.raises(holdfast.BackendError):
        await actor(lambda _: lease.release())

    await until_free(lab)


async def test_a_body_is_not_failed_by_a_release_without_an_answer(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("release", LOST, OK)

    assert await actor.body(lambda client: client.lock("a"), lambda lease: lease.fence)

    await until_free(lab)


async def test_a_timeout_whose_withdrawal_gets_no_answer_is_still_a_timeout(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    faults.plan("release", DOWN, DOWN, OK)

    assert await waiter(lambda client: client.lock("a").acquire(timeout=0.1)) is None

    async def has_no_waiter() -> bool:
        return not (await lab.state("a")).waiters

    await until(has_no_waiter, "the ticket of the waiter is released")
    lease.check()


async def test_a_lost_notification_costs_one_poll_interval_and_no_more(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)
    # The notification of the release is lost, so the waiter is granted at its next poll.
    waiter.client._current.backend._inner._wakeups.wake = lambda _: None

    await holder(lambda _: lease.release())

    assert (await waiting).held


async def test_a_wait_is_not_prolonged_by_wake_ups(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    await holder(lambda client: client.lock("a").acquire())
    loop = asyncio.get_running_loop()

    async def wake() -> None:
        waiter.client._current.backend._inner._wakeups.wake_all()
        await waiter.client._current.runtime.sleep(0.01)

    faults.plan("wait", wake)
    before = loop.time()
    assert await waiter(lambda client: client.lock("a").acquire(timeout=0.5)) is None

    assert 0.5 <= loop.time() - before < 20
    assert faults.count("wait") > 5


async def test_a_lease_gone_while_it_is_released_is_no_loss(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    events: list[str] = []
    actor.client.subscribe(lambda event: events.append(event.kind))
    faults.plan("release", 0.5)  # executed at once, answered late: renewals in between find the lease gone
    lease = await actor(lambda client: client.lock("a", ttl=0.3).acquire())

    await actor(lambda _: lease.release())

    assert "lost" not in events
    assert events[-1] == "released"


async def test_a_refusal_leaves_nothing_to_release(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", REFUSED)

    with pytest.raises(holdfast.ConfigurationError):
        await actor(lambda client: client.lock("a").acquire())

    assert faults.calls == [("try_acquire", REFUSED)]


async def test_a_release_that_the_server_refuses_is_not_repeated_forever(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    lease = await actor(lambda client: client.lock("a").acquire())
    faults.plan("release", LOST, REFUSED)

    with pytest.raises(holdfast.OutcomeUnknown):
        await actor(lambda _: lease.release())
    await until_called(faults, "release", 2)

    faults.plan("release", OK)
    again = faults.count("release")
    await actor(lambda client: client.lock("b").acquire())  # the keeper runs, and has nothing else to do
    assert faults.count("release") == again


async def test_too_few_servers_at_first_raises_at_once_and_the_ticket_is_released(lab: Lab, faults: Faults) -> None:
    actor = lab.actor()
    faults.plan("try_acquire", TOO_FEW)

    with pytest.raises(holdfast.QuorumError):
        await actor(lambda client: client.lock("a", timeout=None).acquire())

    await until_called(faults, "release", 1)
    assert faults.count("try_acquire") == 1


async def test_a_wait_continues_after_requests_that_too_few_servers_executed(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    lease = await holder(lambda client: client.lock("a").acquire())
    faults.plan("try_acquire", OK, TOO_FEW, TOO_FEW, OK)

    waiting = lab.start(waiter, lambda client: client.lock("a").acquire(timeout=60))
    await lab.until_waiting("a", 1)
    await holder(lambda _: lease.release())

    assert await waiting


async def test_all_leases_are_renewed_although_one_server_among_several_is_silent_once(
    lab: Lab, faults: Faults
) -> None:
    actor = lab.actor()
    names = ["a", "b", "c"]
    leases = [await actor(lambda client, name=name: client.lock(name, ttl=3).acquire()) for name in names]
    before = [lease._deadline for lease in leases]
    faults.plan("renew", NOT_ALL, OK)

    async def all_renewed() -> bool:
        return all(lease._deadline > deadline for lease, deadline in zip(leases, before, strict=True))

    await until_called(faults, "renew", 1)
    await until(all_renewed, "all renewed, the first one at a later attempt")

    assert not any(lease.lost for lease in leases)


async def test_all_tickets_are_released_although_one_server_among_several_is_silent_once(
    lab: Lab, faults: Faults
) -> None:
    actor = lab.actor()
    leases = [await actor(lambda client, name=name: client.lock(name).acquire()) for name in ("a", "b")]
    faults.plan("release", LOST, LOST, NOT_ALL, OK)

    for lease in leases:
        with pytest.raises(holdfast.OutcomeUnknown):
            await actor(lambda _, held=lease: held.release())

    await until_free(lab, "a")
    await until_free(lab, "b")


# ── closing while a request is in flight ─────────────────────────────────────────────────────────────────────────────


async def test_a_client_closed_before_a_waiter_is_queued_leaves_no_ticket_behind(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor()
    closer = lab.actor(like=waiter)
    await holder(lambda client: client.lock("a").acquire())
    faults.plan("try_acquire", 0.5)  # executed at once, answered late
    waiting = lab.start(waiter, lambda client: client.lock("a").acquire())
    await lab.until_waiting("a", 1)

    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await waiting
    assert (await lab.state("a")).waiters == ()


async def test_a_client_closed_before_the_reply_of_a_grant_has_no_lease_and_leaves_none(
    lab: Lab, faults: Faults
) -> None:
    actor = lab.actor()
    closer = lab.actor(like=actor)
    faults.plan("try_acquire", 0.5)
    acquiring = lab.start(actor, lambda client: client.lock("a").acquire())
    await until(lambda: _is_taken(lab, "a"), "the lock is taken")

    await closer(lambda client: client.close())

    with pytest.raises(holdfast.UsageError, match="closed"):
        await acquiring
    assert not (await lab.state("a")).holders


async def _is_taken(lab: Lab, name: str) -> bool:
    return bool((await lab.state(name)).holders)
