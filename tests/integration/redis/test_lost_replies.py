"""Hazard: the server executes a request and its reply is lost, or the request never arrives: the lock is held by an
unknown token, is granted twice, or its holder believes that it was refused.

`cut`: the connection is reset. `hang`: nothing more arrives, and only a timeout ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_free_and_clean, await_waiters, take
from tests.support.processes import eventually
from tests.support.redis.proxy import Proxy, Then
from tests.support.redis.servers import Server

ENDS: list[Then] = ["cut", "hang"]
KEY = "holdfast:one"


def impatient(proxy: Proxy) -> str:
    """The URL of a client that waits only 0.5 s for a reply."""
    return f"{proxy.url}?io_timeout=0.5"


def warm_up(client: holdfast.Client) -> None:
    """Open the connections and load the scripts, so that the next request is the one that the test loses."""
    with client.lock("warm-up") as lease:
        lease.renew()


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_an_acquire_whose_reply_or_request_is_lost_gets_one_lease(
    lost: str, then: Then, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client, other = open_client(impatient(proxy)), open_client(server.url)
    warm_up(client)

    (proxy.lose_next_reply if lost == "reply" else proxy.lose_next_request)(KEY, then=then)
    lease = take(client.lock("one"))

    proxy.await_loss()
    lease.renew()
    assert other.lock("one").acquire(timeout=0) is None
    assert [holder.fence for holder in other.inspect("one").holders] == [lease.fence]
    lease.release()
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("then", ENDS)
def test_an_acquire_with_timeout_0_without_a_reply_raises_and_leaves_nothing(
    then: Then, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client, other = open_client(impatient(proxy)), open_client(server.url)
    warm_up(client)

    proxy.lose_next_reply(KEY, then=then)
    outcome: object = None
    try:
        outcome = client.lock("one").acquire(timeout=0)
    except holdfast.OutcomeUnknown as error:
        outcome = error
    proxy.await_loss()

    if isinstance(outcome, holdfast.Lease):  # the client has repeated the request, which is correct too
        outcome.release()
    assert outcome is not None, "busy and no answer must not look alike"
    eventually(lambda: KEY not in server.all_keys())
    assert_free_and_clean(server, "one")
    take(other.lock("one")).release()


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_release_whose_reply_or_request_is_lost_frees_the_lock(
    lost: str, then: Then, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client, other = open_client(impatient(proxy)), open_client(server.url)
    warm_up(client)
    lease = take(client.lock("one"))

    (proxy.lose_next_reply if lost == "reply" else proxy.lose_next_request)(KEY, then=then)
    with contextlib.suppress(holdfast.BackendError):  # it may report that it got no reply
        lease.release()
    proxy.await_loss()
    after = take(other.lock("one"), timeout=10)

    assert after.fence > lease.fence
    assert not lease.held
    after.renew()  # the repeated releases of the first client do not end this lease
    after.release()
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("then", ENDS)
def test_a_body_whose_release_gets_no_answer_ends_without_an_error(
    then: Then, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client = open_client(impatient(proxy))
    warm_up(client)

    with client.lock("one"):
        proxy.lose_next_reply(KEY, then=then)
    proxy.await_loss()

    eventually(lambda: KEY not in server.all_keys())
    assert_free_and_clean(server, "one")


@pytest.mark.parametrize("then", ENDS)
def test_a_waiter_whose_reply_was_lost_has_one_queue_entry(
    then: Then, server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client, other = open_client(impatient(proxy)), open_client(server.url)
    warm_up(client)
    lease = take(other.lock("one"))

    proxy.lose_next_reply(KEY, then=then)
    pending = acquiring(client.lock("one"))
    proxy.await_loss()
    await_waiters(other, "one", 1)
    lease.release()

    pending.result().release()
    assert other.inspect("one").waiters == ()
    assert_free_and_clean(server, "one")


def test_a_waiter_whose_withdrawal_is_lost_is_removed_soon(
    server: Server, proxy: Proxy, open_client: OpenClient
) -> None:
    client, other = open_client(impatient(proxy)), open_client(server.url)
    warm_up(client)
    lease = take(other.lock("one"))

    pending = acquiring(client.lock("one"), timeout=1)
    await_waiters(other, "one", 1)
    proxy.lose_requests()
    with pytest.raises((AssertionError, holdfast.BackendError)):
        pending.result(timeout=20)
    proxy.heal()
    proxy.cut()

    await_waiters(other, "one", 0)
    lease.release()
    assert_free_and_clean(server, "one")


def test_a_lease_is_kept_when_one_renewal_is_lost(server: Server, proxy: Proxy, open_client: OpenClient) -> None:
    client = open_client(impatient(proxy))
    warm_up(client)
    losses: list[object] = []
    lease = take(client.lock("one", ttl=4, on_lost=losses.append))

    proxy.lose_next_reply(KEY, then="hang")
    proxy.await_loss()

    assert not lease.wait_lost(3.5)  # later than the deadline before the lost renewal
    lease.release()
    assert losses == []
    assert_free_and_clean(server, "one")


# ── asyncio, where many tasks may share one connection ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("then", ENDS)
async def test_a_task_whose_reply_is_lost_gets_one_lease_and_its_release_frees_it(
    then: Then, server: Server, proxy: Proxy
) -> None:
    async with holdfast.AsyncClient(impatient(proxy)) as client, holdfast.AsyncClient(server.url) as other:
        async with client.lock("warm-up") as lease:
            await lease.renew()

        proxy.lose_next_reply(KEY, then=then)
        taken = await client.lock("one").acquire(timeout=20)
        assert taken is not None
        assert await other.lock("one").acquire(timeout=0) is None
        proxy.lose_next_reply(KEY, then=then)
        with contextlib.suppress(holdfast.BackendError):
            await taken.release()

        async with other.lock("one", timeout=10) as after:
            assert after.fence > taken.fence
    assert_free_and_clean(server, "one")


async def test_many_tasks_keep_their_locks_when_their_shared_connection_is_lost(server: Server, proxy: Proxy) -> None:
    async with holdfast.AsyncClient(impatient(proxy)) as client:
        held = [await client.lock(f"held-{number}").acquire() for number in range(20)]

        async def acquire_and_release(number: int) -> int:
            async with client.lock(f"many-{number}", timeout=20) as lease:
                return lease.fence

        proxy.lose_next_reply("holdfast:many-7")
        fences = await asyncio.gather(*(acquire_and_release(number) for number in range(50)))

        assert len(set(fences)) == 50
        for lease in held:
            assert lease is not None
            await lease.renew()
            await lease.release()
    locks = {f"holdfast:{name}-{number}" for name in ("many", "held") for number in range(50)}
    eventually(lambda: locks.isdisjoint(server.all_keys()))
