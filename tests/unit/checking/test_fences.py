"""A fence that does not grow protects nothing: the resource takes the old holder for the new one."""

from __future__ import annotations

import pytest

from holdfast.checking import Promises
from holdfast.checking import history as h
from holdfast.checking.checkers import GrowingFences, SingleGrants
from holdfast.guarantees import FenceOrder
from tests.unit.checking.stories import LOCK, admitted, found, granted, released, shared, what


@pytest.mark.parametrize(("second", "is_wrong"), [(8, False), (7, True), (6, True)])
def test_an_exclusive_fence_is_greater_than_the_one_before(second: int, *, is_wrong: bool) -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), granted(2, "b", 2, fence=second)]

    assert bool(found(GrowingFences, history)) == is_wrong


def test_it_says_by_which_lease_it_was_not_greater() -> None:
    assert what(GrowingFences, [granted(0, "a", 1, fence=7), granted(2, "b", 2, fence=6)]) == (
        "b got fence 6 of 'report', a smaller fence than a's 7"
    )


def test_fences_are_compared_with_the_greatest_before_and_not_with_the_last() -> None:
    history: h.History = [shared(0, "a", 1, fence=9), shared(0, "b", 2, fence=5)]

    assert not found(GrowingFences, history), "shared leases may arrive in any order"
    assert found(GrowingFences, [*history, granted(1, "c", 3, fence=8)])
    assert not found(GrowingFences, [*history, granted(1, "c", 3, fence=10)])


def test_shared_fences_are_unique_and_greater_than_the_last_exclusive_one() -> None:
    writer = granted(0, "w", 1, fence=5)

    assert not found(GrowingFences, [writer, shared(1, "a", 2, fence=7), shared(1, "b", 3, fence=6)])
    assert found(GrowingFences, [writer, shared(1, "a", 2, fence=7), shared(1, "b", 3, fence=7)])
    assert found(GrowingFences, [writer, shared(1, "a", 2, fence=4)])


def test_fences_of_two_locks_are_not_compared() -> None:
    assert not found(GrowingFences, [granted(0, "a", 1, fence=7), granted(1, "b", 2, fence=3)._replace(lock="other")])


DATA, CLOCK = h.StateLost(1), h.StateLost(1, "clock")


@pytest.mark.parametrize(
    ("fence", "forgot", "is_excused"),
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
def test_guarantees_say_what_fences_depend_on(fence: FenceOrder, forgot: h.History, *, is_excused: bool) -> None:
    history: h.History = [granted(0, "a", 1, fence=7), *forgot, granted(2, "b", 2, fence=6)]

    assert bool(found(GrowingFences, history, Promises(fence=fence))) != is_excused


def test_after_forgetting_fences_grow_anew() -> None:
    promises = Promises(fence=FenceOrder.DURABLE_STORAGE)
    history: h.History = [granted(0, "a", 1, fence=7), DATA, granted(2, "b", 2, fence=3)]

    assert found(GrowingFences, [*history, granted(3, "c", 3, fence=2)], promises)
    assert not found(GrowingFences, [*history, granted(3, "c", 3, fence=4)], promises)


def test_a_grant_from_before_the_forgetting_is_not_compared_with_those_after() -> None:
    promises = Promises(fence=FenceOrder.DURABLE_STORAGE)

    assert not found(
        GrowingFences, [admitted(0, "a", 1), DATA, granted(2, "a", 1, fence=7), granted(3, "b", 2, fence=1)], promises
    )


# ── one ticket, one lease, one fence ─────────────────────────────────────────────────────────────────────────────


def test_a_ticket_is_granted_once() -> None:
    assert "a second time" in what(SingleGrants, [granted(0, "a", 1, fence=7), granted(1, "a", 1, fence=8)])
    assert not found(SingleGrants, [granted(0, "a", 1, fence=7), granted(1, "a", 2, fence=8)])


def test_a_fence_belongs_to_one_lease() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), granted(2, "b", 2, fence=7)]

    assert what(SingleGrants, history) == "fence 7 of 'report' was given to a and then to b"
    assert not found(SingleGrants, [*history[:2], granted(2, "b", 2, fence=7)._replace(lock="other")])


def test_a_server_that_lost_its_counter_may_give_a_fence_again_if_it_promised_no_better() -> None:
    first, again = granted(0, "a", 1, fence=7), granted(2, "b", 2, fence=7)
    durable = Promises(fence=FenceOrder.DURABLE_STORAGE)

    assert not found(SingleGrants, [first, DATA, again], durable)
    assert found(SingleGrants, [first, DATA, again])
    assert found(SingleGrants, [first, DATA._replace(majority=False), again], durable)
    assert found(SingleGrants, [first, h.StateLost(1, "lease"), again], durable)


def test_a_grant_that_was_on_its_way_when_the_counter_was_lost_counts_as_one_from_before() -> None:
    on_its_way: h.History = [admitted(0, "a", 1), DATA, granted(2, "a", 1, fence=7)]
    again: h.History = [granted(3, "b", 2, fence=7), h.Reentered(4, "b", 3, LOCK, 7), h.Reentered(4, "a", 4, LOCK, 7)]

    assert not found(SingleGrants, [*on_its_way, *again], Promises(fence=FenceOrder.DURABLE_STORAGE))
    assert found(SingleGrants, [*on_its_way, *again])


def test_a_lease_from_before_the_forgetting_can_be_re_entered() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), DATA, h.Reentered(2, "a", 2, LOCK, 7)]

    assert not found(SingleGrants, history, Promises(fence=FenceOrder.DURABLE_STORAGE))


def test_reentry_has_the_fence_of_the_lease_that_it_counts_on() -> None:
    lease = granted(0, "a", 1, fence=7)

    assert not found(SingleGrants, [lease, h.Reentered(1, "a", 2, LOCK, 7)])
    assert found(SingleGrants, [lease, h.Reentered(1, "a", 2, LOCK, 8)])
    assert found(SingleGrants, [lease, h.Reentered(1, "b", 2, LOCK, 7)])


def test_leases_of_one_owner_have_one_fence() -> None:
    first, kin = (
        granted(at, client, ticket, fence=7)._replace(owner="x") for at, client, ticket in ((0, "a", 1), (1, "b", 2))
    )

    for checker in (GrowingFences, SingleGrants):
        assert not found(checker, [first, kin])
        assert found(checker, [first, kin._replace(owner="y")])
        assert found(checker, [first, kin, granted(2, "c", 3, fence=7)])
    assert found(GrowingFences, [first, kin, granted(2, "c", 3, fence=8), kin._replace(at=3.0, ticket=4)])


def test_an_owner_may_come_back_to_its_old_fence_with_an_old_copy_of_the_data() -> None:
    first = granted(0, "a", 1, fence=7)._replace(owner="x")
    between, kin = granted(1, "b", 2, fence=8), granted(3, "c", 3, fence=7)._replace(owner="x")

    assert found(GrowingFences, [first, between, kin])
    assert not found(GrowingFences, [first, between, h.StateLost(2, "data"), kin])
    assert found(GrowingFences, [first, between, h.StateLost(2, "data"), kin._replace(fence=6)])
    seen: h.History = [admitted(0, "a", 7)._replace(owner="x"), between, h.StateLost(2, "data"), kin]
    assert not found(GrowingFences, seen)
    assert found(GrowingFences, [first, between, h.StateLost(2, "data"), kin._replace(owner="y")])
    assert found(GrowingFences, [first, between, h.StateLost(2, "lease"), kin])


@pytest.mark.parametrize("fence", [FenceOrder.UNCONDITIONAL, FenceOrder.DURABLE_STORAGE])
def test_what_the_server_forgot_before_the_last_lease_excuses_nothing_after_it(fence: FenceOrder) -> None:
    history: h.History = [
        h.StateLost(0, restored=True),
        granted(1, "a", 1, fence=7),
        CLOCK,
        granted(2, "b", 2, fence=6),
    ]

    assert found(GrowingFences, history, Promises(fence=fence))


def test_an_old_copy_that_was_restored_makes_fences_go_back_but_not_for_a_client_that_runs() -> None:
    history: h.History = [granted(0, "a", 1, fence=7), released(1, "a", 1), h.StateLost(2, "data", restored=True)]

    assert not found(GrowingFences, [*history, granted(3, "b", 2, fence=5)])
    assert not found(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "a", 3, fence=8)])
    assert found(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "a", 3, fence=6)])
    assert found(GrowingFences, [*history, granted(3, "b", 2, fence=5), granted(4, "c", 3, fence=5)])
    assert not found(GrowingFences, [*history, h.Crashed(3, "a"), granted(4, "a", 3, fence=6)])
    assert found(GrowingFences, [granted(0, "a", 1, fence=7), h.StateLost(2, "data"), granted(3, "b", 2, fence=5)])
