"""Hazard: a name with braces, which a Cluster parses as a hash tag, puts the keys of one lock into different slots, or
two names become one lock.
"""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.helpers import PROMPT, acquiring, await_waiters, take
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster

NAMES = [
    "plain",
    "order{42}",
    "{42}order",
    "{order}{42}",
    "a}b",
    "a{b",
    "}{",
    "{}x",
    "x{}",
    "{{a}}",
    "with spaces\tand\nlines\r\n",
    "*",
    "[a-z]?\\",
    "größe-日本-🔒",
    "e\u0301 is not \u00e9",
    "\x00",
    "x" * 512,
    "🔒" * 512,
]
SHORT = {name: name[:20].encode("unicode_escape").decode() for name in NAMES}


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("shared_cluster")
        return cluster.url
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.mark.parametrize("name", NAMES, ids=SHORT.values())
def test_every_operation_works_with_any_name(name: str, url: str, open_client: OpenClient) -> None:
    holder, waiter = open_client(url), open_client(url)

    lease = take(holder.lock(name), timeout=0)
    pending = acquiring(waiter.lock(name))
    await_waiters(holder, name, 1)
    lease.renew()

    assert holder.inspect(name).name == name
    assert [info.name for info in waiter.locks(name)] == [name]
    lease.release()
    after = pending.result(timeout=20)
    assert after.fence > lease.fence
    assert waiter.break_lock(name, after.fence)
    with pytest.raises(holdfast.LockLost):
        after.release()
    readers = [take(client.rwlock(name).read(), timeout=0) for client in (holder, waiter)]
    assert holder.rwlock(name).write().acquire(timeout=0) is None
    for reader in readers:
        reader.release()
    assert waiter.locks(name) == []


@pytest.mark.parametrize("name", ["x", "a{b}", "a}b", "{}"])
def test_two_prefixes_that_form_the_same_key_are_one_lock(name: str, url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(f"{url}?prefix=")
    full_name = f"holdfast:{name}"

    with take(client.rwlock(name).read(), timeout=0) as reader:
        assert other.lock(full_name).acquire(timeout=0) is None
        with take(other.rwlock(full_name).read(), timeout=0) as second:
            assert client.rwlock(name).write().acquire(timeout=0) is None
    with take(other.semaphore(full_name, 2), timeout=0), take(client.semaphore(name, 2), timeout=0) as permit:
        assert other.semaphore(full_name, 2).acquire(timeout=0) is None
        assert client.lock(name).acquire(timeout=0) is None
    with (
        take(client.lock(name, owner="job"), timeout=0),
        take(other.lock(full_name, owner="job"), timeout=0) as owner_lease,
    ):
        assert other.rwlock(full_name).read().acquire(timeout=0) is None
    with take(other.lock(full_name), timeout=0) as lease:
        assert client.lock(name).acquire(timeout=0) is None
    assert reader.fence < second.fence < permit.fence < owner_lease.fence < lease.fence


def test_a_waiter_is_woken_by_a_release_under_another_prefix(url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(f"{url}?prefix=")
    lease = take(client.lock("x"))
    pending = acquiring(other.lock("holdfast:x"))
    await_waiters(client, "x", 1)

    lease.release()

    pending.result(timeout=PROMPT).release()


def test_different_names_are_different_locks(url: str, open_client: OpenClient) -> None:
    client, other = open_client(url), open_client(url)

    leases = [take(client.lock(name), timeout=0) for name in NAMES]

    assert {info.name for info in other.locks()} == set(NAMES)
    assert {lease.name: lease.held for lease in leases} == dict.fromkeys(NAMES, True)
    for lease in leases:
        lease.renew()
        lease.release()
    assert other.locks() == []


async def test_tasks_can_use_any_name(url: str) -> None:
    async with holdfast.AsyncClient(url) as client, holdfast.AsyncClient(url) as other:
        for name in NAMES:
            async with client.lock(name, timeout=10):
                assert await other.lock(name).acquire(timeout=0) is None


def test_the_key_of_a_lock_is_its_prefix_and_its_name(server: Server, open_client: OpenClient) -> None:
    client = open_client(f"{server.url}?prefix=my%3A")

    with client.lock("order{42}"):
        assert server.call("TYPE", "my:order{42}") == "string"
        assert all(key.startswith("my:") for key in server.all_keys())


@pytest.mark.parametrize("side_key", ["queue", "waiters", "shared", "sharers"])
def test_a_name_that_equals_a_side_key_is_never_mixed_up_with_it(
    side_key: str, url: str, open_client: OpenClient
) -> None:
    client, other = open_client(url), open_client(url)
    lookalike = f"beside{{holdfast:beside}}:{side_key}"

    def use(name: str) -> bool:
        """Acquire and release the lock. Return False if the name is refused."""
        try:
            lease = take(client.lock(name), timeout=0)
            assert other.lock(name).acquire(timeout=0.01) is None
            lease.release()
        except holdfast.NameConflict:
            return False
        return True

    lease = take(client.lock("beside"))
    use(lookalike)
    lease.renew()
    lease.release()

    assert use("beside")
    assert use(lookalike)


@pytest.mark.parametrize("prefix", ["{locks}:", ""], ids=["tag in the prefix", "no prefix"])
def test_names_work_under_other_prefixes(prefix: str, shared_cluster: Cluster, open_client: OpenClient) -> None:
    url = f"{shared_cluster.url}?prefix={prefix}"
    holder, waiter = open_client(url), open_client(url)

    for name in NAMES:
        lease = take(holder.lock(name), timeout=0)
        assert waiter.lock(name).acquire(timeout=0.01) is None
        lease.release()
        take(waiter.lock(name), timeout=0).release()
