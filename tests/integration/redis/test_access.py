"""Hazard: missing access control: certificates are not verified, users and passwords are mixed up or shown, or a user
with permissions for the locks only is refused because of an unneeded command.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import acquiring, take
from tests.support.processes import eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.certificates import Certificates
from tests.support.redis.servers import Server
from tests.support.server_process import free_ports

USERS = """\
user default off
user locks on resetchannels >s3cret ~holdfast:* &holdfast:* +@all -@dangerous
user stranger on resetchannels >s3cret ~elsewhere:* &elsewhere:* +@all -@dangerous
user reader on resetchannels >s3cret ~holdfast:* &holdfast:* +@read
"""
PASSWORD = "s3cret"  # noqa: S105  of a server that lives for a test


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Secured(Server):
    """A server with users, and with a TLS port that requires a client certificate."""

    def __init__(self, folder: Path, certificates: Certificates, certificate: Path, key: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        users = folder / "users.acl"
        users.write_text(USERS)
        self.tls_port, plain = free_ports(2)
        super().__init__(
            main_binary(tls=True),
            folder,
            port=plain,  # for the requests of the test itself; without a password no user can do anything there
            options=[
                *("--tls-port", str(self.tls_port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
                *("--tls-ca-cert-file", str(certificates.ca), "--tls-auth-clients", "yes", "--aclfile", str(users)),
            ],
        )


@pytest.fixture
def secured(certificates: Certificates, tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path, certificates, certificates.server, certificates.server_key)
    try:
        server.start()
        yield server
    finally:
        server.end()


def url_of(
    server: Secured, certificates: Certificates, *, user: str = "locks", ca: Path | None = None, with_cert: bool = True
) -> str:
    certificate = f"&certfile={certificates.client}&keyfile={certificates.client_key}" if with_cert else ""
    return f"rediss://{user}:{PASSWORD}@127.0.0.1:{server.tls_port}/0?ca_certs={ca or certificates.ca}{certificate}"


def test_a_user_with_permissions_for_the_locks_only_can_use_locks(
    secured: Secured, certificates: Certificates, open_client: OpenClient
) -> None:
    url = url_of(secured, certificates)
    holder, waiter = open_client(url), open_client(url)

    lease = take(holder.lock("one"))
    pending = acquiring(waiter.lock("one"))
    eventually(lambda: len(waiter.inspect("one").waiters) == 1)
    lease.renew()
    names = [info.name for info in waiter.locks()]
    broken = waiter.break_lock("one", lease.fence)

    assert names == ["one"]
    assert broken
    assert pending.result().fence > lease.fence
    with pytest.raises(holdfast.LockLost):
        lease.renew()
    pending.result().release()


async def test_tasks_use_tls_and_users_too(secured: Secured, certificates: Certificates) -> None:
    async with holdfast.AsyncClient(url_of(secured, certificates)) as client, client.lock("one", timeout=10) as lease:
        await lease.renew()


def test_a_server_with_an_unknown_authority_is_refused(
    secured: Secured, certificates: Certificates, open_client: OpenClient
) -> None:
    with pytest.raises(holdfast.HoldfastError, match=r"(?i)certificate"):
        open_client(url_of(secured, certificates, ca=certificates.other_ca)).lock("one").acquire(timeout=0)


async def test_a_server_with_an_unknown_authority_is_refused_by_tasks(
    secured: Secured, certificates: Certificates
) -> None:
    async with holdfast.AsyncClient(url_of(secured, certificates, ca=certificates.other_ca)) as client:
        with pytest.raises(holdfast.HoldfastError, match=r"(?i)certificate"):
            await client.lock("one").acquire(timeout=0)


def test_without_ca_certs_the_system_s_authorities_are_used(
    secured: Secured, certificates: Certificates, open_client: OpenClient
) -> None:
    with pytest.raises(holdfast.HoldfastError, match=r"(?i)certificate"):
        open_client(f"rediss://locks:{PASSWORD}@127.0.0.1:{secured.tls_port}/0").lock("one").acquire(timeout=0)


def test_a_certificate_for_another_host_is_refused(
    certificates: Certificates, tmp_path: Path, open_client: OpenClient
) -> None:
    server = Secured(tmp_path, certificates, certificates.elsewhere, certificates.elsewhere_key)
    try:
        server.start()
        with pytest.raises(holdfast.HoldfastError, match=r"(?i)certificate"):
            open_client(url_of(server, certificates)).lock("one").acquire(timeout=0)
    finally:
        server.end()


def test_a_client_without_a_certificate_gets_a_holdfast_error(
    secured: Secured, certificates: Certificates, open_client: OpenClient
) -> None:
    with pytest.raises(holdfast.HoldfastError):
        open_client(url_of(secured, certificates, with_cert=False)).lock("one").acquire(timeout=0)


def test_tls_to_a_plain_server_gives_a_holdfast_error(server: Server, open_client: OpenClient) -> None:
    with pytest.raises(holdfast.HoldfastError):
        open_client(f"rediss://{server.address}/0?connect_timeout=2&io_timeout=2").lock("one").acquire(timeout=0)


def test_the_error_names_a_missing_ca_file(server: Server, open_client: OpenClient) -> None:
    with pytest.raises(holdfast.HoldfastError, match=r"nowhere\.pem"):
        open_client(f"rediss://{server.address}/0?ca_certs=/nowhere.pem").lock("one").acquire(timeout=0)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (f"locks:{PASSWORD}x@", "(?i)password"),
        (f"nobody:{PASSWORD}@", "(?i)password|user"),
        ("", "(?i)password|user"),
        (f"stranger:{PASSWORD}@", "(?i)acl|permission|allow"),
        (f"reader:{PASSWORD}@", "(?i)acl|permission|allow"),
    ],
    ids=["wrong password", "unknown user", "no password", "other keys only", "reads only"],
)
def test_the_error_names_a_missing_permission_and_no_password(
    user: str, message: str, tmp_path: Path, start_server: StartServer, open_client: OpenClient
) -> None:
    users = tmp_path / "users.acl"
    users.write_text(USERS)
    server = start_server("--aclfile", str(users))

    with pytest.raises(holdfast.HoldfastError, match=message) as refused:
        open_client(f"redis://{user}{server.address}/0").lock("one").acquire(timeout=0)

    error: BaseException | None = refused.value
    assert server.address in str(error)
    while error is not None:
        assert PASSWORD not in str(error)
        error = error.__cause__


def test_a_password_alone_is_the_default_user_s(start_server: StartServer, open_client: OpenClient) -> None:
    server = start_server("--requirepass", "p@ss/word:1")

    take(open_client(f"redis://:p%40ss%2Fword%3A1@{server.address}/0").lock("one"), timeout=0).release()

    with pytest.raises(holdfast.HoldfastError, match=r"(?i)password"):
        open_client(server.url).lock("one").acquire(timeout=0)


def test_a_user_without_info_can_lock(tmp_path: Path, start_server: StartServer, open_client: OpenClient) -> None:
    users = tmp_path / "users.acl"
    rules = "resetchannels ~holdfast:* &holdfast:* +@all -@dangerous -info"
    users.write_text(f"user default off\nuser locks on >{PASSWORD} {rules}\n")
    server = start_server("--aclfile", str(users))

    take(open_client(f"redis://locks:{PASSWORD}@{server.address}/0").lock("one"), timeout=0).release()
