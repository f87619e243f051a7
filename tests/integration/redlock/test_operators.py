"""Hazard: operators see no holder or the wrong one, or the result of a break is reported wrongly, because nodes differ
or do not reply.
"""

from __future__ import annotations

import threading

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import acquiring, assert_lost, await_waiters, take
from tests.support.processes import eventually
from tests.support.redis.redlock import RedlockServers


def test_inspect_shows_the_fence_of_the_lease_for_any_responsive_nodes(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    """Each node begins its count with its own clock, so the first counts of a lock differ."""
    url = redlock.url(quarantine="no", node_timeout=5)
    client, other = open_client(url), open_client(url)

    for number in range(20):
        with client.lock(f"lock-{number}") as lease:
            lines = [
                server.call("HGET", _record(server.all_keys(), lease.name), "holder") for server in redlock.servers
            ]
            fences = [int(line.split("\n")[1]) for line in lines]
            assert fences.count(lease.fence) >= 3
            assert [holder.fence for holder in other.inspect(lease.name).holders] == [lease.fence]
            lease.renew()
            lines = [
                server.call("HGET", _record(server.all_keys(), lease.name), "holder") for server in redlock.servers
            ]
            assert {int(line.split("\n")[1]) for line in lines} == {lease.fence}


def test_all_locks_with_their_holders_and_waiters_are_shown_once_each(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = redlock.url(quarantine="no")
    holder, waiter, observer = (open_client(url) for _ in range(3))
    leases = [take(holder.lock(name)) for name in ("a", "b", "b/c")]
    pending = [acquiring(waiter.lock("b")) for _ in range(3)]
    await_waiters(observer, "b", 3)

    shown = {info.name: (len(info.holders), len(info.waiters)) for info in observer.locks()}

    assert shown == {"a": (1, 0), "b": (1, 3), "b/c": (1, 0)}
    assert [info.name for info in observer.locks("b")] == ["b", "b/c"]
    for lease in leases:
        lease.release()
    for future in pending:
        future.add_done_callback(lambda done: done.result().release())
    for future in pending:
        future.result(timeout=20)
    assert observer.locks() == []


def test_waiters_with_the_same_thread_name_are_distinguished(redlock: RedlockServers, open_client: OpenClient) -> None:
    url = redlock.url(quarantine="no")
    holder, waiter = open_client(url), open_client(url)
    held = take(holder.lock("one"))
    fences: list[int] = []

    def visit() -> None:
        with waiter.lock("one", timeout=30) as lease:
            fences.append(lease.fence)

    threads = [threading.Thread(target=visit, name="worker", daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    await_waiters(holder, "one", 4)

    held.release()
    for thread in threads:
        thread.join(30)
    assert len(set(fences)) == 4


def test_a_holder_with_a_bare_majority_is_shown_and_broken_when_one_of_its_nodes_is_down(
    own_redlock: RedlockServers, open_client: OpenClient
) -> None:
    for server in own_redlock.servers[3:]:
        server.kill()
    holder = open_client(own_redlock.url(quarantine="no"))
    lease = take(holder.lock("one", ttl=30, renew=False))
    for server in own_redlock.servers[3:]:
        server.start()
    own_redlock.servers[0].kill()
    observer = open_client(own_redlock.url(quarantine="no"))

    shown = observer.inspect("one")

    assert [holder.fence for holder in shown.holders] == [lease.fence]
    assert observer.break_lock("one", lease.fence - 1) is False
    assert observer.break_lock("one", lease.fence) is True
    take(observer.lock("one")).release()
    assert_lost(lease)


def test_a_broken_lease_is_lost_and_the_next_one_has_a_greater_fence(
    redlock: RedlockServers, open_client: OpenClient
) -> None:
    url = redlock.url(quarantine="no")
    holder, operator = open_client(url), open_client(url)
    lease = take(holder.lock("one", ttl=3))
    pending = acquiring(operator.lock("one"))
    await_waiters(operator, "one", 1)

    assert operator.break_lock("one", lease.fence) is True

    assert lease.wait_lost(10)
    after = pending.result(timeout=10)
    assert after.fence > lease.fence
    assert operator.break_lock("one", lease.fence) is False
    after.release()


def test_operator_calls_raise_without_a_majority(own_redlock: RedlockServers, open_client: OpenClient) -> None:
    client = open_client(own_redlock.url(quarantine="no"))
    lease = take(client.lock("one", ttl=30, renew=False))
    for server in own_redlock.servers[1:4]:
        server.kill()

    for call in (
        lambda: client.inspect("one"),
        client.locks,
        lambda: client.break_lock("one", lease.fence),
        client.lock("one").locked,
    ):
        with pytest.raises(holdfast.QuorumError) as caught:
            call()
        assert list(caught.value.causes) == own_redlock.addresses[1:4]


async def test_operator_calls_of_tasks_return_the_same(redlock: RedlockServers) -> None:
    url = redlock.url(quarantine="no")
    async with holdfast.AsyncClient(url) as holder, holdfast.AsyncClient(url) as operator:
        lease = await holder.lock("one", ttl=3).acquire()
        assert lease is not None
        assert await operator.lock("one").locked()
        assert [info.name for info in await operator.locks()] == ["one"]

        assert await operator.break_lock("one", lease.fence)

        assert await lease.wait_lost(10)
        assert not await operator.lock("one").locked()
    eventually(lambda: redlock.vote_count("one") == 0)


def _record(keys: set[str], name: str) -> str:
    return next(key for key in keys if key.endswith(f"{name}}}:record"))
