"""The checker misses an overlap of two holders, or reports an overlap that does not exist."""

from __future__ import annotations

import itertools
import random

import pytest

from holdfast.core.tickets import first_blocker
from holdfast.guarantees import Exclusion
from holdfast_lab.checking import Promises
from holdfast_lab.checking import history as h
from holdfast_lab.checking.checkers import MutualExclusion
from tests.unit.checking.histories import (
    LOCK,
    failed,
    find,
    granted,
    lost,
    message,
    released,
    server_granted,
    shared,
    started,
)


def test_two_exclusive_beliefs_overlap() -> None:
    history: h.History = [granted(0, "a", 1), granted(1, "b", 2), released(2, "a", 1)]

    [violation] = find(MutualExclusion, history)

    assert violation.message == "b was granted 'report' while a believed to hold it"
    assert violation.events == (history[0], history[1])
    assert violation.at == 1
    assert violation.promise.startswith("At no time do more clients believe")


@pytest.mark.parametrize("end", [released(1, "a", 1), lost(1, "a", 1), h.Crashed(1, "a")])
def test_a_belief_may_begin_at_the_moment_when_another_ended(end: h.Event) -> None:
    assert not find(MutualExclusion, [granted(0, "a", 1), end, granted(1, "b", 2)])
    assert find(MutualExclusion, [granted(0, "a", 1), granted(1, "b", 2), end])


def test_a_belief_ends_at_its_deadline_and_not_before() -> None:
    assert not find(MutualExclusion, [granted(0, "a", 1, deadline=5), granted(5, "b", 2)])
    assert find(MutualExclusion, [granted(0, "a", 1, deadline=5), granted(4.9, "b", 2)])


def test_a_paused_process_believes_until_its_deadline() -> None:
    history: h.History = [granted(0, "a", 1, deadline=5), h.Paused(1, "a")]

    assert find(MutualExclusion, [*history, granted(4, "b", 2)])
    assert not find(MutualExclusion, [*history, granted(5, "b", 2)])


def test_a_renewal_moves_the_deadline_but_revives_nothing() -> None:
    start = granted(0, "a", 1, deadline=5)

    assert find(MutualExclusion, [start, h.Renewed(4, "a", 1, LOCK, 9), granted(8, "b", 2)])
    assert not find(MutualExclusion, [start, h.Renewed(6, "a", 1, LOCK, 9), granted(8, "b", 2)])


def test_two_locks_are_checked_separately() -> None:
    assert not find(MutualExclusion, [granted(0, "a", 1), granted(1, "b", 2)._replace(lock="other")])


def test_a_crash_ends_the_beliefs_of_its_client_only() -> None:
    assert find(MutualExclusion, [granted(0, "a", 1), h.Crashed(1, "b"), granted(2, "b", 2)])


def test_a_restarted_client_is_protected_like_any_other() -> None:
    history: h.History = [granted(0, "a", 1), h.Crashed(1, "a"), h.Restarted(1, "a"), granted(1, "a", 2)]

    assert find(MutualExclusion, [*history, granted(2, "b", 3)])


def test_readers_overlap_with_readers_but_not_with_a_writer() -> None:
    readers: h.History = [shared(0, "a", 1), shared(0, "b", 2), shared(0, "c", 3)]

    assert not find(MutualExclusion, readers)
    assert find(MutualExclusion, [*readers, granted(1, "d", 4)])
    assert find(MutualExclusion, [granted(0, "d", 4), shared(1, "a", 1)])

    ended: h.History = [released(1, "a", 1), released(1, "b", 2), released(1, "c", 3)]
    assert not find(MutualExclusion, [*readers, *ended, granted(1, "d", 4)])
    assert find(MutualExclusion, [*readers, *ended[1:], granted(1, "d", 4)])


def test_a_semaphore_has_as_many_holders_as_its_limit() -> None:
    history: h.History = [shared(0, "a", 1, limit=2), shared(0, "b", 2, limit=2)]

    assert not find(MutualExclusion, history)
    assert message(MutualExclusion, [*history, shared(1, "c", 3, limit=2)]).endswith(
        "as number 3, where the limit is 2"
    )
    assert not find(MutualExclusion, [*history, released(1, "a", 1), shared(1, "c", 3, limit=2)])


def test_mixed_limits_on_one_name_follow_the_rule_of_tickets() -> None:
    permit_and_reader: h.History = [shared(0, "a", 1, limit=1), shared(0, "b", 2)]

    assert not find(MutualExclusion, permit_and_reader), "the permit may have been granted first"
    assert find(MutualExclusion, [*permit_and_reader, shared(1, "c", 3, limit=1)])
    assert not find(MutualExclusion, [*permit_and_reader, shared(1, "c", 3, limit=2)])


def test_a_ticket_that_was_granted_twice_counts_once() -> None:
    twice: h.History = [shared(0, "a", 1, limit=2), shared(1, "a", 1, limit=2), shared(2, "b", 2, limit=2)]

    assert not find(MutualExclusion, [*twice, released(3, "a", 1), shared(4, "c", 3, limit=2)])
    assert not find(MutualExclusion, [granted(0, "a", 1), granted(1, "a", 1)]), "that is for another checker"


def test_the_message_names_both_clients() -> None:
    assert message(MutualExclusion, [granted(0, "w", 1), shared(1, "r", 2)]) == (
        "r was granted 'report' while w believed to hold it"
    )


def test_leases_from_before_a_state_loss_are_excused_but_not_later_ones() -> None:
    history: h.History = [granted(0, "a", 1), h.StateLost(1), granted(2, "b", 2)]

    assert not find(MutualExclusion, history)
    assert message(MutualExclusion, [*history, granted(3, "c", 3)]).endswith("while b believed to hold it")


def test_a_grant_in_flight_during_a_state_loss_is_excused() -> None:
    history: h.History = [
        server_granted(0, "a", 1),
        h.StateLost(1),
        server_granted(2, "b", 2),
        granted(3, "b", 2),
        granted(4, "a", 1),
    ]

    assert not find(MutualExclusion, history)
    assert find(MutualExclusion, [event for event in history if not isinstance(event, h.StateLost)])


def test_only_grants_in_flight_during_a_state_loss_are_excused() -> None:
    received: h.History = [server_granted(0, "a", 1), granted(0, "a", 1), released(1, "a", 1), h.StateLost(2)]
    granted_again: h.History = [
        server_granted(0, "a", 1),
        h.StateLost(1),
        server_granted(2, "a", 1),
        granted(2, "a", 1),
    ]
    given_up: h.History = [server_granted(0, "a", 1), failed(1, "a", 1), h.StateLost(2), granted(3, "a", 1)]

    assert find(MutualExclusion, [*received, granted(3, "a", 1), granted(4, "b", 2)])
    assert find(MutualExclusion, [*granted_again, granted(3, "b", 2)])
    assert find(MutualExclusion, [*given_up, granted(4, "b", 2)])


def test_every_call_before_a_state_loss_is_excused_without_events_of_the_server() -> None:
    without_server_events = Promises(sees_server=False)
    history: h.History = [started(0, "a", 1), h.StateLost(1), started(2, "b", 2), granted(3, "b", 2)]

    assert not find(MutualExclusion, [*history, granted(4, "a", 1)], without_server_events)
    assert find(MutualExclusion, [*history, started(4, "c", 3), granted(4, "c", 3)], without_server_events)


def test_deadlines_have_the_tolerance_of_the_clock() -> None:
    history: h.History = [granted(0, "a", 1, deadline=5), granted(4.5, "b", 2)]

    assert not find(MutualExclusion, history, Promises(clock_error=0.5))
    assert find(MutualExclusion, history, Promises(clock_error=0.4))


@pytest.mark.parametrize(
    ("exclusion", "state_lost", "is_excused"),
    [
        (Exclusion.CONSENSUS, h.StateLost(1, majority=False), False),
        (Exclusion.CONSENSUS, h.StateLost(1), True),
        (Exclusion.BEST_EFFORT, h.StateLost(1, majority=False), True),
        (Exclusion.CACHE, h.StateLost(1, "lease", LOCK), True),
        (Exclusion.CACHE, h.StateLost(1, "lease", "other"), False),
        (Exclusion.CACHE, h.StateLost(1, "clock"), False),
    ],
)
def test_the_guarantee_decides_whether_a_state_loss_is_excused(
    exclusion: Exclusion, state_lost: h.StateLost, *, is_excused: bool
) -> None:
    violations = find(
        MutualExclusion, [granted(0, "a", 1), state_lost, granted(2, "b", 2)], Promises(exclusion=exclusion)
    )

    assert bool(violations) != is_excused


# ── comparison with a slow oracle ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_the_checker_agrees_with_brute_force_on_random_histories(first: int) -> None:
    for seed in range(first, first + 100):
        history = random_history(seed)

        conflicting = [violation.events[-1] for violation in find(MutualExclusion, history, Promises(clock_error=0.0))]

        assert conflicting == overlapping_grants(history), f"seed {seed}"


def test_the_random_histories_have_many_grants_with_and_without_conflict() -> None:
    histories = [random_history(seed) for seed in range(100)]
    grants = sum(isinstance(event, h.Granted) for history in histories for event in history)
    conflicting = sum(len(overlapping_grants(history)) for history in histories)

    assert 0.2 < conflicting / grants < 0.8


KINDS: list[list[tuple[int | None, bool]]] = [
    [(1, True)],
    [(None, False), (1, True)],
    [(2, False)],
    [(1, True), (1, False), (2, False), (None, False)],
]


def random_history(seed: int) -> h.History:
    rng = random.Random(seed)  # noqa: S311  (it must be repeatable)
    history: h.History = []
    now = 0.0
    kinds = rng.choice(KINDS)
    held: list[h.Granted] = []
    for ticket in range(1, 13):
        now += rng.choice([0, 0, 1, 2])
        for lease in rng.sample(held, rng.randint(0, len(held))):
            client, number = lease.client, lease.ticket
            end = rng.choice(["release", "lose", "renew", "crash", "nothing"])
            if end == "release":
                history.append(released(now, client, number))
            elif end == "lose":
                history.append(lost(now, client, number))
            elif end == "renew":
                history.append(h.Renewed(now, client, number, LOCK, now + rng.randint(0, 3)))
            elif end == "crash":
                history.append(h.Crashed(now, client))
            now += rng.choice([0, 0, 0, 1])
        limit, exclusive = rng.choice(kinds)
        deadline = rng.choice([None, now + 1, now + 3])
        lease = h.Granted(now, rng.choice("abc"), ticket, LOCK, ticket, deadline, limit, exclusive)
        history.append(lease)
        held = [*held[-3:], lease]
    return history


def overlapping_grants(history: h.History) -> list[h.Event]:
    """Every grant at a time when no order of the beliefs satisfies all limits."""
    conflicting: list[h.Event] = []
    for index, event in enumerate(history):
        if isinstance(event, h.Granted):
            believers = [
                other
                for number, other in enumerate(history[:index])
                if isinstance(other, h.Granted) and believes(history, number, other, until=index)
            ]
            if not can_hold_together([*believers, event]):
                conflicting.append(event)
    return conflicting


def believes(history: h.History, index: int, lease: h.Granted, *, until: int) -> bool:
    deadline = lease.deadline
    for event in history[index + 1 : until]:
        if isinstance(event, h.ReleaseStarted | h.Lost) and event.ticket == lease.ticket:
            return False
        if isinstance(event, h.Crashed) and event.client == lease.client:
            return False
        if isinstance(event, h.Renewed) and event.ticket == lease.ticket and (deadline is None or event.at < deadline):
            deadline = event.deadline
    return deadline is None or history[until].at < deadline


def can_hold_together(leases: list[h.Granted]) -> bool:
    return any(
        all(first_blocker(lease.limit, order[:position]) is None for position, lease in enumerate(order))
        for order in itertools.permutations(leases)
    )


# ── named owners ─────────────────────────────────────────────────────────────────────────────────────────────────────


def owned(at: float, client: str, ticket: int, owner: str, fence: int) -> h.Granted:
    return granted(at, client, ticket, fence)._replace(owner=owner)


def test_leases_of_one_owner_overlap_under_one_fence() -> None:
    first = owned(0, "a", 1, "x", 5)

    assert not find(MutualExclusion, [first, owned(1, "b", 2, "x", 5), released(2, "a", 1), owned(3, "c", 3, "x", 5)])
    assert "of the same owner, with fence 6 and not with 5" in message(
        MutualExclusion, [first, owned(1, "b", 2, "x", 6)]
    )


@pytest.mark.parametrize("owner", ["", "y"])
def test_another_owner_conflicts_until_the_last_lease_of_an_owner_ends(owner: str) -> None:
    two_leases: h.History = [owned(0, "a", 1, "x", 5), owned(1, "b", 2, "x", 5), released(2, "a", 1)]
    other = owned(3, "c", 3, owner, 6)

    assert message(MutualExclusion, [*two_leases, other]) == "c was granted 'report' while b believed to hold it"
    assert not find(MutualExclusion, [*two_leases, released(2.5, "b", 2), other])


def test_two_leases_without_an_owner_conflict() -> None:
    assert find(MutualExclusion, [owned(0, "a", 1, "", 5), owned(1, "b", 2, "", 5)])


def test_a_lease_lost_with_state_is_excused_although_an_old_copy_has_its_ticket_with_another_fence() -> None:
    before: h.History = [
        server_granted(0, "a", 1)._replace(fence=5),
        server_granted(1, "a", 1)._replace(fence=6),
        h.StateLost(2, "data"),
    ]
    restored = server_granted(2, "a", 1)._replace(fence=5)
    other = granted(4, "b", 2, fence=7)

    assert not find(MutualExclusion, [*before, restored, granted(3, "a", 1, fence=6), other])
    assert find(MutualExclusion, [*before, restored, granted(3, "a", 1, fence=5), other]), "the old copy has this one"
    assert find(MutualExclusion, [*before, restored._replace(fence=6), granted(3, "a", 1, fence=6), other])
