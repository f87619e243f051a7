"""Named owners, by the verbs of a backend: a ticket is blocked by another ticket of its owner, or others are granted
beside it.
"""

from __future__ import annotations

import pytest

from holdfast.core.names import OWNER_MAX
from holdfast.core.tickets import Granted, LeaseGone, Live, Waiting
from holdfast.primitives import Primitive
from holdfast_lab.conformance.cases import Case
from holdfast_lab.conformance.lab import Store
from holdfast_lab.conformance.processes import eventually

pytestmark = pytest.mark.needs(Primitive.OWNER)


def fence(outcome: Granted | Waiting) -> int:
    assert isinstance(outcome, Granted)
    return outcome.fence


def test_tickets_of_one_owner_are_granted_together_before_all_waiters(store: Store) -> None:
    client, other = store.open(), store.open()
    first, second, stranger = client.ticket("a", owner="x"), other.ticket("a", owner="x"), other.ticket("a")
    shared = fence(client.try_acquire(first))
    assert isinstance(other.try_acquire(stranger), Waiting)

    assert fence(other.try_acquire(second)) == shared
    assert len(client.inspect("a").holders) == 2
    assert client.release(first) == [True]
    assert isinstance(other.try_acquire(stranger), Waiting)
    assert other.release(second) == [True]

    assert fence(other.try_acquire(stranger)) > shared


def test_owners_are_compared_exactly(store: Store) -> None:
    client = store.open()
    client.try_acquire(client.ticket("a", owner="ann"))

    for owner in ("", "bob", "Ann", "ann ", "änn"):
        assert isinstance(client.try_acquire(client.ticket("a", owner=owner), queue=False), Waiting), owner


@pytest.mark.parametrize("owner", ["größe 🔒", "a:b\nc", "x" * OWNER_MAX, "@"])
def test_an_owner_may_have_any_name(store: Store, owner: str) -> None:
    client = store.open()
    same, other = [client.ticket("a", owner=owner) for _ in range(2)], client.ticket("a", owner=f"!{owner[1:]}")

    assert len({fence(client.try_acquire(ticket)) for ticket in same}) == 1
    assert isinstance(client.try_acquire(other), Waiting)
    assert client.release(*same) == [True, True]
    assert isinstance(client.try_acquire(other), Granted)


def test_a_ticket_with_an_owner_waits_for_a_holder_without_one(store: Store) -> None:
    client = store.open()
    stranger, first, second = client.ticket("a"), client.ticket("a", owner="x"), client.ticket("a", owner="x")
    client.try_acquire(stranger)
    for ticket in (first, second):
        assert isinstance(client.try_acquire(ticket), Waiting)

    client.release(stranger)
    assert isinstance(client.try_acquire(second), Waiting), "the first ticket of its owner is not granted yet"
    shared = fence(client.try_acquire(first))

    assert fence(client.try_acquire(second)) == shared


def test_each_ticket_of_an_owner_has_its_own_lease(store: Store) -> None:
    client = store.open()
    short, long = client.ticket("a", owner="x", ttl=0.5), client.ticket("a", owner="x")
    for ticket in (short, long):
        client.try_acquire(ticket)

    eventually(lambda: len(client.inspect("a").holders) == 1)

    assert isinstance(client.renew(long)[0], Live)
    assert isinstance(client.try_acquire(client.ticket("a"), queue=False), Waiting)
    assert client.release(short, long)[1] is True
    assert isinstance(client.try_acquire(client.ticket("a"), queue=False), Granted)


def test_a_lock_is_free_when_the_last_lease_of_its_owner_has_expired(store: Store) -> None:
    client = store.open()
    for ttl in (0.8, 0.4):
        client.try_acquire(client.ticket("a", owner="x", ttl=ttl))

    eventually(lambda: client.inspect("a").holders == ())

    assert isinstance(client.try_acquire(client.ticket("a"), queue=False), Granted)


def test_break_lock_ends_the_leases_of_all_tickets_of_the_owner(store: Store) -> None:
    client = store.open()
    tickets, stranger = [client.ticket("a", owner="x") for _ in range(3)], client.ticket("a")
    (shared,) = {fence(client.try_acquire(ticket)) for ticket in tickets}

    assert client.break_lock("a", shared)

    assert client.inspect("a").holders == ()
    assert [type(outcome) for outcome in client.renew(*tickets)] == [LeaseGone] * 3
    assert client.release(*tickets) == [False] * 3
    assert fence(client.try_acquire(stranger, queue=False)) > shared


def test_a_repeated_request_gets_the_same_fence(store: Store) -> None:
    client = store.open()
    first, second = client.ticket("a", owner="x"), client.ticket("a", owner="x")
    shared = fence(client.try_acquire(first))

    for ticket in (second, second, first):
        assert fence(client.try_acquire(ticket)) == shared
    assert len(client.inspect("a").holders) == 2


def test_readers_and_owners_exclude_each_other(store: Store, case: Case) -> None:
    if not case.shares:
        pytest.skip(f"{case.name} has no readers")
    client = store.open()
    owner, reader = client.ticket("a", owner="x"), client.ticket("a", exclusive=False, limit=None)
    client.try_acquire(owner)

    assert isinstance(client.try_acquire(reader, queue=False), Waiting)
    client.release(owner)
    assert isinstance(client.try_acquire(client.ticket("a", exclusive=False, limit=None), queue=False), Granted)
    assert isinstance(client.try_acquire(client.ticket("a", owner="x"), queue=False), Waiting)
