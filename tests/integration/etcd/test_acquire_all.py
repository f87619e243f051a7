"""Several locks at once: acquired in few requests, none after a busy one, and no keys are left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.core.tickets import Granted, Waiting
from holdfast_lab.sim.mutants.base import replaced
from tests.integration.etcd.harness import Harness, harness, ticket
from tests.support.etcd import shared
from tests.support.etcd.servers import Server


@pytest.fixture(params=["queue", "key"])
def url(request: pytest.FixtureRequest, server: Server) -> str:
    return shared.fresh_url(method=request.param)


@pytest.fixture
def ours(url: str) -> Iterator[Harness]:
    with harness(url) as opened:
        yield opened


@pytest.fixture
def other(url: str) -> Iterator[Harness]:
    with harness(url) as opened:
        yield opened


def test_fifty_locks_are_acquired_in_one_request_and_released_in_one(ours: Harness) -> None:
    tickets = [ticket(f"n{number:03}") for number in range(50)]

    outcomes = ours.try_acquire_all(tickets)

    assert ours.calls() == ["kv/txn"]
    assert [type(outcome) for outcome in outcomes] == [Granted] * 50
    assert ours.locked() == [ticket.name for ticket in tickets]
    ours.calls()
    assert ours.release(tickets) == [True] * 50
    assert ours.calls() == ["kv/txn"]
    assert ours.locked() == []


def test_more_locks_than_fit_into_a_transaction_are_acquired_by_several_transactions_in_order(
    ours: Harness, other: Harness
) -> None:
    tickets = [ticket(f"n{number:03}") for number in range(200)]
    other.try_acquire(ticket("n150"))

    outcomes: list[Granted | Waiting] = []
    while not outcomes or isinstance(outcomes[-1], Granted):
        outcomes += ours.try_acquire_all(tickets[len(outcomes) :])

    assert [type(outcome) for outcome in outcomes] == [Granted] * 150 + [Waiting]
    assert len(ours.calls()) == 4
    assert ours.locked() == [ticket.name for ticket in tickets[:151]]
    ours.calls()
    assert ours.release(tickets[:150]) == [True] * 150
    assert len(ours.calls()) <= 3
    assert ours.locked() == ["n150"]


def test_tickets_with_long_metadata_are_split_into_requests_that_etcd_accepts(ours: Harness) -> None:
    long = '{"who": {}, "meta": {"text": "' + 40_000 * "é" + '"}}'
    tickets = [replaced(ticket(f"n{number:03}"), info=long) for number in range(60)]

    outcomes: list[Granted | Waiting] = []
    while len(outcomes) < len(tickets):
        outcomes += ours.try_acquire_all(tickets[len(outcomes) :])

    assert [type(outcome) for outcome in outcomes] == [Granted] * 60
    assert len(ours.calls()) < 10
    ours.release(tickets)


def test_only_locks_before_the_first_busy_one_are_acquired(ours: Harness, other: Harness) -> None:
    tickets = [ticket(name) for name in "abcde"]
    other.try_acquire(ticket("c"))

    *granted, waiting = ours.try_acquire_all(tickets)

    assert [type(outcome) for outcome in granted] == [Granted] * 2
    assert isinstance(waiting, Waiting)
    assert waiting.holder == "here/7"
    assert len(ours.calls()) == 2
    assert ours.locked() == ["a", "b", "c"]


def test_a_busy_first_lock_takes_one_request(ours: Harness, other: Harness) -> None:
    other.try_acquire(ticket("a"))

    outcomes = ours.try_acquire_all([ticket("a"), ticket("b")])

    assert [type(outcome) for outcome in outcomes] == [Waiting]
    assert len(ours.calls()) == 1
    assert ours.locked() == ["a"]


def test_a_repeated_acquire_finds_its_tickets_when_the_answer_was_lost(ours: Harness, other: Harness) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.cluster.hold_next = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)
    first = ours.cluster.deliver()

    outcomes = ours.try_acquire_all(tickets)

    assert first.message["succeeded"]
    assert [outcome.fence for outcome in outcomes if isinstance(outcome, Granted)] == [
        int(first.message["header"]["revision"])
    ] * 2
    assert ours.release(tickets) == [True, True]
    assert ours.locked() == []


def test_a_create_does_nothing_when_it_arrives_after_a_withdrawal(ours: Harness) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.cluster.hold_next = True
    with pytest.raises(holdfast.OutcomeUnknown):
        ours.try_acquire_all(tickets)

    ours.release(tickets)
    late_answer = ours.cluster.deliver()

    assert not late_answer.message.get("succeeded")
    assert ours.locked() == []


@pytest.mark.parametrize("free", [0, 1])
def test_a_create_does_nothing_when_another_member_has_refused_it_before(
    ours: Harness, other: Harness, free: int
) -> None:
    """The engine does not withdraw a ticket that is not granted."""
    tickets = [ticket(name) for name in "abc"]
    busy = ticket(tickets[free].name)
    other.try_acquire(busy)
    ours.cluster.hold_next = ours.cluster.repeat_elsewhere = True
    outcomes = ours.try_acquire_all(tickets)
    assert [type(outcome) for outcome in outcomes] == [Granted] * free + [Waiting]

    other.release([busy])
    ours.release(tickets[:free])
    late_answer = ours.cluster.deliver()

    assert not late_answer.message.get("succeeded")
    assert ours.locked() == []


def test_a_create_does_nothing_when_another_member_has_granted_it_and_it_was_released(ours: Harness) -> None:
    tickets = [ticket(name) for name in "ab"]
    ours.cluster.hold_next = ours.cluster.repeat_elsewhere = True
    ours.try_acquire_all(tickets)

    ours.release(tickets)
    late_answer = ours.cluster.deliver()

    assert not late_answer.message.get("succeeded")
    assert ours.locked() == []


def test_a_lease_is_replaced_when_it_was_revoked(own_server: Server) -> None:
    with harness(own_server.url) as ours:
        before = own_server.leases()
        for lease_id in before:
            own_server.revoke(lease_id)

        outcomes = ours.try_acquire_all([ticket("a"), ticket("b")])

        assert [type(outcome) for outcome in outcomes] == [Granted] * 2
        assert len(set(own_server.leases()) - set(before)) == 1


@pytest.mark.parametrize(("first", "second"), [("queue", "key"), ("key", "queue")])
def test_two_methods_on_one_name_raise_name_conflict(server: Server, first: str, second: str) -> None:
    url = shared.fresh_url()
    with harness(f"{url}&method={first}") as other, harness(f"{url}&method={second}") as ours:
        held = ticket("b")
        other.try_acquire(held)
        tickets = [ticket("a"), ticket("b")]

        with pytest.raises(holdfast.NameConflict, match="same method"):
            ours.try_acquire_all(tickets)

        ours.release(tickets)
        assert ours.locked() == []
        assert other.release([held]) == [True]


def test_a_lock_is_busy_when_another_program_holds_it(server: Server) -> None:
    url = shared.fresh_url()
    prefix = url.partition("prefix=")[2].replace("%2F", "/")
    server.put(f"{prefix}b/694d8bb3a01e2c07", "")
    with harness(url) as ours:
        granted, waiting = ours.try_acquire_all([ticket("a"), ticket("b")])

        assert isinstance(granted, Granted)
        assert isinstance(waiting, Waiting)
        assert waiting.holder == "another program"


def test_a_failed_attempt_leaves_no_state_in_memory(server: Server) -> None:
    url = shared.fresh_url()
    with harness(url) as other, harness(url) as ours:
        held = [ticket("a"), ticket("b")]
        other.try_acquire_all(held)

        for _ in range(10):
            assert isinstance(ours.try_acquire(ticket("a")), Waiting)
            assert isinstance(ours.try_acquire_all([ticket("a"), ticket("b")])[0], Waiting)

        other.release(held)
        ours.try_acquire_all(held_now := [ticket("a"), ticket("b")])
        prefix = url.partition("prefix=")[2].replace("%2F", "/")
        numbers = [int(key.rpartition("/")[2].removesuffix(".x")[-8:], 16) for key in server.keys(prefix)]
        assert sorted(numbers) == [1, 2]
        ours.release(held_now)
