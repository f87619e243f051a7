"""Hazard: a lease of the straight path ends, without the mutex, while another thread begins to wait for it locally.

Then that thread waits although the lock is free, or gets a later lease without the ticket that holds the lock.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.core import local_handover, straight_path
from holdfast.core.local_handover import LocalHandover
from holdfast.core.tickets import Claim
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import PROMPT, assert_free_and_clean, in_background, take
from tests.support.processes import eventually
from tests.support.redis.servers import Server

# Lines before which another thread may run.
NEW_QUEUE = "self.waiting: dict"  # LocalQueue.__init__
WITH_MUTEX, PROMOTE = "with engine.mutex:", "path.local.promote("  # release_straight, around the end of the ticket

_FILES = {local_handover.__file__, straight_path.__file__}

pytestmark = pytest.mark.skipif(
    "coverage" in sys.modules, reason="the tests need the trace function that coverage uses"
)


def local_of(client: holdfast.Client) -> LocalHandover:
    local = client._engine.local
    assert local is not None
    return local


def waiting_in(local: LocalHandover) -> int:
    return len(local.queues["one"].waiting) if "one" in local.queues else 0


def assert_ends_clean(passed: holdfast.Lease, local: LocalHandover, server: Server) -> None:
    """A lease that was passed on is alive on the server, and its release frees the lock."""
    passed.renew()
    passed.release()
    assert not local.active
    assert not local.queues
    assert_free_and_clean(server, "one")


def straight(lock: holdfast.Lock) -> holdfast.Lease:
    """A lease that this thread acquires on the straight path."""
    take(lock).release()
    lease = take(lock)
    assert lease._claim.path is not None
    return lease


def with_others(call: Callable[[], object], steps: dict[str, Callable[[], object]]) -> None:
    """Make a call on this thread. Before the first line that begins with one of these texts, call its function."""
    left = dict(steps)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            for text in [text for text in left if line.startswith(text)]:
                left.pop(text)()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    assert not left


def test_a_ticket_is_not_queued_behind_one_that_ends_at_this_moment(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)
    local, runtime = local_of(client), client._engine.runtime
    lease = straight(client.lock("one"))
    held = lease._claim
    claim = Claim("one", runtime.nonce(), held.ttl, 1, True, held.agent, held.info)  # noqa: FBT003  (exclusive)
    claim.passable, claim.event = True, runtime.event()
    outcomes: list[object] = []

    with_others(lambda: outcomes.append(local.join(claim)), {NEW_QUEUE: lease.release})

    assert outcomes == [None]  # it has to request the lock
    assert local.active == {"one": claim}
    local.end(claim)
    assert not local.active
    assert not local.queues


def test_a_lease_is_passed_on_with_the_ticket_that_holds_the_lock_when_a_third_thread_acquires_it_in_between(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    lock, local = client.lock("one"), local_of(client)
    first = straight(lock)
    leases: list[holdfast.Lease] = []

    def change_holder() -> None:
        first.release()
        leases.append(in_background(partial(straight, lock)).result(PROMPT))

    def acquire() -> holdfast.Lease:
        passed: list[holdfast.Lease] = []
        with_others(lambda: passed.append(take(lock)), {NEW_QUEUE: change_holder})
        return passed[0]

    second = in_background(acquire)
    eventually(lambda: waiting_in(local) == 1)
    (holder,) = leases
    holder.release()
    passed = second.result(PROMPT)

    assert passed._claim.server is holder._claim
    assert_ends_clean(passed, local, server)


def test_a_lease_is_passed_on_with_the_ticket_that_holds_the_lock_when_a_third_thread_requests_it_at_a_release(
    server: Server, open_client: OpenClient
) -> None:
    client = open_client(server.url)
    lock, local = client.lock("one"), local_of(client)
    first = straight(lock)
    calls: list[Future[holdfast.Lease]] = []

    def let_another_wait() -> None:
        calls.append(in_background(partial(take, lock)))
        eventually(lambda: waiting_in(local) == 1)

    def let_another_request() -> None:
        calls.append(in_background(partial(take, lock)))
        eventually(lambda: local.active.get("one") not in (None, first._claim))

    with_others(first.release, {WITH_MUTEX: let_another_wait, PROMOTE: let_another_request})
    second, third = calls
    holder = third.result(PROMPT)
    holder.release()
    passed = second.result(PROMPT)

    assert passed._claim.server is holder._claim
    assert_ends_clean(passed, local, server)
