"""Hazard: several tickets of one owner are granted, and the first release grants the lock to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.tickets import Granted, Waiting
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.sqlite.conftest import Store


@pytest.fixture(params=["memory", "sqlite"])
def open_verbs(request: pytest.FixtureRequest, store: Store) -> Iterator[Callable[[], Verbs]]:
    """Opens the store of this test. memory:// is tested too, because it is the reference."""
    url = store.url if request.param == "sqlite" else f"memory://{store.path}"
    opened: list[Verbs] = []

    def open_verbs() -> Verbs:
        opened.append(Verbs(url))
        return opened[-1]

    yield open_verbs
    for verbs in opened:
        verbs.close()


def test_waiting_tickets_of_the_owner_are_woken_and_granted(open_verbs: Callable[[], Verbs]) -> None:
    client, other = open_verbs(), open_verbs()
    stranger = client.ticket("a")
    client.try_acquire(stranger)
    first, between, second = client.ticket("a", owner="x"), other.ticket("a"), other.ticket("a", owner="x")
    for ticket in (first, between, second):
        assert isinstance((client if ticket is first else other).try_acquire(ticket), Waiting)

    client.release(stranger)
    fence = _fence(client.try_acquire(first))

    assert other.wait(second, 0.9) < 0.5
    assert _fence(other.try_acquire(second)) == fence
    assert isinstance(other.try_acquire(between), Waiting)
    assert len(client.inspect("a").holders) == 2


def test_the_ticket_of_another_process_stays_granted_when_one_process_of_the_owner_dies(store: Store) -> None:
    client, other = Verbs(store.url), Verbs(store.url)
    client.try_acquire(client.ticket("a", owner="x"))
    same_owner, waiting = other.ticket("a", owner="x"), other.ticket("a")
    other.try_acquire(same_owner)
    other.try_acquire(waiting)

    client.close()  # its ticket stays, as after the death of a process

    assert isinstance(other.try_acquire(waiting), Waiting)
    other.release(same_owner)
    assert isinstance(other.try_acquire(waiting), Granted)
    other.close()


def _fence(outcome: Granted | Waiting) -> int:
    assert isinstance(outcome, Granted)
    return outcome.fence
