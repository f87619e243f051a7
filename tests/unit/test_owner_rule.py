"""Hazard: a ticket of an owner is granted before the queue, and the waiters before it are granted beside it."""

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
def test_who_waits_stays_out_until_the_last_of_the_owner_s_tickets_has_left(*, waited: bool) -> None:
    address = parse(f"memory://{uuid.uuid4().hex}")
    backend: Backend = opener(address, "blocking")(address, ThreadRuntime())
    first, last = (
        Claim("a", nonce, 30.0, 1, exclusive=True, agent="", info="{}", owner="me") for nonce in ("first", "last")
    )
    reader = Claim("a", "reader", 30.0, None, exclusive=False, agent="", info="{}")
    before = Claim("a", "before", 30.0, 1, exclusive=True, agent="", info="{}")

    if waited:  # the last one had a place in line, behind the reader
        assert isinstance(try_acquire(backend, before), Granted)
        assert [isinstance(try_acquire(backend, claim), Waiting) for claim in (first, reader, last)] == [True] * 3
        run_sync(backend.release([before], deadline=system.now() + 5))
    assert isinstance(try_acquire(backend, first), Granted)
    assert isinstance(try_acquire(backend, reader), Waiting)
    assert isinstance(try_acquire(backend, last), Granted)
    run_sync(backend.release([first], deadline=system.now() + 5))

    assert isinstance(try_acquire(backend, reader), Waiting)
    run_sync(backend.release([last], deadline=system.now() + 5))
    assert isinstance(try_acquire(backend, reader), Granted)
