"""Hazard: a ticket of an owner is granted before the queue, and waiters before it are granted at the same time."""

from __future__ import annotations

import uuid

import pytest

from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim, Granted, Waiting
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import opener, parse


def try_acquire(backend: Backend, ticket: Claim) -> Granted | Waiting:
    return run_sync(backend.try_acquire(ticket, queue=True, deadline=system.now() + 5))


@pytest.mark.parametrize("waited", [False, True])
def test_a_waiter_is_granted_only_when_all_tickets_of_the_owner_are_released(*, waited: bool) -> None:
    address = parse(f"memory://{uuid.uuid4().hex}")
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    first, second = (
        Claim("a", nonce, 30.0, 1, exclusive=True, agent="", info="{}", owner="me") for nonce in ("first", "last")
    )
    reader = Claim("a", "reader", 30.0, None, exclusive=False, agent="", info="{}")
    before = Claim("a", "before", 30.0, 1, exclusive=True, agent="", info="{}")

    if waited:  # the second ticket has a place in the queue, behind the reader
        assert isinstance(try_acquire(backend, before), Granted)
        assert [isinstance(try_acquire(backend, claim), Waiting) for claim in (first, reader, second)] == [True] * 3
        run_sync(backend.release([before], deadline=system.now() + 5))
    assert isinstance(try_acquire(backend, first), Granted)
    assert isinstance(try_acquire(backend, reader), Waiting)
    assert isinstance(try_acquire(backend, second), Granted)
    run_sync(backend.release([first], deadline=system.now() + 5))

    assert isinstance(try_acquire(backend, reader), Waiting)
    run_sync(backend.release([second], deadline=system.now() + 5))
    assert isinstance(try_acquire(backend, reader), Granted)
