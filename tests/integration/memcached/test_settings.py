"""Hazard: servers without versions, without memory, with users or with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.memcached.conftest import StartServer
from tests.integration.memcached.helpers import item, take
from tests.support.memcached.servers import Server
from tests.support.redis.certificates import Certificates


def test_a_server_without_versions_is_refused(start_server: StartServer, open_client: OpenClient) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="start it without -C"):
        take(open_client(start_server("-C").url), "a")


def test_a_ttl_that_memcached_would_take_for_a_date_is_refused(server: Server, open_client: OpenClient) -> None:
    client = open_client(server.url)

    with pytest.raises(holdfast.ConfigurationError, match="30 days"):
        client.lock("a", ttl=30 * 86400).acquire(timeout=0)

    lease = take(client, "a", ttl=30 * 86400 - 5)
    assert item(server, "a").seconds_left > 29 * 86400
    lease.release()


def test_meta_that_is_too_long_is_refused_and_ends_no_lease(server: Server, open_client: OpenClient) -> None:
    """If it were sent, memcached would delete the item under its key ("avoid stale data" in its source)."""
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder, "a")

    with pytest.raises(holdfast.ConfigurationError, match="meta"):
        other.lock("a", meta={"x": "y" * 2_000_000}).acquire(timeout=0)

    lease.renew()
    lease.release()


def test_a_full_memory_is_reported_and_the_holder_keeps_its_lease(
    start_server: StartServer, open_client: OpenClient
) -> None:
    server = start_server("-M", "-m", "2")
    holder, other = open_client(server.url), open_client(server.url)
    lease = take(holder, "a", ttl=60, renew=False)
    size = len(item(server, "a").value)
    with server.connect() as line:
        number = 0
        while line.call(b"ms other-%d %d T0\r\n%b\r\n" % (number, size, b"x" * size)).code == "HD":
            number += 1

    assert other.lock("a").acquire(timeout=0) is None, "a client that reads first deletes nothing"
    with pytest.raises(holdfast.BackendError, match="no memory left"):
        other.lock("b").acquire(timeout=0)

    assert [holder.fence for holder in other.inspect("a").holders] == [lease.fence]
    lease.release()


def test_a_server_without_metadump_can_show_one_lock_but_not_list_them(
    start_server: StartServer, open_client: OpenClient
) -> None:
    client = open_client(start_server("-X").url)
    with client.lock("a") as lease:
        with pytest.raises(holdfast.Unsupported, match="-X"):
            client.locks()

        assert [holder.fence for holder in client.inspect("a").holders] == [lease.fence]


def test_a_server_with_users_requires_the_right_password(
    start_server: StartServer, open_client: OpenClient, tmp_path: Path
) -> None:
    (tmp_path / "users").write_text("locks:s3cret@word\n")
    server = start_server("-Y", str(tmp_path / "users"))

    take(open_client(f"memcached://locks:s3cret%40word@{server.address}"), "a").release()
    with pytest.raises(holdfast.BackendUnavailable, match="does not know this user") as refused:
        take(open_client(f"memcached://locks:wr0ng@{server.address}"), "a")
    assert "wr0ng" not in str(refused.value)
    with pytest.raises(holdfast.BackendUnavailable, match="requires a user and a password"):
        take(open_client(server.url), "a")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def take_in_thread(url: str) -> None:
    with holdfast.Client(url) as client, client.lock("a", timeout=0):
        assert [info.name for info in client.locks()] == ["a"]


def take_in_task(url: str) -> None:
    async def take_it() -> None:
        async with holdfast.AsyncClient(url) as client, client.lock("a", timeout=0):
            assert [info.name for info in await client.locks()] == ["a"]

    asyncio.run(take_it())


@pytest.mark.parametrize("take_at", [take_in_thread, take_in_task], ids=["threads", "asyncio"])
def test_tls_verifies_the_server(
    start_server: StartServer, certificates: Certificates, take_at: Callable[[str], None]
) -> None:
    server = start_server("-Z", "-o", f"ssl_chain_cert={certificates.server},ssl_key={certificates.server_key}")
    url = f"memcacheds://{server.address}"

    take_at(f"{url}?ca_certs={certificates.ca}")
    take_at(f"{url}?verify=none")
    with pytest.raises(holdfast.BackendUnavailable, match=r"cannot connect.*certificate"):
        take_at(f"{url}?ca_certs={certificates.other_ca}")


def test_a_server_that_is_not_memcached_is_not_used(open_client: OpenClient, start_server: StartServer) -> None:
    server = start_server("-B", "binary")  # it does not use the text protocol

    with pytest.raises(holdfast.BackendError):
        take(open_client(f"{server.url}?connect_timeout=1"), "a")
