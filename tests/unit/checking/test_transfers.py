"""The checker misses a second adoption or a lock that was not kept for its adopter, or reports a correct one."""

from __future__ import annotations

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import FairOrder, GrowingFences, MinimumHolds, SingleAdoptions
from tests.unit.checking.histories import LOCK, check, failed, find, granted, message, queued, server_granted, started

TRANSFER: h.History = [
    granted(0, "a", 1),
    h.ReleaseStarted(1, "a", 1, LOCK, within=5.0),
    h.ReleaseEnded(1.1, "a", 1, LOCK, "transferred"),
]


def adopting(at: float, client: str, ticket: int) -> h.AcquireStarted:
    return started(at, client, ticket)._replace(adopts=1)


def test_a_transferred_lease_is_kept_for_its_adopter() -> None:
    other = server_granted(5.9, "b", 2)

    assert "before the end of the time" in message(SingleAdoptions, [*TRANSFER, other])
    assert not find(SingleAdoptions, [*TRANSFER, other._replace(at=6)])
    assert not find(SingleAdoptions, [*TRANSFER, adopting(2, "b", 2), server_granted(2.1, "b", 2), other])
    assert not find(SingleAdoptions, [*TRANSFER, h.StateLost(2, "lease", LOCK), other])
    assert check(SingleAdoptions, TRANSFER).was_tested


def test_a_transfer_that_has_failed_keeps_nothing() -> None:
    pending = [*TRANSFER[:2], h.ReleaseEnded(1.1, "a", 1, LOCK, "pending")]

    assert not find(SingleAdoptions, [*pending, server_granted(2, "b", 2)])
    assert not check(SingleAdoptions, pending).was_tested


def test_a_second_adoption_is_found() -> None:
    both = [*TRANSFER, adopting(2, "b", 2), adopting(2, "c", 3), server_granted(3, "b", 2)]

    assert "that b had adopted" in message(SingleAdoptions, [*both, server_granted(4, "c", 3)])
    assert not find(SingleAdoptions, [*both, server_granted(4, "b", 2)]), "a repeated request"
    assert not find(SingleAdoptions, [*both, h.StateLost(3.5), server_granted(4, "c", 3)]), "an old copy was restored"
    unseen: h.History = [event for event in both if not isinstance(event, h.ServerGranted)]
    history: h.History = [*unseen, granted(3, "b", 2), granted(4, "c", 3)]
    assert find(SingleAdoptions, history, Promises(sees_server=False))


def test_an_adoption_that_is_refused_too_early_is_found() -> None:
    call = adopting(2, "b", 2)

    assert "could not adopt" in message(SingleAdoptions, [*TRANSFER, call, failed(3, "b", 2, "gone")])
    assert not find(SingleAdoptions, [*TRANSFER, call, failed(6, "b", 2, "gone")])
    assert not find(SingleAdoptions, [*TRANSFER, call, failed(3, "b", 2, "unknown")])
    assert not find(SingleAdoptions, [*TRANSFER, call, adopting(2, "c", 3), failed(3, "b", 2, "gone")])


def test_an_adoption_does_not_conflict_with_the_minimum_hold_of_the_lease() -> None:
    lease = granted(0, "a", 1)._replace(min_hold=5.0)
    adoption: h.History = [adopting(2, "b", 2), server_granted(2, "b", 2)]

    assert not find(MinimumHolds, [lease, *adoption])
    assert not find(MinimumHolds, [lease, *adoption, started(3, "c", 3)._replace(adopts=2), server_granted(3, "c", 3)])
    assert find(MinimumHolds, [lease, *adoption, server_granted(3, "c", 3)])


def test_an_adopted_lease_may_overtake_the_queue() -> None:
    waiter = queued(1, "c", 3, position=3)

    assert not find(FairOrder, [waiter, adopting(2, "b", 2), server_granted(2, "b", 2, position=4)])
    assert find(FairOrder, [waiter, started(2, "b", 2), server_granted(2, "b", 2, position=4)])


def test_a_best_effort_fence_of_an_adopted_lease_may_be_ahead_of_a_clock_that_was_set_back() -> None:
    promises = Promises(fence=FenceOrder.BEST_EFFORT, sees_server=False)
    before: h.History = [granted(0, "a", 1, fence=100), h.StateLost(1, "clock")]
    adopted = granted(2, "b", 2, fence=101)._replace(adopts=1)
    later: h.History = [granted(3, "c", 3, fence=50)]

    assert not find(GrowingFences, [*before, adopted, *later], promises)
    assert find(GrowingFences, [*before, adopted._replace(fence=100), *later], promises), "not greater than the first"
    assert find(GrowingFences, [*before, *later, granted(4, "d", 4, fence=50)], promises)
    after: h.History = [h.StateLost(1, "clock"), granted(1, "a", 1, fence=100), adopted]
    assert find(GrowingFences, [*after, *later], promises), "all of them were granted after the step of the clock"
