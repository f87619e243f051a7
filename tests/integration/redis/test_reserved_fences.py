"""Hazard: a hand-over reserves fences for the waiting callers of the next client. A reserved fence is used twice, the
lease cannot be broken, or a reservation is used for a later grant.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

import holdfast
from holdfast.backends.redis.protocol.keys import queue_keys
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import assert_free_and_clean, in_background, take
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.servers import Server

STRICT = "?local_handover=no"  # for the other client: each of its callers waits at the server
KEYS = queue_keys("holdfast:", "one", per_slot=False)
AHEAD = 4_000_000_000_000_000  # microseconds: a watermark far ahead of the clock


def wait_with_others(
    client: holdfast.Client, server: Server, count: int, timeout: float = PATIENCE
) -> list[Future[holdfast.Lease | None]]:
    """Start callers of one client. The first waits at the server and has reported the number of the others there.

    `timeout` is how long the others wait.
    """
    local = client._engine.local
    assert local is not None
    first = in_background(lambda: client.lock("one").acquire(timeout=PATIENCE))
    eventually(lambda: KEYS.queue in server.all_keys())
    pending = [first]
    for number in range(1, count):
        pending.append(in_background(lambda: client.lock("one").acquire(timeout=timeout)))
        # The local queue exists from the second caller on.
        eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == number)  # noqa: B023  (called at once)
    entry_start = f'{{"waiting": {count - 1}, "who"'
    eventually(lambda: entry_start in str(server.call("HVALS", KEYS.waiters)))  # at the next poll
    return pending


def released_one_by_one(pending: list[Future[holdfast.Lease | None]]) -> list[int]:
    """Await and release the leases in this order. Return their fences."""
    fences = []
    for future in pending:
        lease = future.result(PATIENCE)
        assert lease is not None
        fences.append(lease.fence)
        lease.release()
    return fences


def test_a_hand_over_reserves_fences_for_the_callers_that_wait(server: Server, open_client: OpenClient) -> None:
    client, other = open_client(server.url), open_client(f"{server.url}{STRICT}")
    server.call("SET", KEYS.watermark, AHEAD)
    held = take(other.lock("one"))
    pending = wait_with_others(client, server, 3)

    held.release()
    lease = pending[0].result(PATIENCE)

    assert lease is not None
    (holder,) = other.inspect("one").holders
    assert (lease.fence, holder.fence, holder.last_fence) == (AHEAD + 2, AHEAD + 2, AHEAD + 4)
    assert holder.caller == ""
    assert int(server.call("GET", KEYS.watermark)) == AHEAD + 4
    fences = released_one_by_one(pending)
    last = take(other.lock("one"))
    assert [*fences, last.fence] == sorted({*fences, last.fence})
    last.release()
    assert_free_and_clean(server, "one")


def test_a_turn_has_no_more_hand_overs_than_callers_wait_when_it_begins(
    server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(server.url), open_client(f"{server.url}{STRICT}")
    local = client._engine.local
    assert local is not None
    held = take(other.lock("one"))
    pending = wait_with_others(client, server, 2)
    nonce, entry = server.call("HGETALL", KEYS.waiters)
    # As if two callers had given up since the last poll.
    server.call("HSET", KEYS.waiters, nonce, entry.replace('{"waiting": 1, ', '{"waiting": 3, '))

    held.release()
    lease = pending[0].result(PATIENCE)

    assert lease is not None
    (holder,) = other.inspect("one").holders
    assert (holder.last_fence, local.queues["one"].last) == (lease.fence + 3, lease.fence + 1)
    lease.release()
    released_one_by_one(pending[1:])
    assert_free_and_clean(server, "one")


def test_a_fence_is_reserved_for_the_caller_whose_release_ends_a_turn(server: Server, open_client: OpenClient) -> None:
    client, other = open_client(server.url), open_client(f"{server.url}{STRICT}")
    local = client._engine.local
    assert local is not None
    lease = take(client.lock("one"))
    pending = [in_background(lambda: client.lock("one").acquire(timeout=PATIENCE)) for _ in range(2)]
    eventually(lambda: "one" in local.queues and len(local.queues["one"].waiting) == 2)
    first = in_background(lambda: other.lock("one").acquire(timeout=PATIENCE))
    eventually(lambda: KEYS.queue in server.all_keys())

    lease.release()
    held = first.result(PATIENCE)

    assert held is not None
    eventually(lambda: '{"waiting": 2, "who"' in str(server.call("HVALS", KEYS.waiters)))
    held.release()
    released_one_by_one(pending)
    assert_free_and_clean(server, "one")


def test_a_reservation_that_an_interrupt_left_behind_is_not_used_for_a_later_grant(
    server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(server.url), open_client(f"{server.url}{STRICT}")
    local = client._engine.local
    assert local is not None
    held = take(other.lock("one"))
    first, second = wait_with_others(client, server, 2)
    local.active["one"].reserved = 5  # as after a hand-over to a caller that was interrupted; the next caller polls

    assert other.break_lock("one", held.fence)
    lease = first.result(PATIENCE)

    assert lease is not None
    assert local.queues["one"].last == 0
    lease.release()
    released_one_by_one([second])
    with pytest.raises(holdfast.LockLost):
        held.release()
    assert_free_and_clean(server, "one")


def test_a_lease_with_reserved_fences_can_be_broken_after_a_renewal(server: Server, open_client: OpenClient) -> None:
    client, other = open_client(server.url, ttl=3), open_client(f"{server.url}{STRICT}")
    held = take(other.lock("one"))
    pending = wait_with_others(client, server, 2)

    held.release()
    lease = pending[0].result(PATIENCE)
    assert lease is not None
    assert other.break_lock("one", lease.fence)

    assert lease.wait_lost(PATIENCE)
    released_one_by_one(pending[1:])
    assert_free_and_clean(server, "one")


def test_fences_reserved_for_callers_that_gave_up_do_not_prevent_a_break(
    server: Server, open_client: OpenClient
) -> None:
    client, other = open_client(server.url, ttl=3), open_client(f"{server.url}{STRICT}")
    held = take(other.lock("one"))
    first, second = wait_with_others(client, server, 2, timeout=2.5)

    assert second.result(PATIENCE) is None
    held.release()
    lease = first.result(PATIENCE)

    assert lease is not None
    assert other.break_lock("one", lease.fence)
    assert lease.wait_lost(PATIENCE)
    assert_free_and_clean(server, "one")
