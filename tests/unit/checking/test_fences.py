"""The checker misses a fence that does not grow, so that a resource accepts an old holder."""

from __future__ import annotations

import pytest

from holdfast.guarantees import FenceOrder
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import GrowingFences, SingleGrants
from tests.unit.checking.histories import LOCK, find, granted, message, released, server_granted, shared


@pytest.mark.parametrize(("second", "is_wrong"), [(8, False), (7, True), (6, True)])
def test_an_exclusive_fence_is_greater_than_the_one_before(second: int, *, is_wrong: bool) -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), granted(2, "b", 2, fence=second)]

    assert bool(find(GrowingFences, history)) == is_wrong


def test_the_message_names_the_lease_with_the_greater_fence() -> None:
    assert message(GrowingFences, [granted(0, "a", 1, fence=7), granted(2, "b", 2, fence=6)]) == (
        "b got fence 6 of 'report', a smaller fence than a's 7"
    )


def test_fences_are_compared_with_the_greatest_before_and_not_with_the_last() -> None:
    history: h.History = [shared(0, "a", 1, fence=9), shared(0, "b", 2, fence=5)]

    assert not find(GrowingFences, history), "shared leases may arrive in any order"
    assert find(GrowingFences, [*history, granted(1, "c", 3, fence=8)])
    assert not find(GrowingFences, [*history, granted(1, "c", 3, fence=10)])


def test_shared_fences_are_unique_and_greater_than_the_last_exclusive_one() -> None:
    writer = granted(0, "w", 1, fence=5)

    assert not find(GrowingFences, [writer, shared(1, "a", 2, fence=7), shared(1, "b", 3, fence=6)])
    assert find(GrowingFences, [writer, shared(1, "a", 2, fence=7), shared(1, "b", 3, fence=7)])
    assert find(GrowingFences, [writer, shared(1, "a", 2, fence=4)])


def test_fences_of_two_locks_are_not_compared() -> None:
    assert not find(GrowingFences, [granted(0, "a", 1, fence=7), granted(1, "b", 2, fence=3)._replace(lock="other")])


DATA, CLOCK = h.StateLost(1), h.StateLost(1, "clock")


@pytest.mark.parametrize(
    ("fence", "state_lost", "is_excused"),
    [
        (FenceOrder.UNCONDITIONAL, [DATA, CLOCK], False),
        (FenceOrder.DURABLE_STORAGE, [DATA], True),
        (FenceOrder.DURABLE_STORAGE, [DATA._replace(majority=False)], False),
        (FenceOrder.DURABLE_STORAGE, [DATA._replace(lock="other")], False),
        (FenceOrder.DURABLE_STORAGE, [CLOCK], False),
        (FenceOrder.CLOCK_BOUNDED, [DATA], False),
        (FenceOrder.CLOCK_BOUNDED, [CLOCK], False),
        (FenceOrder.CLOCK_BOUNDED, [DATA, CLOCK], True),
        (FenceOrder.BEST_EFFORT, [CLOCK], True),
        (FenceOrder.BEST_EFFORT, [h.StateLost(1, "lease")], False),
    ],
)
def test_the_guarantee_decides_which_losses_reset_fences(
    fence: FenceOrder, state_lost: h.History, *, is_excused: bool
) -> None:
    history: h.History = [granted(0, "a", 1, fence=7), *state_lost, granted(2, "b", 2, fence=6)]

    assert bool(find(GrowingFences, history, Promises(fence=fence))) != is_excused


def test_fences_grow_again_after_a_state_loss() -> None:
    promises = Promises(fence=FenceOrder.DURABLE_STORAGE)
    history: h.History = [granted(0, "a", 1, fence=7), DATA, granted(2, "b", 2, fence=3)]

    assert find(GrowingFences, [*history, granted(3, "c", 3, fence=2)], promises)
    assert not find(GrowingFences, [*history, granted(3, "c", 3, fence=4)], promises)


def test_a_grant_from_before_a_state_loss_is_not_compared_with_later_ones() -> None:
    promises = Promises(fence=FenceOrder.DURABLE_STORAGE)

    assert not find(
        GrowingFences,
        [server_granted(0, "a", 1), DATA, granted(2, "a", 1, fence=7), granted(3, "b", 2, fence=1)],
        promises,
    )


# ── one ticket, one lease, one fence ─────────────────────────────────────────────────────────────────────────────


def test_a_ticket_is_granted_once() -> None:
    assert "a second time" in message(SingleGrants, [granted(0, "a", 1, fence=7), granted(1, "a", 1, fence=8)])
    assert not find(SingleGrants, [granted(0, "a", 1, fence=7), granted(1, "a", 2, fence=8)])


def test_a_fence_belongs_to_one_lease() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), granted(2, "b", 2, fence=7)]

    assert message(SingleGrants, history) == "fence 7 of 'report' was given to a and then to b"
    assert not find(SingleGrants, [*history[:2], granted(2, "b", 2, fence=7)._replace(lock="other")])


def test_a_server_that_lost_its_counter_may_repeat_a_fence_unless_fences_are_unconditional() -> None:
    first, again = granted(0, "a", 1, fence=7), granted(2, "b", 2, fence=7)
    durable = Promises(fence=FenceOrder.DURABLE_STORAGE)

    assert not find(SingleGrants, [first, DATA, again], durable)
    assert find(SingleGrants, [first, DATA, again])
    assert find(SingleGrants, [first, DATA._replace(majority=False), again], durable)
    assert find(SingleGrants, [first, h.StateLost(1, "lease"), again], durable)


def test_a_grant_in_flight_when_the_counter_is_lost_counts_as_earlier() -> None:
    in_flight: h.History = [server_granted(0, "a", 1), DATA, granted(2, "a", 1, fence=7)]
    again: h.History = [granted(3, "b", 2, fence=7), h.Reentered(4, "b", 3, LOCK, 7), h.Reentered(4, "a", 4, LOCK, 7)]

    assert not find(SingleGrants, [*in_flight, *again], Promises(fence=FenceOrder.DURABLE_STORAGE))
    assert find(SingleGrants, [*in_flight, *again])


def test_a_lease_from_before_a_state_loss_can_be_reentered() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), DATA, h.Reentered(2, "a", 2, LOCK, 7)]

    assert not find(SingleGrants, history, Promises(fence=FenceOrder.DURABLE_STORAGE))


def test_reentry_has_the_fence_of_the_held_lease() -> None:
    lease = granted(0, "a", 1, fence=7)

    assert not find(SingleGrants, [lease, h.Reentered(1, "a", 2, LOCK, 7)])
    assert find(SingleGrants, [lease, h.Reentered(1, "a", 2, LOCK, 8)])
    assert find(SingleGrants, [lease, h.Reentered(1, "b", 2, LOCK, 7)])


def test_leases_of_one_owner_have_one_fence() -> None:
    first, same_owner = (
        granted(at, client, ticket, fence=7)._replace(owner="x") for at, client, ticket in ((0, "a", 1), (1, "b", 2))
    )

    for checker in (GrowingFences, SingleGrants):
        assert not find(checker, [first, same_owner])
        assert find(checker, [first, same_owner._replace(owner="y")])
        assert find(checker, [first, same_owner, granted(2, "c", 3, fence=7)])
    assert find(GrowingFences, [first, same_owner, granted(2, "c", 3, fence=8), same_owner._replace(at=3.0, ticket=4)])


def test_an_owner_may_reuse_its_old_fence_after_an_old_copy_is_restored() -> None:
    first = granted(0, "a", 1, fence=7)._replace(owner="x")
    between, same_owner = granted(1, "b", 2, fence=8), granted(3, "c", 3, fence=7)._replace(owner="x")

    assert find(GrowingFences, [first, between, same_owner])
    assert not find(GrowingFences, [first, between, h.StateLost(2, "data"), same_owner])
    assert find(GrowingFences, [first, between, h.StateLost(2, "data"), same_owner._replace(fence=6)])
    server_events: h.History = [
        server_granted(0, "a", 7)._replace(owner="x"),
        between,
        h.StateLost(2, "data"),
        same_owner,
    ]
    assert not find(GrowingFences, server_events)
    assert find(GrowingFences, [first, between, h.StateLost(2, "data"), same_owner._replace(owner="y")])
    assert find(GrowingFences, [first, between, h.StateLost(2, "lease"), same_owner])


@pytest.mark.parametrize("fence", [FenceOrder.UNCONDITIONAL, FenceOrder.DURABLE_STORAGE])
def test_a_state_loss_before_the_last_lease_excuses_no_later_fence(fence: FenceOrder) -> None:
    history: h.History = [
        h.StateLost(0, restored=True),
        granted(1, "a", 1, fence=7),
        CLOCK,
        granted(2, "b", 2, fence=6),
    ]

    assert find(GrowingFences, history, Promises(fence=fence))


def test_fences_may_go_back_after_an_old_copy_is_restored_but_not_for_a_running_client() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), h.StateLost(2, "data", restored=True)]

    assert not find(GrowingFences, [*history, granted(3, "b", 2, fence=5)])
    assert not find(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "a", 3, fence=8)])
    assert find(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "a", 3, fence=6)])
    assert find(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "c", 3, fence=5)])
    assert not find(GrowingFences, [*history, h.Crashed(3, "a"), granted(4, "a", 3, fence=6)])
    assert find(GrowingFences, [granted(0, "a", 1, fence=7), h.StateLost(2, "data"), granted(3, "b", 2, fence=5)])
