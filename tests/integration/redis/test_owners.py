"""Hazard: while tickets of one owner hold a lock together, a client that has to wait is granted: a program without
owners, an earlier waiter, or a ticket that arrives after the release of one of the tickets.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis_lock  # type: ignore[import-untyped]  # it has no types

import holdfast
from holdfast.backends.redis.protocol.keys import queue_keys
from holdfast.core.tickets import Granted, LeaseGone, Live, Waiting
from holdfast_lab.conformance.verbs import Verbs
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, in_background, take
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.proxy import Proxy
from tests.support.redis.servers import Server

PROMPT = 2.0  # seconds: a notification arrives sooner than the next poll after 2.5 s


@pytest.fixture
def theirs(server: Server) -> Any:
    with redis.Redis(port=server.port) as client:
        yield client


def test_an_owner_and_its_fence_are_in_the_key_and_its_tickets_in_the_side_keys(
    server: Server, open_client: OpenClient
) -> None:
    client_a, client_b, other = (open_client(server.url) for _ in range(3))
    with client_a.lock("a", owner="job"), client_b.lock("a", owner="job"):
        pending = acquiring(other.lock("a", owner="another"))
        await_waiters(client_a, "a", 1)

        value = server.call("GET", "holdfast:a")
        keys = queue_keys("holdfast:", "a", per_slot=False)
        members = server.call("ZRANGE", keys.shared, 0, -1)
        lines = server.call("HVALS", keys.sharers)
        (entry,) = server.call("HVALS", keys.waiters)

    owner, fence = value.removeprefix("holdfast:queue2:+@").split("\n")
    assert [member[:2] for member in members] == ["x:", "x:"]
    assert {line.split("\n")[1] for line in lines} == {fence}
    assert entry.startswith("@")
    assert not entry.startswith(f"@{owner}\n")
    pending.result(PATIENCE).release()
    assert_free_and_clean(server, "a")


def test_another_program_is_blocked_until_the_last_ticket_of_an_owner_is_released(
    server: Server, theirs: Any, open_client: OpenClient
) -> None:
    client_a, client_b = open_client(server.url), open_client(server.url)
    first, second = take(client_a.lock("a", owner="job")), take(client_b.lock("a", owner="job"))
    lock = redis.lock.Lock(theirs, "holdfast:a", timeout=30)

    assert not lock.acquire(blocking=False)
    first.release()
    assert not lock.acquire(blocking=False)
    second.release()
    assert lock.acquire(blocking=False)

    assert client_a.lock("a", owner="job").acquire(timeout=0) is None
    lock.release()
    take(client_a.lock("a", owner="job"), timeout=0).release()


def test_the_last_release_of_an_owner_wakes_python_redis_lock(
    server: Server, theirs: Any, open_client: OpenClient
) -> None:
    client_a, client_b = (open_client(f"{server.url}?compat=python-redis-lock") for _ in range(2))
    first, second = take(client_a.lock("a", owner="job")), take(client_b.lock("a", owner="job"))
    lock = redis_lock.Lock(theirs, "a", expire=30)

    pending = in_background(lambda: lock.acquire(timeout=20))
    eventually(lambda: any(client["cmd"] == "blpop" for client in server.clients()))
    first.release()
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.3)
    second.release()

    assert pending.result(timeout=5)  # by a notification, not at its timeout
    lock.release()


@pytest.mark.parametrize("topology", ["server", "shared_cluster"])
def test_waiters_of_the_same_owner_are_woken_when_the_first_is_granted(
    topology: str, open_client: OpenClient, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(topology).url
    holder, client_a, other, client_b = (open_client(url) for _ in range(4))
    held = take(holder.lock("a"))
    pending = []
    same_owner = [client.lock("a", owner="job") for client in (client_a, client_b, client_a)]
    for position, lock in enumerate([same_owner[0], other.lock("a"), *same_owner[1:]], start=1):
        pending.append(acquiring(lock))
        await_waiters(holder, "a", position)

    held.release()

    leases = [pending[position].result(timeout=PROMPT) for position in (0, 2, 3)]
    assert len({lease.fence for lease in leases}) == 1
    for lease in leases:
        assert not pending[1].done()
        lease.release()
    pending[1].result(timeout=PATIENCE).release()


def test_a_ticket_whose_reply_was_lost_shares_the_fence_of_its_owner(server: Server, proxy: Proxy) -> None:
    backend, faulty = Verbs(server.url), Verbs(f"{proxy.url}?io_timeout=0.5")
    first, second = backend.ticket("a", owner="job"), backend.ticket("a", owner="job")
    faulty.try_acquire(backend.ticket("warm-up", owner="job"), queue=False)
    granted = backend.try_acquire(first, queue=False)

    proxy.lose_next_reply("holdfast:a")
    with pytest.raises(holdfast.OutcomeUnknown):
        faulty.try_acquire(second, queue=False)
    proxy.await_loss()
    again = faulty.try_acquire(second, queue=False)

    assert isinstance(granted, Granted)
    assert isinstance(again, Granted)
    assert again.fence == granted.fence
    assert faulty.release(second, second) == [True, False]
    holders = backend.inspect("a").holders
    assert [holder.fence for holder in holders] == [granted.fence]
    for store in (backend, faulty):
        store.close()


def test_a_withdrawn_ticket_with_an_unanswered_request_is_not_granted_with_its_owner(
    server: Server, proxy: Proxy
) -> None:
    backend, faulty = Verbs(server.url), Verbs(f"{proxy.url}?io_timeout=0.5")
    first, second = backend.ticket("a", owner="job"), backend.ticket("a", owner="job")
    backend.try_acquire(first, queue=False)
    faulty.try_acquire(backend.ticket("warm-up", owner="job"), queue=False)

    proxy.lose_next_request("holdfast:a")
    with pytest.raises(holdfast.OutcomeUnknown):
        faulty.try_acquire(second, queue=False)
    proxy.await_loss()
    assert faulty.release(second) == [False]

    with pytest.raises(holdfast.OutcomeUnknown, match="withdrawn before"):  # as if the lost request arrived only now
        backend.try_acquire(second, queue=False)
    for store in (backend, faulty):
        store.close()


def test_leases_of_an_owner_expire_one_by_one_and_the_lock_with_the_last(server: Server) -> None:
    backend = Verbs(server.url)
    short, long = backend.ticket("a", ttl=0.4, owner="job"), backend.ticket("a", ttl=1.6, owner="job")
    other = backend.ticket("a")
    for ticket in (long, short):
        assert isinstance(backend.try_acquire(ticket, queue=False), Granted)

    def holders() -> int:
        return len(backend.inspect("a").holders)

    eventually(lambda: holders() == 1)
    renewed = backend.renew(short, long)
    assert [type(outcome) for outcome in renewed] == [LeaseGone, Live]
    assert isinstance(backend.try_acquire(other, queue=False), Waiting)
    assert backend.release(short) == [False]
    eventually(lambda: holders() == 0)
    assert isinstance(backend.try_acquire(other, queue=False), Granted)
    backend.close()
